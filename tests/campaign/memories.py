"""Attacks on memories: damaged files, and checkpoints deleted during reading."""

import itertools
import json
import math
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.manifest import MANIFEST, write_manifest
from erjepa.checkpoints.memory_file import ABOUT, SLOTS, TEXTS, write_memory
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory import main
from tests.campaign.attack import UNHARMED, Attack, Lost, Try, called, refused, within
from tests.campaign.files import harm
from tests.campaign.inputs import alter
from tests.campaign.runs import same
from tests.harness.data import write_records
from tests.harness.memories import DESCRIPTION, filled
from tests.harness.models import write_base
from tests.harness.ranks import on_ranks
from tests.harness.runs import read_metrics, small_config, train, train_here

_SECONDS = 60
_DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
_DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def odd_tensor(rng: random.Random, folder: Path) -> str:
    """Change value, type, shape or name of a tensor of a memory; return a description."""
    path = folder / SLOTS
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    way = rng.choice(["value"] * 6 + ["type", "shape", "remove", "rename", "extra"])
    if way == "value":
        at, value = rng.randrange(tensor.numel()), _odd_number(rng, tensor)
        tensor.view(-1)[at] = value
        way = f"value {value} at {at}"
    elif way == "type":
        tensor = tensor.to(rng.choice(_DTYPES))
    elif way == "shape":
        tensor = rng.choice(_SHAPES)(tensor)
    elif way == "extra":
        tensors[f"{name}_2"] = tensor.clone()
    if way != "remove":
        tensors[f"odd_{name}" if way == "rename" else name] = tensor.contiguous()
    save_file(tensors, path)
    return f"{way} of {name}"


def _odd_number(rng: random.Random, tensor: Tensor) -> float | int:
    """Return a number of the type at its limits, or outside the valid range."""
    if tensor.is_floating_point():
        odd = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e30, rng.gauss(0, 1)]
        return rng.choice(odd)
    limits = torch.iinfo(tensor.dtype)
    some = int(tensor.view(-1)[rng.randrange(tensor.numel())])
    odd = [limits.min, limits.max, -1, 0, 1, 1 << 32, some, some + 1]
    return min(max(rng.choice(odd), limits.min), limits.max)


_SHAPES: list[Callable[[Tensor], Tensor]] = [
    lambda tensor: tensor[:-1],
    lambda tensor: tensor[:0],
    lambda tensor: torch.cat([tensor, tensor[-1:]]),
    lambda tensor: tensor.flatten(),
    lambda tensor: tensor[..., None],
    lambda tensor: tensor[0],
    lambda tensor: tensor.T,
    lambda tensor: tensor.flip(0),
]


def odd_about(rng: random.Random, folder: Path) -> str:
    """Change a key of a memory's ``memory.json``; return its name."""
    path = folder / ABOUT
    about = json.loads(path.read_text())
    key = alter(rng, about)
    path.write_text(json.dumps(about))
    return f"{ABOUT}: {key}"


def odd_file(rng: random.Random, folder: Path) -> str:
    """Damage or replace a file of a memory; return a description."""
    path = folder / rng.choice([ABOUT, SLOTS, TEXTS])
    way = rng.choice(["harm", "harm", "harm", "FIFO", "folder", "link"])
    if way == "harm":
        return harm(rng, path, None)
    path.unlink()
    if way == "FIFO":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    else:
        path.symlink_to(rng.choice([path.name, "nowhere", "/dev/zero", folder]))
    return f"{way} in place of {path.name}"


def copies(folder: Path) -> Try:
    """Change a copied memory, which has no manifest, then start a run from it."""
    base, data = write_base(folder / "base"), write_records(folder / "a.jsonl", 12)
    other = write_records(folder / "b.jsonl", 8, seed=9)
    keys = {"epochs": 1, "batch_size": 4, "replay__budget": 12}
    train(small_config(base, data, folder / "run", **keys))
    memory = folder / "run" / "epoch_0" / checkpoint.MEMORY

    def attempt(rng: random.Random, scratch: Path) -> str:
        copy, output = scratch / "copy", scratch / "run"
        shutil.copytree(memory, copy)
        done = rng.choice([odd_tensor, odd_tensor, odd_about, odd_file])(rng, copy)
        start_from = {
            "replay__init_from": copy,
            "replay__init_addresses": rng.choice(["kept", "recomputed"]),
        }
        cfg = small_config(base, other, output, **keys, **start_from)

        def start() -> str:
            try:
                with within(_SECONDS):
                    train_here(cfg, None)
            except Lost:
                raise
            except Exception as error:  # noqa: BLE001
                if (output / "logs" / "metrics.txt").exists():
                    raise Lost(f"refused after the first step: {error}") from None
                return refused(error, copy)
            losses = [row["loss"] for row in read_metrics(output)]
            if len(losses) != 2 or not all(map(math.isfinite, losses)):
                raise Lost(f"trained to losses {losses}") from None
            return UNHARMED

        try:
            (outcome,) = on_ranks(start, 1)
            with within(_SECONDS):
                arguments = [str(copy), "--csv", str(scratch / "slots.csv")]
                called(main, arguments, copy)
        except Exception as error:
            raise Lost(f"{done}: {error}") from error
        return outcome

    return attempt


def checkpoints(folder: Path) -> Try:
    """Damage a file of the newest checkpoint's memory, or its manifest."""
    _write_run(folder, 1, 2)
    older, newest = checkpoint.checkpoints(folder)
    expected = _contents(open_memory(folder))
    names = [
        MANIFEST,
        *(f"{checkpoint.MEMORY}/{name}" for name in (ABOUT, SLOTS, TEXTS)),
    ]

    def attempt(rng: random.Random, scratch: Path) -> str:
        for path in (older, newest):
            shutil.copytree(path, scratch / path.name)
        name = rng.choice(names)
        place = scratch / newest.name
        if rng.random() < 0.5:
            done = harm(rng, place / name, older / name)
        else:
            change = rng.choice([odd_tensor, odd_about, odd_file])
            done = change(rng, place / checkpoint.MEMORY)
        try:
            with within(_SECONDS):
                found = _contents(open_memory(scratch))
        except Lost:
            raise
        except Exception as error:  # noqa: BLE001
            return refused(error, place)
        # Without texts, the tokens are shown.
        of_texts = not (place / checkpoint.MEMORY / TEXTS).is_file()
        if not same(found[of_texts:], expected[of_texts:]):
            raise Lost(f"{done}: taken as it is")
        return UNHARMED

    return attempt


def prunings(folder: Path) -> Try:
    """The run that writes the memory publishes another checkpoint and deletes the one that is
    being read, at any call of a function within the reading.
    """
    _write_run(folder, 1, 2, 3)
    first, second, third = checkpoint.checkpoints(folder)
    known = [_contents(open_memory(path)) for path in (second, third)]
    calls = _during(lambda: _contents(open_memory(second)), lambda call: None)

    def attempt(rng: random.Random, scratch: Path) -> str:
        run, aside = scratch / "run", scratch / "aside"
        for path in (first, second):
            shutil.copytree(path, run / path.name)
        shutil.copytree(third, aside / third.name)
        newest, removed = run / second.name, aside / second.name

        def remove_a_file() -> None:
            files = [path for path in removed.rglob("*") if path.is_file()]
            rng.choice(files).unlink()

        # As the run does it, see erjepa/checkpoints/checkpoint.py.
        steps = [
            lambda: (aside / third.name).rename(run / third.name),
            lambda: newest.rename(removed),
            remove_a_file,
            lambda: shutil.rmtree(removed),
        ]
        moments = sorted(rng.randrange(calls) for _ in steps)
        to_do = list(zip(moments, steps, strict=True))

        def at(call: int) -> None:
            while to_do and to_do[0][0] <= call:
                to_do.pop(0)[1]()

        found: list[Any] = []
        try:
            _during(lambda: found.append(_contents(open_memory(run))), at)
        except Exception as error:
            raise Lost(f"at calls {moments} of {calls}: {error!r}") from error
        if not any(same(found[0], contents) for contents in known):
            raise Lost(f"at calls {moments} of {calls}: neither memory was read")
        return UNHARMED

    return attempt


def _during(function: Callable[[], Any], at: Callable[[int], None]) -> int:
    """Call ``at`` with the number of each call within ``function``; return how many there were."""
    count = itertools.count()

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            at(next(count))

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return next(count)


def _write_run(folder: Path, *counts: int) -> None:
    """Write checkpoints within an epoch, whose memories have these numbers of slots."""
    for step, count in enumerate(counts):
        path = folder / f"epoch_0_step_{step}" / checkpoint.MEMORY
        path.parent.mkdir()
        write_memory(path, filled(10 * count), DESCRIPTION)
        texts = [json.dumps({"source": "a", "target": "b"}) + "\n"] * 10 * count
        (path / TEXTS).write_text("".join(texts))
        write_manifest(path.parent)


def _contents(stored: StoredMemory) -> list[Any]:
    """Return everything that can be read from a memory."""
    texts = stored.texts and stored.texts.read()
    return [texts, stored.about, stored.tensors]


ATTACKS = [
    Attack("copied memories", 200, 4, copies),
    Attack("damaged memories", 500, 1, checkpoints),
    Attack("memories pruned while read", 300, 1, prunings),
]
