"""A list of datasets is one dataset whose examples know their origin."""

import re

import pytest
from torchtune.data import InputOutputToMessages

from erjepa.configs import Component, load
from erjepa.datasets import PairedDataset, Record, build_dataset
from tests.harness.data import chat, write_jsonl
from tests.harness.runs import read_metrics, small_config, train


@pytest.fixture
def sources(tmp_path):
    """Two files: 3 pairs in columns of usual names, and 13 in chats."""
    columns = [{"input": f"column {i}", "output": f"a{i}"} for i in range(3)]
    chats = [chat(f"chat {i}", f"b{i}") for i in range(13)]
    return [
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        for name, rows in (("columns", columns), ("chats", chats))
    ]


SYNTHETIC = Component("erjepa.datasets.synthetic_nl_rx_dataset", {"size": 2})


def part(source):
    return Component("erjepa.datasets.paired_dataset", {"source": source})


def test_examples_of_the_parts_in_order(tokenizer, sources):
    parts = list(map(part, sources))
    dataset = build_dataset(parts, tokenizer)
    alone = [build_dataset(one, tokenizer) for one in parts]
    assert len(dataset) == 16 and dataset.task == "exact_match"
    expected = [(d, i) for d in alone for i in range(len(d))]
    for example_id, (mine, i) in enumerate(expected):
        assert dataset[example_id] == mine[i]._replace(example_id=example_id)
        assert dataset.origin(example_id) == alone.index(mine)
        for name in ("where", "prompt", "target_text", "source_text", "scoring_fields"):
            assert getattr(dataset, name)(example_id) == getattr(mine, name)(i)
        ours, theirs = dataset.messages(example_id), mine.messages(i)
        assert [m.text_content for m in ours] == [m.text_content for m in theirs]
    assert dataset.names == [*alone[0].names, *alone[1].names] == sources
    assert dataset.ask("column 0") == dataset.prompt(0)


def test_a_list_of_one_is_that_dataset(tokenizer):
    one, both = (build_dataset([SYNTHETIC] * n, tokenizer) for n in (1, 2))
    assert one.names == ["synthetic_nl_rx_dataset(size=2)"]
    assert both.names == one.names * 2 and both.origin(3) == 1
    assert one.task == both.task == "nl_rx"
    assert build_dataset(SYNTHETIC, tokenizer).names == one.names


def test_parts_of_several_tasks_need_one_named(tokenizer, sources):
    dataset = build_dataset([part(sources[0]), SYNTHETIC], tokenizer)
    with pytest.raises(
        ValueError, match="different tasks, exact_match, nl_rx; set task"
    ):
        _ = dataset.task


def strangers(tokenizer):
    return [1, 2]


def test_something_else_than_pairs(tokenizer):
    with pytest.raises(ValueError, match="dataset: its builder returned a list of int"):
        build_dataset(Component(f"{__name__}.strangers"), tokenizer)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"source": None}, "{}.source=null names no pairs; give {}.source=FILE"),
        ({"source": "nowhere.jsonl"}, "set {}.source to a file"),
        ({"max_examples": 0}, "{}.max_examples=0 must"),
        ({"sample_seed": 1}, "{}.sample_seed=1 needs {}.max_examples"),
        ({"column_map": {"input": "a"}}, "Set {}.column_map.input to"),
        ({"column_mpa": {}}, "{}.column_mpa: a file or folder takes"),
        (
            {"source": "dataset.jsonl"},
            "dataset.jsonl:1: .*Name them with {}.column_map",
        ),
        ({"source": "dataset.jsonl"}, "{}=erjepa.datasets.classific.* {}.source=FILE"),
    ],
)
def test_an_error_names_the_key_of_the_section(
    tokenizer, sources, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "dataset.jsonl", [{"text": "a", "label": "b"}])
    good = part(sources[0])
    bad = good.with_arguments(**arguments)
    for section, key, place in (
        (bad, "dataset", "dataset"),
        (bad, "eval_dataset", "eval_dataset"),
        ([good, bad], "eval_dataset", r"eval_dataset\[1\]"),
    ):
        with pytest.raises((ValueError, FileNotFoundError)) as raised:
            build_dataset(section, tokenizer, key)
        assert re.search(rf"(^|[ ;]){said.replace('{}', place)}", str(raised.value))


def test_a_list_on_the_command_line(sources):
    parts = ", ".join(
        f"{{_component_: erjepa.datasets.paired_dataset, source: {source}}}"
        for source in sources
    )
    cfg = load("tiny_synth", [f"dataset=[{parts}]"])
    assert cfg.dataset == list(map(part, sources))


def test_a_run_on_a_list_is_that_on_the_pairs_in_one(base, sources, tmp_path):
    """And its card names both."""
    parts = [part(source).as_dict() for source in sources]
    in_one = {"_component_": f"{__name__}.both", "sources": sources}
    for name, data in (("list", parts), ("one", in_one)):
        settings = {"epochs": 1, "validation__size": 4}
        train(small_config(base, data, tmp_path / name, **settings))
    timed = ("tokens_per_second_per_gpu", "pairs_per_second")
    in_list, in_one = (
        [{k: v for k, v in step.items() if k not in timed} for step in steps]
        for steps in (read_metrics(tmp_path / "list"), read_metrics(tmp_path / "one"))
    )
    common = [
        {name: metrics[name] for name in alone}
        for metrics, alone in zip(in_list, in_one, strict=True)
    ]
    assert common == in_one and len(in_one) == 3
    more = {name for metrics in in_list for name in metrics} - in_one[-1].keys()
    assert more == {
        f"{name}_{label}"
        for name in ("lm_loss", "jepa_loss", "replayed")
        for label in ("columns", "chats")
    } | {"val_lm_loss_chats", "val_jepa_loss_chats"}  # all that are held out
    card = (tmp_path / "list" / "README.md").read_text()
    assert f"`paired_dataset(source={sources[1]})` |" in card


def both(tokenizer, *, sources):
    parts = [build_dataset(part(s), tokenizer) for s in sources]
    fields = [
        {"input": d.source_text(i), "output": d.target_text(i)}
        for d in parts
        for i in range(len(d))
    ]
    records = [Record(str(i), row) for i, row in enumerate(fields)]
    return PairedDataset(records, tokenizer, InputOutputToMessages())
