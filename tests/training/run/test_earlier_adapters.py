"""Which adapters a run starts from, or merges, and over which base each was trained."""

import shutil
from functools import partial

import pytest

from erjepa.configs import load
from erjepa.training.run.earlier_adapters import (
    adapter_to_start,
    found_adapters,
    require_trained_over,
)
from erjepa.training.run.inherited import earlier_memories
from tests.harness.memories import write_run


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
