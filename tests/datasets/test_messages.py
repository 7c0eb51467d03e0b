"""The columns determine how a record is read; unread columns are reported."""

import logging

import pytest

from erjepa.datasets import Record, paired_dataset
from erjepa.datasets.messages import messages_of
from tests.harness.data import chat, write_jsonl

CHAT = chat("one", "1", "Count.")
SHAREGPT = {
    "conversations": [
        {"from": "system", "value": "Count."},
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "1"},
    ]
}


@pytest.fixture
def read(tokenizer, tmp_path):
    """The dataset of some records."""

    def read(*records, **options):
        source = write_jsonl(tmp_path / "a.jsonl", records)
        return paired_dataset(tokenizer, source=source, **options)

    return read


def turns(dataset, index=0):
    return [(m.role, m.text_content) for m in dataset.messages(index)]


@pytest.mark.parametrize(
    ("record", "column_map"),
    [
        (CHAT, None),
        (SHAREGPT, None),
        ({"messages": SHAREGPT["conversations"]}, None),
        ({"conversations": CHAT["messages"]}, None),
        ({"turns": SHAREGPT["conversations"]}, {"messages": "turns"}),
        ({"turns": CHAT["messages"]}, {"conversations": "turns"}),
    ],
)
def test_chats_of_either_kind(read, record, column_map):
    dataset = read(record, column_map=column_map)
    expected = [("system", "Count."), ("user", "one"), ("assistant", "1")]
    assert turns(dataset) == expected
    replaced = read(record, column_map=column_map, new_system_prompt="New.")
    assert turns(replaced) == [("system", "New."), *expected[1:]]


@pytest.mark.parametrize(
    ("column", "said", "chat"),
    [("messages", "content", CHAT), ("conversations", "value", SHAREGPT)],
)
def test_texts_in_parts_are_joined(read, column, said, chat):
    """Llama 3's tokenizer strips each part, so white space between parts would be lost."""

    def asking(content):
        system, user, answer = chat[column]
        return read({column: [system, {**user, said: content}, answer]})

    texts = ("one\n", "and two")
    parts = asking([{"type": "text", "text": text} for text in texts])
    assert parts[0] == asking("".join(texts))[0]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("input", "output"),
        ("prompt", "completion"),
        ("question", "answer"),
        ("source", "target"),
    ],
)
def test_columns_that_have_usual_names(read, source, target):
    dataset = read({"id": "7", source: "one", target: "1"}, new_system_prompt="Count.")
    expected = [("system", "Count."), ("user", "one"), ("assistant", "1")]
    assert turns(dataset) == expected


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"Question": "one", "ANSWER ": "1"}, "Question as source, ANSWER  as target"),
        ({"Messages": CHAT["messages"]}, "chats in Messages"),
        ({"Conversations": CHAT["messages"]}, "chats in Conversations"),
        (
            {"Instruction": "Say", "Input": "one", " output": "1"},
            "Alpaca's Instruction, Input as source,  output as target",
        ),
        (
            {"Question": "2", "Answer": "2", "input": "one", "output": "1"},
            "input as source, output as target",
        ),
        (
            {"question": "one", "Question": "2", "Answer": "1"},
            "question as source, Answer as target",
        ),
    ],
)
def test_usual_names_in_another_case_or_with_white_space(read, record, expected):
    assert str(messages_of([Record("a:1", record)])) == expected
    assert turns(read(record))[-1] == ("assistant", "1")
    with pytest.raises(ValueError, match="no field 'answer'; it has"):
        read(record, column_map={"output": "answer"})


def test_nested_fields(read):
    record = {"in": {"text": "one", "id": 3}, "out": [{"text": "1"}], "more": {}}
    names = {"input": "in.text", "output": "out"}
    with pytest.raises(
        ValueError, match="a.jsonl:1: column 'out' holds .* .list.; exp"
    ):
        read(record, column_map=names)
    record["out"] = {"best": {"text": "1"}}
    names["output"] = "out.best.text"
    assert turns(read(record, column_map=names)) == [
        ("user", "one"),
        ("assistant", "1"),
    ]
    with pytest.raises(ValueError, match="no field 'in'; it has .'in.id', 'in.text'"):
        read(record, column_map={**names, "input": "in"})


def test_an_image_is_not_opened(read):
    dataset = read({"input": "one", "output": "1", "image": "absent.png"})
    assert turns(dataset) == [("user", "one"), ("assistant", "1")]


@pytest.mark.parametrize("more", [{}, {"input": ""}, {"input": None}])
def test_alpaca_without_input(read, more):
    dataset = read({"instruction": "Say one.", **more, "output": "1"})
    ((_, user), answer) = turns(dataset)
    assert "### Instruction:\nSay one.\n\n### Response" in user
    assert answer == ("assistant", "1")


def test_alpaca_whose_first_record_has_no_input(read):
    add = {"instruction": "Add.", "input": "1 1", "output": "2"}
    dataset = read({"instruction": "Say one.", "output": "1"}, add)
    assert "### Input:" not in turns(dataset)[0][1]
    assert "### Input:\n1 1\n" in turns(dataset, 1)[0][1]


def test_alpaca_whose_input_no_record_has(read):
    names = {"instruction": "a", "output": "b", "input": "typo"}
    with pytest.raises(ValueError, match="no field 'typo'; it has"):
        read({"a": "x", "b": "y", "input": "z"}, column_map=names)


def test_an_input_that_is_no_text(read):
    add = {"instruction": "Double.", "input": 0.5, "output": "1"}
    with pytest.raises(ValueError, match=r"column 'input' holds 0.5 \(float\)"):
        read(add)


def test_integers_are_read_as_texts(read):
    assert turns(read({"question": 12, "answer": 0})) == [
        ("user", "12"),
        ("assistant", "0"),
    ]
    (_, source), _ = turns(read({"instruction": "Double.", "input": 0, "output": 0}))
    assert "### Input:\n0\n" in source
    with pytest.raises(ValueError, match=r"column 'answer' holds True \(bool\)"):
        read({"question": "Is it?", "answer": True})


def test_alpaca_keeps_its_instruction(read):
    record = {"instruction": "Add.", "input": "1 1", "output": "2"}
    renamed = {"task": "Add.", "text": "1 1", "result": "2"}
    names = {"instruction": "task", "input": "text", "output": "result"}
    for dataset in (read(record), read(renamed, column_map=names)):
        ((_, user), _) = turns(dataset)
        assert "### Instruction:\nAdd.\n\n### Input:\n1 1\n" in user
    dataset = read(record, new_system_prompt="Count.")
    assert turns(dataset)[0] == ("system", "Count.")


def test_a_source_of_ones_own_is_put_as_those_of_the_dataset(read):
    chats = read(CHAT)
    assert chats.ask("one") == chats.prompt(0)
    assert chats.ask("one", "") == read(CHAT, new_system_prompt=None).ask("one", "")
    assert bytes(t for t in chats.ask("two", "Hm.") if t < 256) == (
        b"system\n\nHm.user\n\ntwoassistant\n\n"
    )
    alpaca = read({"instruction": "Say one.", "output": "1"})
    assert alpaca.ask("Say one.") == alpaca.prompt(0)


@pytest.mark.parametrize(
    ("records", "options", "said"),
    [
        (
            [{"question": "one", "answer": "1", "id": 3}] * 2,
            {},
            "2 records; question as source, answer as target; not read: id.",
        ),
        (
            [{"instruction": "Add.", "input": "1", "output": "2"}],
            {"column_map": {"input": "input", "output": "output"}},
            "1 record; input as source, output as target; not read: instruction.",
        ),
        (
            [CHAT, {**CHAT, "note": "late"}, {**CHAT, "empty": None}],
            {"max_examples": 2},
            "3 records, 2 kept; chats in messages; not read: note.",
        ),
        ([SHAREGPT], {}, "1 record; ShareGPT's chats in conversations; no other col"),
        (
            [{"instruction": "Add.", "input": "1", "output": "2"}],
            {},
            "Alpaca's instruction, input as source, output as target; no other column.",
        ),
        (
            [{"messages": [{**turn, "weight": 0} for turn in CHAT["messages"]]}],
            {},
            "chats in messages; not read: messages.weight.",
        ),
        (
            [{"input": "one", "output": "1", "ids": {i: i for i in range(21)}}],
            {},
            "not read: " + "".join(f"ids.{i}, " for i in range(20)) + "....",
        ),
    ],
)
def test_what_was_read_is_said_in_a_line(read, caplog, records, options, said):
    logger = logging.getLogger("erjepa.datasets.paired")
    logger.propagate = True
    with caplog.at_level(logging.INFO):
        read(*records, **options)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a.jsonl: " in line and said in line


PAIR = {"input": "one", "output": "1"}


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"output": None}, "a.jsonl:2: column 'output' holds null; expected a text"),
        (
            {"output": 4.5},
            r"a.jsonl:2: column 'output' holds 4.5 \(float\); expected a",
        ),
        ({"output": ["1"]}, r"a.jsonl:2: column 'output' holds \['1'\] \(list\)"),
        ({"output": " "}, "a.jsonl:2: column 'output' is empty"),
        ({"input": ""}, "a.jsonl:2: column 'input' is empty"),
        ({"input": "a\ud800"}, "a.jsonl:2: column 'input' holds a lone surrogate"),
    ],
)
def test_cells_that_are_no_text(read, record, error):
    with pytest.raises(ValueError, match=error):
        read(PAIR, {**PAIR, **record})


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"question": "one", "answer": None}, "column 'answer' holds null; expected a"),
        ({"instruction": None, "output": "1"}, "column 'instruction' holds null; exp"),
        ({"messages": None, "id": 3}, "column 'messages' holds no list of turns"),
        ({**PAIR, "input": None, "source": None, "target": None}, ".* read input, out"),
    ],
)
def test_null_cells_of_the_first_record(read, record, error):
    with pytest.raises(ValueError, match=f"a.jsonl:1: {error}"):
        read(record)


def test_columns_without_values_in_the_first_record_do_not_tell(read):
    record = {"messages": None, **PAIR, "source": None, "target": None}
    assert turns(read(record)) == [("user", "one"), ("assistant", "1")]


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        ({"role": "user"}, "turn 1: expected role and content, got {'role': 'user'}"),
        (
            {"role": "boss", "content": "a"},
            "turn 1: role is 'boss', expected system, us",
        ),
        ({"role": "user", "content": None}, "turn 1: content holds null"),
        ({"role": "user", "content": 4}, r"turn 1: content holds 4 \(int\)"),
        (
            {"role": "user", "content": {"type": "text", "text": "a"}},
            "turn 1: content holds {'type': 'text', 'text': 'a'} .dict.; expected a text",
        ),
        ("one", "turn 1: expected role and content, got 'one'"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "turn 1: {'type': 'image_url', 'image_url': {}} is no text",
        ),
        ({"role": "user", "content": ["a"]}, "turn 1: 'a' is no text"),
    ],
)
def test_turns_that_are_no_text(read, turn, error):
    first, _, last = CHAT["messages"]
    with pytest.raises(ValueError, match=f"a.jsonl:2: column 'messages', {error}"):
        read(CHAT, {"messages": [first, turn, last]})


def test_a_role_that_sharegpt_does_not_have(read):
    talk = [{"from": "user", "value": "a"}, {"from": "gpt", "value": "b"}]
    with pytest.raises(ValueError, match="turn 0: from is 'user', expected system, hu"):
        read({"conversations": talk})


@pytest.mark.parametrize(
    ("record", "column_map", "error"),
    [
        (
            {"a": "1", "b": "2"},
            None,
            r"a.jsonl:1: .*columns \['a', 'b'\]; none of them.* for chats$",
        ),
        (
            {"text": "1", "label": "2"},
            None,
            "; for texts with labels: .* dataset=erjepa.datasets.classification_dataset data",
        ),
        (
            {**PAIR, "question": "1", "answer": "2"},
            None,
            "read input, output or question, answer\\? Name them with dataset.column_map.input=",
        ),
        ({**PAIR, **CHAT}, None, "read messages or input, output"),
        (
            PAIR,
            {"input": "input"},
            "^dataset.column_map names input; expected input and output",
        ),
        (
            PAIR,
            {"input": "input", "target": "output"},
            "^dataset.column_map names .*expected inp",
        ),
        ({"messages": "hello"}, None, "column 'messages' holds no list of turns"),
    ],
)
def test_columns_that_do_not_tell(read, record, column_map, error):
    with pytest.raises(ValueError, match=error):
        read(record, column_map=column_map)


def test_columns_that_a_later_record_lacks(read):
    with pytest.raises(
        ValueError,
        match=r"a.jsonl:2: no field 'output'; it has \['input'\]$",
    ):
        read(PAIR, {"input": "two"})


def test_an_argument_that_nothing_takes(read):
    with pytest.raises(
        ValueError, match="dataset.column_mpa: a file or folder takes so"
    ):
        read(PAIR, column_mpa={"input": "input", "output": "output"})
