"""Batch outputs: malformed lines are errors with their line number; missing answers are counted."""

import json

import pytest

from erjepa.commands.score import main
from erjepa.tasks.batch_output import read_batch_output
from tests.harness.data import write_jsonl

TARGETS = [{"custom_id": str(i), "target": "x", "prompt": "?"} for i in range(3)]


def line(name, message, **choice):
    body = {"choices": [{"message": message, "finish_reason": "stop", **choice}]}
    return {"custom_id": name, "response": {"status_code": 200, "body": body}}


def said(content, **fields):
    return {"role": "assistant", "content": content, **fields}


GOOD = [line(str(i), said("x")) for i in range(3)]


def write(folder, lines, targets=TARGETS):
    paths = folder / "answers.jsonl", folder / "targets.jsonl"
    write_jsonl(paths[0], lines)
    write_jsonl(paths[1], targets)
    return paths


def test_what_is_not_answered_is_counted(tmp_path, capsys):
    lines = [
        line("0", said("x", refusal=None, tool_calls=[])),
        line("2", said(None, refusal="I cannot."), logprobs=None),
        line("1", said(None), finish_reason="length"),
    ]
    answers, targets = write(tmp_path, lines)
    found = [prediction for _, prediction in read_batch_output(answers, targets)]
    assert [p["output"] for p in found] == ["x", "", ""]
    assert [p["finished"] for p in found] == [True, False, True]
    assert [p.get("unanswered") for p in found] == [
        *(None, "no content", "refused: I cannot.")
    ]
    arguments = ["exact_match", str(answers), "--targets", str(targets)]
    main([*arguments, "--output", str(tmp_path / "scored")])
    summary = json.loads(capsys.readouterr().out)
    assert (summary["accuracy"], summary["unanswered"]) == (1 / 3, 2)
    main(["exact_match", str(tmp_path / "scored" / "predictions.jsonl")])
    assert json.loads(capsys.readouterr().out) == summary


@pytest.mark.parametrize("text", ["", "a\x00\ud83d", "0"])
def test_any_text_is_an_answer(text, tmp_path):
    lines = [line("0", None, text=text), line("1", said(text)), GOOD[2]]
    found = read_batch_output(*write(tmp_path, lines))
    shown = text.replace("\ud83d", "?")
    assert [p["output"] for _, p in found] == [shown, shown, "x"]
    assert not any("unanswered" in p for _, p in found)


def answered(body, **response):
    return {
        "custom_id": "1",
        "response": {"status_code": 200, "body": body, **response},
    }


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (line("1", said(0)), "choices[0].message.content: input should be a valid st"),
        (line("1", said(False)), "response.body: choices[0].message.content: input sho"),
        (line("1", said([{"type": "text"}])), "choices[0].message.content: input should"),
        (line("1", {"role": "assistant"}), "choices[0].message.content: field required"),
        (line("1", "x"), "choices[0].message: input should be an object"),
        (line("1", None), "response.body: choices[0] has no message or text"),
        (line("1", None, text=0), "choices[0].text: input should be a valid string"),
        (line("1", said("x"), finish_reason=1), "choices[0].finish_reason: input shou"),
        (answered({"choices": [None]}), "choices[0]: input should be an object"),
        (answered({"choices": {}}), "response.body: choices: input should be a valid a"),
        (answered({"choices": []}), "response.body: choices: value should have at least"),
        (answered({}), "response.body: choices: field required"),
        (answered("oops"), 'response.body: input should be an object, got "oops"'),
        (answered(None), "response.body: input should be an object, got null"),
        (answered("oops", status_code=500), "the request failed (status 500)"),
        (answered({"error": {"code": 1}}), "the request failed ({{'code': 1}})"),
        (answered({}, status_code="200"), "response.status_code: input should be a valid"),
        ({"custom_id": "1", "response": "oops"}, "response: input should be an object"),
        ({"custom_id": "1", "response": None, "error": "a\nb"}, "request failed (a b)"),
        ({"custom_id": 1, "response": None}, "custom_id: input should be a valid string"),
        ({"response": None}, "custom_id: field required"),
        ({"custom_id": "1"}, "response: field required"),
        ({**GOOD[1], "custom_id": "9"}, "custom_id '9' is not in"),
        (GOOD[0], "custom_id '0' already occurs at {}:1"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_named_with_its_line(wrong, error, tmp_path):
    answers, targets = write(tmp_path, [GOOD[0], wrong, GOOD[2]])
    with pytest.raises(ValueError) as raised:
        read_batch_output(answers, targets)
    message = str(raised.value)
    assert message.startswith(f"{answers}:2: ") and "\n" not in message
    assert error.format(answers) in message


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"custom_id": "1"}, "target: field required"),
        ({"custom_id": "1", "target": None}, "target: input should be a valid string"),
        ({"custom_id": 1, "target": "x"}, "custom_id: input should be a valid string"),
        ({"custom_id": "0", "target": "y"}, "custom_id '0' already occurs at {}:1"),
    ],
)
def test_a_wrong_target_is_named_with_its_line(wrong, error, tmp_path):
    answers, targets = write(tmp_path, GOOD, [TARGETS[0], wrong])
    with pytest.raises(ValueError) as raised:
        read_batch_output(answers, targets)
    assert str(raised.value).startswith(f"{targets}:2: ")
    assert error.format(targets) in str(raised.value)


def test_ids_that_are_numbers_stay_apart(tmp_path):
    names = ["3", "03", "\u0663", "9" * 5000]
    targets = [{"custom_id": name, "target": "x"} for name in names]
    lines = [line(name, said("x")) for name in names]
    found = read_batch_output(*write(tmp_path, lines, targets))
    assert [p["id"] for _, p in found] == [3, *names[1:]]


def test_a_target_without_a_field_of_the_task_is_named_with_its_line(tmp_path, capsys):
    answers, targets = write(tmp_path, GOOD)
    with pytest.raises(SystemExit):
        main(["spider", str(answers), "--targets", str(targets)])
    assert f"{targets}:1: no field 'db_id'" in capsys.readouterr().err
