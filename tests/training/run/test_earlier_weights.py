"""Which adapters a run starts from, or merges, and over which base each was trained."""

import json
import re
import shutil

import pytest
import torch
from torchtune.modules.peft import LoRALinear

from erjepa.configs import load
from erjepa.training.run.earlier_weights import (
    found_adapters,
    require_start,
    require_trained_over,
)
from erjepa.training.run.inherited import InheritedMemories
from erjepa.training.run.start import find_starts
from tests.harness.memories import write_run


def test_an_adapter_belongs_to_the_base_it_was_trained_over(tmp_path):
    config = "output_dir: run\nbase_adapters: [a, b]\n"
    (tmp_path / "torchtune_config.yaml").write_text(config)
    path = tmp_path / "epoch_0"
    require_trained_over(path, ["a", "b"])
    require_trained_over(path, ["a", "b", "c"], "path")  # c was trained over the same
    for given, to_merge, needed in (
        (["a"], None, "a,b"),
        (["a", "b", "c"], None, "a,b"),
        (["a"], "path", "a,b,path"),
    ):
        message = rf"2 adapters merged in; set base_adapters=\[{needed}\]"
        with pytest.raises(ValueError, match=message):
            require_trained_over(path, given, to_merge)
    for name in "ab":
        (tmp_path / name / "epoch_0").mkdir(parents=True)
    a, b = (str(tmp_path / name / "epoch_0") for name in "ab")
    (tmp_path / "torchtune_config.yaml").write_text(f"base_adapters: [{a}, {b}]\n")
    require_trained_over(path, [str(tmp_path / "a"), b])
    with pytest.raises(ValueError, match=rf"set base_adapters=\[{a},{b}\]"):
        require_trained_over(path, [b, a])


def test_what_cannot_be_continued_is_named_by_its_key(tmp_path, monkeypatch):
    def weights(cfg, starts):
        decoder = LoRALinear(1, 1, rank=1, alpha=1.0)
        require_start(cfg, starts[cfg.init_from], decoder)

    def whole_weights(cfg, starts):
        require_start(cfg, starts[cfg.init_from], torch.nn.Linear(1, 1))

    def memory(cfg, starts):
        InheritedMemories(cfg, "x", starts)

    def message(load_it, *overrides):
        cfg = load("hf_continual", [f"continue_from={tmp_path}", *overrides])
        with pytest.raises((FileNotFoundError, ValueError)) as error:
            load_it(*find_starts(cfg, resume=False))
        return str(error.value)

    for module in ("inherited", "start"):
        monkeypatch.setattr(
            f"erjepa.training.run.{module}.on_rank_zero", lambda call: call()
        )
    start = f"continue_from={tmp_path}"
    assert message(memory).startswith(
        f"continue_from: {tmp_path} holds no memory. Give"
    )
    assert message(weights).startswith(f"{start} holds no adapter_model.pt")
    write_run(tmp_path, "epoch_0", "epoch_1")
    (tmp_path / "epoch_1" / "progress.json").write_text("{}")
    assert message(weights).startswith(
        f"{start}: the run trained all weights, and this one trains adapters. Set the "
        f"model of that run, or make {tmp_path}/epoch_1 the base model"
    )
    no_weights = f"{tmp_path}/epoch_1 holds no merged weights, model*.safetensors"
    assert message(whole_weights).startswith(f"{start}: {no_weights}. ")


def adapter(folder, *merged):
    """A checkpoint's adapter that was trained over these."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.pt").touch()
    progress = {"base_adapters": list(map(str, merged))}
    (folder / "progress.json").write_text(json.dumps(progress))
    return folder


def test_the_recorded_adapters_are_used_or_missed(tmp_path):
    january, february = tmp_path / "january", tmp_path / "february"
    recorded, newest = (adapter(january / f"epoch_{i}") for i in range(2))
    february.mkdir()
    (february / "torchtune_config.yaml").write_text(f"base_adapters: [{recorded}]\n")
    copy = adapter(tmp_path / "copy", recorded)  # away from its run
    cfg = load("tiny_synth", [f"base_adapters=[{january}]"])
    for run in (february, copy):
        assert found_adapters(cfg, run) == [str(recorded)]
    shutil.rmtree(recorded)
    for run in (february, copy):
        with pytest.raises(FileNotFoundError, match="january/epoch_0, which is gone"):
            found_adapters(cfg, run)
    assert found_adapters(cfg, None) == [str(newest)]


def test_a_run_is_the_same_from_another_folder(tmp_path, monkeypatch):
    january = adapter(tmp_path / "runs" / "january" / "epoch_0")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    cfg = load("tiny_synth", ["base_adapters=[../runs/january]"])
    adapter(tmp_path / "runs" / "february" / "epoch_0", *found_adapters(cfg, None))
    monkeypatch.chdir(tmp_path)
    cfg = load("tiny_synth", ["base_adapters=[runs/january,runs/february]"])
    found, _ = found_adapters(cfg, None)
    assert january.samefile(found)


def test_the_best_checkpoint_is_recorded_and_not_the_link_to_it(tmp_path):
    january = tmp_path / "january"
    first, second = (adapter(january / f"best_step_{i}") for i in range(2))
    (january / "best").symlink_to(first.name)
    cfg = load("tiny_synth", [f"base_adapters=[{january}/best]"])
    assert found_adapters(cfg, None) == [str(first)]
    february = adapter(tmp_path / "february" / "epoch_0", first)
    (january / "best").unlink()
    (january / "best").symlink_to(second.name)
    assert found_adapters(cfg, None) == [str(second)]
    assert found_adapters(cfg, february) == [str(first)]
    require_trained_over(february, [f"{january}/best"])
    shutil.rmtree(first)  # by the run, once it is no longer the best
    with pytest.raises(FileNotFoundError, match="january/best_step_0, which is gone"):
        found_adapters(cfg, february)


def test_adapters_are_merged_as_the_later_ones_were_trained(tmp_path):
    january, february, march = (tmp_path / m for m in ("january", "february", "march"))
    recorded, newest = (adapter(january / f"epoch_{i}") for i in range(2))
    second = adapter(february / "epoch_0", recorded)

    def found(*runs):
        names = ",".join(map(str, runs))
        return found_adapters(load("tiny_synth", [f"base_adapters=[{names}]"]), None)

    assert found(january, february) == [str(recorded), str(second)]
    # A third one that was trained over another base decides.
    third = adapter(march / "epoch_0", newest, second)
    assert found(january, february, march) == [str(newest), str(second), str(third)]
    shutil.rmtree(recorded)
    with pytest.raises(FileNotFoundError, match="january/epoch_0, which is gone"):
        found(january, february)


def test_no_adapter_is_merged_twice(tmp_path):
    months = "january", "february", "march", "april"
    january, february, march, april = (tmp_path / month for month in months)
    starts = {january: march, february: january, march: february, april: january}
    for run, start in starts.items():
        for epoch in range(2):
            adapter(run / f"epoch_{epoch}")
        key = "init_from" if run == march else "continue_from"
        text = f"output_dir: {run}\n{key}: {start}\n" if run != january else ""
        (run / "torchtune_config.yaml").write_text(text)

    def found(*runs, resumed=None):
        names = ",".join(map(str, runs))
        return found_adapters(load("tiny_synth", [f"base_adapters=[{names}]"]), resumed)

    alone = adapter(tmp_path / "alone")
    for *twice, run in (
        (january, march, january),  # by way of february
        (march, january, january),
        (february, april, january),
        (january / "epoch_0", february, january),
        (january / "epoch_0", january / "epoch_1", january),
        (january, january, january),
        (alone, alone, alone),
    ):
        names = " and ".join(map(str, twice))
        message = f"{names} both contain the adapter of {run}, which would be merged"
        with pytest.raises(ValueError, match=re.escape(message)):
            found(*twice)
        assert len(found(*twice, resumed=tmp_path)) == 2  # as it was trained
    assert found(march) == [str(march / "epoch_1")]
    (january / "torchtune_config.yaml").write_text(f"continue_from: {march}\n")
    assert len(found(adapter(tmp_path / "other"), march)) == 2  # names may lead back


def test_of_a_run_that_was_moved_the_recorded_adapter_is_merged(tmp_path):
    january, february, moved = (tmp_path / m for m in ("january", "february", "moved"))
    recorded, _ = (adapter(january / f"epoch_{i}") for i in range(2))
    second = adapter(february / "epoch_0", recorded)
    january.rename(moved)
    expected = str(moved / recorded.name)
    cfg = load("tiny_synth", [f"base_adapters=[{moved}]"])
    both = load("tiny_synth", [f"base_adapters=[{moved},{february}]"])
    require_trained_over(second, [str(moved)])
    assert found_adapters(cfg, second) == [expected]
    assert found_adapters(both, None) == [expected, str(second)]
    with pytest.raises(ValueError, match="set base_adapters"):
        require_trained_over(second, [str(moved / "epoch_1")])
    shutil.rmtree(expected)
    for found in (
        lambda: found_adapters(cfg, second),
        lambda: found_adapters(both, None),
    ):
        with pytest.raises(FileNotFoundError, match="moved/epoch_0, which is gone"):
            found()


def test_a_moved_run_is_used_by_its_folder(tmp_path):
    """Its recorded adapters are those that were moved along with it."""
    old, new = tmp_path / "old", tmp_path / "new"
    recorded, _ = (adapter(old / "january" / f"epoch_{i}") for i in range(2))
    adapter(old / "february" / "epoch_0", recorded)
    text = (
        f"defaults: tiny_synth\noutput_dir: {old}/february\nbase_adapters: [{recorded}]"
    )
    (old / "february" / "torchtune_config.yaml").write_text(text)
    old.rename(new)
    expected = [str(new / "january" / "epoch_0")]
    cfg = load(str(new / "february"))
    for run in (None, new / "february", new / "february" / "epoch_0"):
        assert found_adapters(cfg, run) == expected
    require_trained_over(new / "february" / "epoch_0", cfg.base_adapters)
    both = load("tiny_synth", [f"base_adapters=[{new}/january,{new}/february]"])
    assert found_adapters(both, None) == [*expected, str(new / "february" / "epoch_0")]
    shutil.rmtree(expected[0])
    with pytest.raises(FileNotFoundError, match="new/january/epoch_0, which is gone"):
        found_adapters(cfg, new / "february")
