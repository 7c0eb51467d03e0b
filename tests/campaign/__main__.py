"""Run the attacks: ``python -m tests.campaign [--minutes 20] [--seed 0] [--only NAME]``."""

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes are forked

import torch

from tests.campaign import (
    batches,
    cards,
    files,
    grids,
    inputs,
    memories,
    queries,
    runs,
)
from tests.campaign.attack import Attack, Lost, Tally, rng_of

ATTACKS = (
    *runs.ATTACKS,
    *grids.ATTACKS,
    *files.ATTACKS,
    *inputs.ATTACKS,
    *queries.ATTACKS,
    *memories.ATTACKS,
    *batches.ATTACKS,
    *cards.ATTACKS,
)


def main() -> int:
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[attack.name for attack in ATTACKS])
    parser.add_argument("--number", type=int, help="repeat one try of --only")
    parser.add_argument("--output", type=Path, help="Markdown file of the table")
    args = parser.parse_args()
    chosen = [a for a in ATTACKS if args.only in (None, a.name)]
    whole = sum(attack.share for attack in chosen)
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="campaign_") as folder:
        for attack in chosen:
            seconds = 60 * args.minutes * attack.share / whole
            numbers = [args.number] if args.number is not None else range(attack.aim)
            tallies[attack.name] = _run(
                attack, Path(folder), args.seed, numbers, seconds
            )
            print(_line(attack, tallies[attack.name]), flush=True)
    table = _table(chosen, tallies)
    print(f"\n{table}")
    if args.output:
        args.output.write_text(table)
    lost = [line for tally in tallies.values() for line in tally.lost]
    print("\n".join(lost), file=sys.stderr)
    return 1 if lost else 0


def _run(attack: Attack, folder: Path, seed: int, numbers, seconds: float) -> Tally:
    tally, start = Tally(), time.monotonic()
    stays = folder / attack.name
    stays.mkdir()
    try:
        attempt = attack.prepare(stays)
    except Exception:  # noqa: BLE001 - the others are still to be made
        tally.lost.append(f"{attack.name} cannot begin: {traceback.format_exc()}")
        return tally
    start_of_tries = time.monotonic()
    for number in numbers:
        if time.monotonic() - start_of_tries > seconds:
            break
        scratch = stays / f"try_{number}"
        scratch.mkdir()
        tally.tried += 1
        try:
            outcome = attempt(rng_of(seed, attack, number), scratch)
            tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        except Lost as lost:
            tally.lost.append(f"{attack.name} --number {number}: {lost}")
        except Exception:  # noqa: BLE001 - a fault is what an attack looks for
            text = traceback.format_exc()
            tally.lost.append(f"{attack.name} --number {number}: {text}")
        shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(stays, ignore_errors=True)
    tally.seconds = time.monotonic() - start
    return tally


def _line(attack: Attack, tally: Tally) -> str:
    outcomes = ", ".join(f"{count} {name}" for name, count in tally.outcomes.items())
    return (
        f"{attack.name}: {tally.tried} of {attack.aim} tried, {outcomes or 'none'}, "
        f"{len(tally.lost)} lost, {tally.seconds:.0f} s"
    )


def _table(attacks: list[Attack], tallies: dict[str, Tally]) -> str:
    lines = [
        "| attack | tried | unharmed | refused | lost |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for attack in attacks:
        tally = tallies[attack.name]
        counts = [tally.outcomes.get(name, 0) for name in ("unharmed", "refused")]
        row = [attack.name, tally.tried, *counts, len(tally.lost)]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
