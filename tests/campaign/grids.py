"""Grids that are killed, on a stand-in for training."""

import random
import signal
import time
from pathlib import Path

from tests.campaign.attack import UNHARMED, Attack, Lost, Try
from tests.experiment.harness import Grid, results, write_experiment


def kills(folder: Path) -> Try:
    """SIGKILL, SIGTERM or SIGINT at any moment, several times; then the grid ends."""
    write_experiment(folder)
    if Grid(folder).wait():
        raise RuntimeError("the unharmed grid failed")
    expected = sorted(map(str, results(folder)))

    def attempt(rng: random.Random, scratch: Path) -> str:
        write_experiment(scratch)
        for _ in range(rng.randint(1, 4)):
            grid = Grid(scratch, FAKE_STEP_SECONDS="0.01")
            deadline = time.monotonic() + rng.uniform(0, 3)
            while time.monotonic() < deadline and not grid.ended():
                time.sleep(0.01)
            if not grid.ended():
                grid.signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            grid.wait()
        last = Grid(scratch)
        if last.wait():
            raise Lost(f"does not go on: {last.printed()[-1000:]}")
        if sorted(map(str, results(scratch))) != expected:
            raise Lost("results.jsonl is not that of an unbroken grid")
        return UNHARMED

    return attempt


ATTACKS = [Attack("kills of grids", 30, 2, kills)]
