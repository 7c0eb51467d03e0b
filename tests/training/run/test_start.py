"""The files of a run while its ranks start, and the adapters that it starts from."""

import shutil
import time
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from erjepa.configs import load
from erjepa.training.run.inherited import earlier_memories
from erjepa.training.run.start import (
    adapter_to_start,
    build_checkpointer,
    found_adapters,
    require_trained_over,
)
from tests.harness.memories import write_run
from tests.harness.ranks import on_ranks


def slow_checkpointer(output_dir):
    """Makes its folder, as torchtune's does; rank 1 looks for it after rank 0 is done."""
    scratch = Path(output_dir)
    scratch.mkdir(exist_ok=True)
    time.sleep(0.2 + 0.6 * dist.get_rank())
    assert scratch.is_dir(), "another rank removed the folder"
    return scratch


def test_no_rank_removes_a_folder_that_another_is_making(tmp_path):
    checkpointer = f"checkpointer={__name__}.slow_checkpointer"
    cfg = load("tiny_synth", [f"output_dir={tmp_path}", checkpointer])

    on_ranks(lambda: build_checkpointer(cfg), 2)
    assert not (tmp_path / ".partial").exists()


def test_an_adapter_belongs_to_the_base_it_was_trained_over(tmp_path):
    (tmp_path / "torchtune_config.yaml").write_text("base_adapters: [a, b]\n")
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
    def message(load_it, *overrides):
        with pytest.raises(FileNotFoundError) as error:
            load_it(load("hf_continual", [f"continue_from={tmp_path}", *overrides]))
        return str(error.value)

    monkeypatch.setattr(
        "erjepa.training.run.inherited.on_rank_zero", lambda call: call()
    )
    memory = partial(earlier_memories, tokenizer="x", resume=False)
    start = f"continue_from={tmp_path}"
    assert message(memory).startswith(
        f"continue_from: {tmp_path} holds no memory. Give"
    )
    assert message(adapter_to_start).startswith(f"{start} holds no adapter_model.pt")
    write_run(tmp_path, "epoch_0", "epoch_1")
    (tmp_path / "epoch_1" / "progress.json").write_text("{}")
    keys = f"model.path={tmp_path}/epoch_1 replay.init_from={tmp_path}"
    said = message(adapter_to_start)
    assert said.endswith(
        f" whole weights instead; in place of continue_from, set {keys}"
    )
    said = message(adapter_to_start, "replay.weight=0")
    assert said.endswith(f"set model.path={tmp_path}/epoch_1")


def test_the_recorded_adapters_are_used_or_missed(tmp_path):
    january, february = tmp_path / "january", tmp_path / "february"
    for name in ("epoch_0", "epoch_1"):
        (january / name).mkdir(parents=True)
        (january / name / "adapter_model.pt").touch()
    february.mkdir()
    recorded = str(january / "epoch_0")
    (february / "torchtune_config.yaml").write_text(f"base_adapters: [{recorded}]\n")
    cfg = load("tiny_synth", [f"base_adapters=[{january}]"])
    assert found_adapters(cfg, february) == [recorded]
    shutil.rmtree(recorded)
    with pytest.raises(FileNotFoundError, match="january/epoch_0, which is gone"):
        found_adapters(cfg, february)
    assert found_adapters(cfg, None) == [str(january / "epoch_1")]
