"""Disk space is checked before training; a full disk later destroys no earlier checkpoint."""

import os
import re
import resource
import shutil
import subprocess
from collections import namedtuple

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from erjepa.checkpoints import checkpoint, space
from erjepa.configs import load
from erjepa.training.run.memory import memory_bytes
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.saving import RunCheckpoints
from tests.harness.runs import small_config, train

Usage = namedtuple("Usage", "total used free")
RESUME = "resume_from_checkpoint=True"


@pytest.fixture(scope="module")
def base(deep_base):
    return deep_base


def config(base, data, output_dir, **overrides):
    settings = {"epochs": 1, "save_every_n_steps": 2, "replay__weight": 0}
    return small_config(base, data, output_dir, **settings | overrides)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder]
    if os.name != "posix" or os.geteuid() or subprocess.run(mount).returncode:
        pytest.skip("needs root to mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder, leave):
    """Write until ``leave`` bytes are free."""
    with (folder / "filler").open("wb") as file:
        file.write(bytes(shutil.disk_usage(folder).free - leave))


def test_a_full_disk_is_said_in_words_and_the_run_goes_on_later(
    base, data, small_disk, monkeypatch
):
    save, out = RunCheckpoints.save, small_disk / "out"

    def save_and_fill(self, *args):
        save(self, *args)
        fill(small_disk, leave=200_000)  # for the log

    monkeypatch.setattr(RunCheckpoints, "save", save_and_fill)
    with pytest.raises(OSError) as error:
        train(config(base, data, out))
    said = str(error.value)
    assert f"output_dir={out}: no room for epoch_0_step_4, which takes about " in said
    assert re.search(r" MB; \d+\.\d kB are free\. epoch_0_step_2 is complete", said)
    assert said.splitlines()[-1].endswith(RESUME)
    assert not (out / checkpoint.SCRATCH).exists()
    monkeypatch.undo()
    with pytest.raises(OSError, match=r"a checkpoint takes about .* MB, and .* kB are"):
        train(config(base, data, out, resume_from_checkpoint=True))
    (small_disk / "filler").unlink()
    train(config(base, data, out, resume_from_checkpoint=True))
    assert checkpoint.latest(out).name == "epoch_0"


def test_room_is_looked_at_before_training(base, data, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: Usage(0, 0, 10_000_000))
    with pytest.raises(OSError, match="takes about 3.* MB, and 10.0 MB are free. Free"):
        train(config(base, data, tmp_path))
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_other_errors_of_a_save_stay_what_they_are(base, data, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("something else")

    monkeypatch.setattr(RunCheckpoints, "_export", fail)
    with pytest.raises(RuntimeError, match="something else"):
        train(config(base, data, tmp_path), 2)
    assert not (tmp_path / checkpoint.SCRATCH).exists()


def test_a_folder_that_is_deleted_is_no_success(base, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    save = RunCheckpoints.save

    def delete_and_save(self, *args):
        subprocess.run(["rm", "-r", out], check=True)
        save(self, *args)

    monkeypatch.setattr(RunCheckpoints, "save", delete_and_save)
    with pytest.raises(
        FileNotFoundError, match="was deleted or replaced while the run"
    ):
        train(config(base, data, out))
    assert not out.exists()


@pytest.mark.parametrize("averaged", [{}, {"ema_decay": 0.5}], ids=["last", "both"])
def test_sizes(base, data, tmp_path, averaged):
    """What is foretold of a checkpoint is about what it takes, and rather more."""

    def foretold(recipe):
        return recipe._checkpoints._sizes.resumable - space._BESIDE

    cfg = config(base, data, tmp_path, stop__steps=1, **averaged)
    (size,) = train(cfg, 1, foretold)
    files = [p for p in (tmp_path / "epoch_0_step_1").rglob("*") if p.is_file()]
    taken = sum(path.stat().st_size for path in files)
    assert 0.9 < taken / size < 1.5


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_model_is_counted_in_the_dtype_that_it_is_exported_in(
    base, data, tmp_path, dtype
):
    cfg = config(base, data, tmp_path, stop__steps=1, dtype=dtype)
    (weights,) = train(cfg, 1, lambda recipe: recipe._checkpoints._sizes.weights)
    (model,) = (tmp_path / "epoch_0_step_1").glob("model*.safetensors")
    assert 1 < model.stat().st_size / weights < 1.1


@pytest.mark.parametrize("selection", ["uniform", "content"])
def test_the_memory_is_counted(base, data, tmp_path, selection):
    """That of all pairs, in which the addresses of ``content`` are most of the bytes."""

    def foretold(recipe):
        return recipe._checkpoints._sizes

    keys = {"weight": 1, "selection": selection, "address_top_k": 100}
    cfg = config(base, data, tmp_path, **{f"replay__{k}": v for k, v in keys.items()})
    (sizes,) = train(cfg, 1, foretold)
    files = (tmp_path / "epoch_0" / "memory").iterdir()
    taken = sum(path.stat().st_size for path in files)
    assert 0.6 < taken / sizes.memory < 1.5
    more = sizes._replace(memory=sizes.memory + 1)
    assert more.resumable == sizes.resumable + 1
    assert more.run(cfg, 1) == sizes.run(cfg, 1) + 3  # two that are kept, and a new one


@pytest.mark.parametrize(("draw_from", "times"), [("all", 1), ("inherited", 2)])
def test_inherited_pairs_have_slots_beside_the_capacity_if_only_they_are_drawn(
    draw_from, times
):
    keys = ["dataset.size=50", "replay.capacity=20", "replay.selection=uniform"]
    cfg = load("tiny_synth", [*keys, f"replay.draw_from={draw_from}"])
    run = PreparedRun(cfg, torch.device("cpu"))
    assert memory_bytes(run, 20) == pytest.approx(times * memory_bytes(run), abs=1)


def test_the_error_of_safetensors_tells_that_the_disk_is_full(small_disk):
    with pytest.raises(SafetensorError) as error:
        save_file({"weight": torch.zeros(11_000_000)}, small_disk / "x.safetensors")
    (small_disk / "x.safetensors").unlink(missing_ok=True)
    assert space.is_full_disk(error.value, small_disk, needed=0)
    assert not space.is_full_disk(SafetensorError("other"), small_disk, needed=0)


@pytest.mark.parametrize("write", [torch.save, save_file])
def test_a_limit_of_files_is_a_full_disk_with_free_space(tmp_path, write):
    """As a quota is, which only the system can set."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises((RuntimeError, SafetensorError)) as error:
            write({"weight": torch.zeros(1_000_000)}, tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert space.is_full_disk(error.value, tmp_path, needed=0)


@pytest.mark.parametrize(
    ("size", "words"),
    [(7, "7 bytes"), (1234, "1.2 kB"), (4.94e9, "4.9 GB"), (2e15, "2000.0 TB")],
)
def test_readable(size, words):
    assert space.readable(size) == words
