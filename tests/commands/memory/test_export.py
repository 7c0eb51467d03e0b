"""Exporting a memory as chats, for another trainer."""

import json
import re

import pytest
from omegaconf import OmegaConf
from torchtune.data import Message

from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main
from erjepa.commands.memory.reading import CONFIG, read_slots
from erjepa.configs import load
from erjepa.datasets import build_dataset
from erjepa.datasets.chat_template import ChatTemplate
from erjepa.models.smollm2 import smollm2_tokenizer
from erjepa.models.smollm2.gguf_checkpoint import write_checkpoint
from tests.harness.data import write_jsonl
from tests.harness.smollm2 import write_gguf

CHATS = [
    [("user", "line 1"), ("assistant", "a|b")],
    [("system", "Convert."), ("user", "lines\nwith 'é' "), ("assistant", "\t.* ")],
    [
        *(("user", "a"), ("assistant", "b|c")),
        *(("user", '"d" \\ {{ e }} <|x|>'), ("assistant", "日")),
    ],
    [
        *(("system", "s"), ("user", "a"), ("assistant", "b")),
        *(("user", "c"), ("assistant", "d")),
    ],
]


def turns(chat):
    return [{"role": role, "content": content} for role, content in chat]


@pytest.fixture
def memory(tmp_path):
    """Made of a file of chats."""
    chats = ({"messages": turns(chat)} for chat in CHATS)
    source = write_jsonl(tmp_path / "chats.jsonl", chats)
    main(["create", str(tmp_path / "memory"), *of(source)])
    OmegaConf.clear_resolver("package_dir")  # as in a process of its own
    return tmp_path / "memory"


def of(source):
    parts = ["dataset=erjepa.datasets.paired_dataset", f"dataset.source={source}"]
    return ["--config", "tiny_synth", *parts]


def test_one_pair_is_counted_as_one(tmp_path, caplog, capsys):
    source = write_jsonl(tmp_path / "chat.jsonl", [{"messages": turns(CHATS[0])}])
    memory = str(tmp_path / "memory")
    main(["create", memory, *of(source)])
    main([memory])
    main(["export", memory, str(tmp_path / "exported.jsonl")])
    main(["forget", memory, "--source", source, "--dry-run"])
    main(["forget", memory, "--source", source])
    said = capsys.readouterr().out
    assert not re.search(r"\b1 (pairs|records|slots|examples)\b", caplog.text + said)
    assert f"{memory}/memory holds 1 pair; its capacity is 1." in said
    for verb in ("Wrote 1 pair to", "Would delete 1 pair from", "Deleted 1 pair from"):
        assert verb in said
    main([memory, "--html", str(tmp_path / "m.html")])
    assert "holds 0 pairs" in capsys.readouterr().out
    assert '"about": "0 pairs' in (tmp_path / "m.html").read_text()


def test_a_dataset_of_the_file_is_tokenized_alike(memory, tmp_path, capsys):
    file = tmp_path / "exported.jsonl"
    main(["export", str(memory), str(file)])
    assert f"Wrote 4 pairs to {file}" in capsys.readouterr().out
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0] == {
        "messages": turns(CHATS[0]),
        "origin": str(tmp_path / "chats.jsonl"),
        "where": f"{tmp_path / 'chats.jsonl'}:1",
    }
    cfg = load("tiny_synth", of(file)[2:])
    dataset = build_dataset(cfg.dataset, cfg.tokenizer.build())
    stored = open_memory(memory)
    assert len(dataset) == len(stored) == len(CHATS)
    for i, pair in enumerate(stored.pairs):
        assert dataset[i].segments == pair.segments


def test_a_source_of_several_turns_is_shown_as_turns(memory, tmp_path, capsys):
    texts = read_slots(open_memory(memory)).source
    assert texts[1] == "lines\nwith 'é'"
    assert texts[2] == 'user: a\nassistant: b|c\nuser: "d" \\ {{ e }} <|x|>'
    assert texts[3] == "user: a\nassistant: b\nuser: c"


@pytest.mark.parametrize("chat", CHATS)
def test_chatml_is_read_back(tmp_path, chat):
    write_checkpoint(write_gguf(tmp_path / "small.gguf"), tmp_path / "base", "org/name")
    tokenizer = smollm2_tokenizer(str(tmp_path / "base" / "tokenizer.json"))
    template = ChatTemplate(tokenizer)
    segments = template([Message(role=role, content=text) for role, text in chat])
    found = PairTexts(tokenizer).messages(segments)
    assert found == turns([(role, text.strip()) for role, text in chat])
    with pytest.raises(ValueError, match="not those of a chat"):
        PairTexts(tokenizer).messages((segments[3][1:], *segments[1:]))


def test_errors_are_one_line(memory, tmp_path, capsys):
    def refused(*arguments):
        with pytest.raises(SystemExit):
            main(["export", *map(str, arguments)])
        return capsys.readouterr().err.splitlines()[-1]

    inside = memory / "memory" / "chats.jsonl"
    assert "is a run's own; choose a file elsewhere" in refused(memory, inside)
    assert "none does not exist" in refused(tmp_path / "none", tmp_path / "x.jsonl")
    existing = tmp_path / "chats.jsonl"
    assert f"{existing} exists; choose another name" in refused(memory, existing)
    (memory / CONFIG).unlink()
    assert f"has a {CONFIG}, which names" in refused(memory, tmp_path / "x.jsonl")
