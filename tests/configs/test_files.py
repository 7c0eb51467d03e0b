"""A config merges its base config, its file and the overrides, in this order."""

import pytest

from erjepa.configs import Component, load, merge, merged, read, with_overrides
from erjepa.utils.files import CONFIG

BASE = """
output_dir: /tmp/base
epochs: 2
stop: {steps: 3, tokens: null}
dataset:
  _component_: erjepa.datasets.nl_rx_dataset
  subset: synth
  split: train
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / f"{name}.yaml").write_text(text)
        return str(tmp_path / f"{name}.yaml")

    write("base", BASE)
    return write


def values(path, *overrides):
    return with_overrides(merged(path), overrides)


def test_a_file_says_what_differs(write):
    child = write("child", "defaults: base.yaml\nepochs: 3\nstop: {steps: 5}\n")
    grandchild = write("grandchild", "defaults: child\noutput_dir: /tmp/grandchild\n")
    expected = {**values(write("base", BASE)), "output_dir": "/tmp/grandchild"}
    expected |= {"epochs": 3, "stop": {"steps": 5, "tokens": None}}
    assert values(grandchild) == expected
    assert values(child) == {**expected, "output_dir": "/tmp/base"}


def test_a_file_may_start_from_a_packaged_one(write):
    mine = write("mine", "defaults: tiny_synth\nbatch_size: 3\n")
    assert load(mine) == load("tiny_synth", ["batch_size=3"])


def test_a_run_is_where_its_config_is(write, tmp_path):
    """It may have been moved or copied; its logs go there, too."""
    run, text = tmp_path / "moved", "defaults: tiny_synth\noutput_dir: before\n"
    (run / "epoch_0").mkdir(parents=True)
    (run / "torchtune_config.yaml").write_text(text)
    for name in ("", "epoch_0", "torchtune_config.yaml"):
        cfg = load(str(run / name))
        assert cfg.output_dir == str(run)
        assert cfg.metric_logger.get("log_dir") == f"{run}/logs"
        assert load(str(run / name), ["output_dir=given"]).output_dir == "given"
    assert load(write("own", text)).output_dir == "before"


def test_base_adapters_that_were_moved_along_with_a_run(tmp_path):
    """Whether the output_dir is written out or follows from another key."""
    for name in ("january", "february"):
        (tmp_path / "new" / name).mkdir(parents=True)
        (tmp_path / "new" / name / CONFIG).touch()
    file = tmp_path / "new" / "february" / CONFIG
    for folder in ("/old/february", "/old/${base_model}"):
        text = f"base_model: february\noutput_dir: {folder}\n"
        file.write_text(f"defaults: tiny_synth\n{text}base_adapters: [/old/january]\n")
        assert load(str(file)).base_adapters == [str(tmp_path / "new" / "january")]
    for wrong in ("/old/january", "[1]"):
        file.write_text(f"defaults: tiny_synth\nbase_adapters: {wrong}\n")
        with pytest.raises(ValueError, match="^base_adapters.*should be a valid"):
            load(str(file))


def test_a_continued_run_s_config_continues_from_another_run(tmp_path):
    text = "defaults: tiny_continual\ncontinue_from: a\ninit_from: a\nreplay: {init_from: a}"
    (tmp_path / "torchtune_config.yaml").write_text(text)
    for overrides, start in ((), "a"), (["continue_from=b"], "b"):
        cfg = load(str(tmp_path), overrides)
        assert (cfg.init_from, cfg.replay.init_from) == (start, start)
    with pytest.raises(
        ValueError, match="continue_from=a sets init_from, but init_fro"
    ):
        load(str(tmp_path), ["init_from=c"])


@pytest.mark.parametrize(
    "started",
    [
        "continue_from: a\ninit_from: a\nreplay: {init_from: [a, b]}",
        "init_from: b\nreplay: {init_from: c}",
        "init_from: b",
        "replay: {init_from: [b, c]}",
    ],
)
def test_any_run_s_config_continues_from_that_run(tmp_path, started):
    file = tmp_path / "torchtune_config.yaml"
    file.write_text(f"defaults: tiny_continual\n{started}")
    cfg = load(str(tmp_path), [f"continue_from={tmp_path}", "output_dir=next"])
    assert cfg.init_from == cfg.replay.init_from == str(tmp_path)
    both = f"replay.init_from=[{tmp_path},b]"
    cfg = load(str(tmp_path), [f"continue_from={tmp_path}", both])
    assert (cfg.init_from, cfg.replay.init_from) == (
        str(tmp_path),
        [str(tmp_path), "b"],
    )
    file.write_text("defaults: tiny_continual\ninit_from: b\nreplay: null")
    cfg = load(str(tmp_path), [f"continue_from={tmp_path}"])
    assert cfg.init_from == str(tmp_path) and not cfg.replay.weight


def test_a_resumed_run_s_config_starts_another_run(tmp_path):
    """With ``auto`` a new run can start, so it stays."""
    for recorded, expected in (("True", (False, None)), ("auto", ("auto", ["seed"]))):
        (tmp_path / "torchtune_config.yaml").write_text(
            f"defaults: tiny_synth\nresume_from_checkpoint: {recorded}\nresume_changes: [seed]"
        )
        cfg = load(str(tmp_path))
        assert (cfg.resume_from_checkpoint, cfg.resume_changes) == expected
        resumed = load(str(tmp_path), ["resume_from_checkpoint=True"])
        assert resumed.resume_from_checkpoint is True


def test_a_component_replaces_the_arguments_of_another(write):
    own = {"_component_": "erjepa.datasets.paired_dataset", "source": "a.jsonl"}
    child = write("child", f"defaults: base\ndataset: {own}\n")
    assert values(child)["dataset"] == own
    key = write("key", "defaults: base\ndataset: {subset: turk}\n")
    assert values(key)["dataset"] == {
        "_component_": "erjepa.datasets.nl_rx_dataset",
        "subset": "turk",
        "split": "train",
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ["dataset=erjepa.datasets.paired_dataset", "dataset.source=a.jsonl"],
        ["dataset.source=a.jsonl", "dataset=erjepa.datasets.paired_dataset"],
        [
            "dataset.source=a.jsonl",
            "dataset._component_=erjepa.datasets.paired_dataset",
        ],
        ["dataset={_component_: erjepa.datasets.paired_dataset, source: a.jsonl}"],
    ],
)
@pytest.mark.parametrize(
    "name", ["tiny_synth", "llama3_2_1b_synth", "smollm2_135m_gsm8k"]
)
def test_own_pairs_on_any_config(name, overrides):
    cfg = load(name, overrides)
    expected = {"source": "a.jsonl"}
    assert cfg.dataset == Component("erjepa.datasets.paired_dataset", expected)
    assert cfg.eval_dataset == load(name).eval_dataset


def test_own_pairs_replace_a_list_of_datasets(write):
    parts = [{"_component_": "erjepa.datasets.paired_dataset", "source": "a.jsonl"}] * 2
    path = write("two", f"dataset: {parts}\ncheckpoint_dir: [a]\n")
    for own in (
        ["dataset=erjepa.datasets.paired_dataset", "dataset.source=c.jsonl"],
        ["dataset.source=c.jsonl", "dataset=erjepa.datasets.paired_dataset"],
    ):
        assert values(path, *own)["dataset"] == {**parts[0], "source": "c.jsonl"}
    assert values(path, "checkpoint_dir=b")["checkpoint_dir"] == "b"


def test_a_key_of_an_entry_of_a_list(write):
    parts = [{"_component_": "erjepa.datasets.paired_dataset", "source": "a.jsonl"}] * 2
    path = write("two", f"defaults: tiny_synth\ndataset: {parts}\n")
    for key in ("dataset[1].source", "dataset.1.source"):
        changed = values(path, f"{key}=c.jsonl")["dataset"]
        assert changed == [parts[0], {**parts[1], "source": "c.jsonl"}]
    assert values(path)["dataset"] == parts
    assert values(path, "dataset={}")["dataset"] == {}
    with pytest.raises(ValueError, match=r"dataset must .*got \{'2'"):
        load(path, ["dataset[2].source=c.jsonl"])


def test_a_component_where_the_config_has_none():
    own = ["eval_dataset=erjepa.datasets.paired_dataset", "eval_dataset.source=a.jsonl"]
    for overrides in (own, own[::-1]):
        assert values("smollm2_135m_continual", *overrides)["eval_dataset"] == {
            "_component_": "erjepa.datasets.paired_dataset",
            "source": "a.jsonl",
        }
    path = "erjepa.datasets.gsm8k_dataset"
    for null in ("null", "None", "~", ""):
        cfg = load("tiny_synth", [f"eval_dataset={null}", f"dataset={path}"])
        assert cfg.eval_dataset is None and cfg.dataset == Component(path)
    own = ["dataset.source=a.jsonl", f"eval_dataset={path}"]
    assert load("smollm2_135m_continual", own).eval_dataset == Component(path)


def test_overrides():
    cfg = values(
        "tiny_synth",
        *("~dataset.split", "optimizer.lr=1e-3", "stop.steps=None", "output_dir=a=b"),
    )
    expected = merged("tiny_synth")
    del expected["dataset"]["split"]
    expected["optimizer"]["lr"], expected["output_dir"] = 1e-3, "a=b"
    assert cfg == expected
    assert load("tiny_synth", ["~eval_dataset"]).eval_dataset is None
    # As the old command lines have it: what is removed belonged to the component before.
    removed = ["dataset=erjepa.datasets.paired_dataset", "~dataset.size"]
    assert list(values("tiny_synth", *removed)["dataset"]) == ["_component_"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a #b", "a #b"),
        ("# Role: expert", "# Role: expert"),
        ("~", None),
        ("one\n two", "one\n two"),
        ("Translate: {input}", "Translate: {input}"),
        ("a: b: c", "a: b: c"),
        ("- a", "- a"),
        ("'007'", "007"),
        ('"a #b"', "a #b"),
        ("{a: b #c}", None),
        ("{a: b}", {"a": "b"}),
        ("[1, b]", [1, "b"]),
        ("1e-3", 1e-3),
        ("07", 7),
        ("true", True),
        ("", None),
        ("${output_dir}/x: y", "${output_dir}/x: y"),
    ],
)
def test_texts_of_overrides_stay_whole(value, expected):
    """As typed, where YAML would make comments or keys of parts of them."""
    if value == "{a: b #c}":
        with pytest.raises(ValueError, match="^a.b=.*: while parsing"):
            with_overrides({}, ["c=1", f"a.b={value}"])
        return
    assert with_overrides({}, [f"a.b={value}"]) == {"a": {"b": expected}}


def test_folders_may_be_numbers_and_below_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    keys = ["output_dir=202602", "continue_from=202601", "dataset.source=~/a.jsonl"]
    cfg = load("smollm2_135m_continual", keys)
    assert (cfg.output_dir, cfg.continue_from) == ("202602", "202601")
    assert cfg.dataset.get("source") == "/home/ann/a.jsonl"
    assert cfg.metric_logger.get("log_dir") == "202602/logs"


def test_numbers_of_files_keep_their_zeros():
    cfg = load(
        "llama3_2_3b_synth", ["checkpointer.checkpoint_files.max_filename=00007"]
    )
    assert cfg.checkpointer.get("checkpoint_files")["max_filename"] == "00007"
    assert load("llama3_1_8b_synth").checkpointer.get("checkpoint_files") == {
        "filename_format": "model-{}-of-{}.safetensors",
        "max_filename": "00004",
    }


def test_interpolations_stay():
    cfg = load("tiny_synth", ["output_dir=/tmp/mine"])
    assert cfg.metric_logger.get("log_dir") == "/tmp/mine/logs"
    other = read({**cfg.as_written(), "output_dir": "/tmp/other"})
    assert other.metric_logger.get("log_dir") == "/tmp/other/logs"


def test_what_is_read_can_be_changed():
    """A file is read once; each reader has values of its own."""
    before = merged("tiny_synth")["optimizer"]["lr"]
    merged("tiny_synth")["optimizer"]["lr"] = 0
    assert merged("tiny_synth")["optimizer"]["lr"] == before != 0


def test_merging_leaves_its_arguments_alone():
    base, changes = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(base, changes) == {"a": {"b": 1, "c": 2}}
    assert (base, changes) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "epochs: expected key=value"),
        ("=3", "=3: expected key=value"),
        ("~dataset.sise", "~dataset.sise: the config has no such key to remove"),
        ("~seed.x", "~seed.x: the config has no such key"),
        ("epochs=[1", r"epochs=\[1: while parsing"),
        ("epochs=!!int x", r"epochs=!!int x: invalid literal"),
    ],
)
def test_bad_overrides(override, message):
    with pytest.raises(ValueError, match=message):
        load("tiny_synth", [override])


def test_a_key_below_a_list_is_refused():
    pairs = "dataset=[{_component_: erjepa.datasets.paired_dataset, source: a.jsonl}]"
    with pytest.raises(ValueError, match="dataset.source=b.jsonl: dataset is a list"):
        load("tiny_synth", [pairs, "dataset.source=b.jsonl"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "bad.yaml: expected keys and values"),
        ("a: [1\nb: 2\n", "bad.yaml: not YAML: .*line 2"),
        ("a: 1\na: 2\n", "bad.yaml: not YAML: .*duplicate"),
        ("defaults: other\n", "bad.yaml: its defaults lead back to itself"),
    ],
)
def test_bad_files(write, text, message):
    write("other", "defaults: bad\n")
    with pytest.raises(ValueError, match=f"(?s){message}"):
        load(write("bad", text))


def test_absent_files(write):
    with pytest.raises(FileNotFoundError, match="no packaged config .*tiny_synth"):
        load("tiny_sinth")
    with pytest.raises(
        FileNotFoundError, match=r"bad.yaml: defaults: config tiny_sinth"
    ):
        load(write("bad", "defaults: tiny_sinth\n"))
