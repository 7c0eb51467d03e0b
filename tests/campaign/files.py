"""Attacks that damage files on the disk."""

import random
import shutil
from pathlib import Path

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.manifest import MANIFEST
from tests.campaign.attack import UNHARMED, Attack, Lost, Try, refused
from tests.campaign.runs import Runs, same
from tests.harness.runs import train


def harm(rng: random.Random, path: Path, other: Path | None) -> str:
    """Damage a file in one of many ways; return a description."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content)) if content else 0
    ways = ["flip", "flip", "flip", "cut", "zero", "grow", "remove", "empty"]
    way = rng.choice([*ways, "swap"] if other is not None else ways)
    if way == "flip" and content:
        content[at] ^= 1 << rng.randrange(8)
    elif way == "cut":
        del content[at:]
    elif way == "zero":
        size = min(len(content) - at, rng.choice([1, 16, 512]))
        content[at : at + size] = bytes(size)
    elif way == "grow":
        content += rng.randbytes(rng.randint(1, 64))
    elif way == "empty":
        content = bytearray()
    elif way == "swap" and other is not None:
        content = bytearray(other.read_bytes())
    if way == "remove":
        path.unlink()
    else:
        path.write_bytes(content)
    return f"{way} at {at} of {path.name}"


def checkpoints(folder: Path) -> Try:
    """Damage a file of the newest checkpoint, then resume a run from it."""
    runs, output = Runs(folder), folder / "run"
    train(runs.config(output, 1, stop__steps=6, keep_last_n=2), 1)
    *_, older, newest = checkpoint.resumable_checkpoints(output)
    expected = checkpoint.load_resumable(newest)
    names = sorted(p.relative_to(newest) for p in newest.rglob("*") if p.is_file())

    def attempt(rng: random.Random, scratch: Path) -> str:
        shutil.copytree(newest, scratch / newest.name)
        name = rng.choice(names)
        before = (newest / name).read_bytes()
        path = scratch / newest.name / name
        done = harm(rng, path, older / name if (older / name).is_file() else None)
        try:
            found = checkpoint.load_resumable(checkpoint.latest(scratch))
        except Exception as error:  # noqa: BLE001
            # A damaged manifest may tell of another file of the checkpoint.
            return refused(error, newest.name if name.name == MANIFEST else name.name)
        if path.is_file() and path.read_bytes() == before:
            return UNHARMED
        if not same(found, expected):
            raise Lost(f"{done}: taken as it is")
        return UNHARMED

    return attempt


ATTACKS = [Attack("damaged checkpoints", 1000, 2, checkpoints)]
