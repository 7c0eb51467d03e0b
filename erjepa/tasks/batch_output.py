"""Reads the answers of a serving engine, in OpenAI's batch format, as predictions to score."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from erjepa.utils.checked import checked
from erjepa.utils.escape import one_line
from erjepa.utils.jsonl import read_jsonl

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

# The fields used here of OpenAI's batch output, chat completion and completion objects.


@dataclass
class _Response:
    body: Any = None
    status_code: int = 200


@dataclass
class _Line:
    custom_id: str
    response: _Response | None
    error: Any = None


@dataclass
class _Message:
    content: str | None
    refusal: str | None = None


@dataclass
class _Choice:
    message: _Message | None = None  # set by chat completions
    text: str | None = None  # set by completions
    finish_reason: str | None = None


@dataclass
class _Body:
    choices: Annotated[Sequence[_Choice], Field(min_length=1)]


@dataclass
class _Target:
    custom_id: str
    target: str


T = TypeVar("T", _Line, _Target)


def is_batch_output(path: Path) -> bool:
    """Return whether the first line of a JSONL file is in the format of a batch's output."""
    _, first = next(read_jsonl(path), ("", {}))
    return {"custom_id", "response"} <= first.keys()


def read_batch_output(path: Path, targets: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read the answers in a file as predictions, in the order of the targets.

    Returns:
        For each target its file and line, and its prediction. If the model refused to answer or
        gave no text, ``output`` is empty and ``unanswered`` has the reason.

    Raises:
        ValueError: naming file and line, if a line does not have the format, or a request failed,
            was answered twice or is unknown; naming the file, if an answer is missing.
    """
    expected = _by_id(targets, _Target)
    answers = {}
    for name, (where, _, line) in _by_id(path, _Line).items():
        if name not in expected:
            raise ValueError(f"{where}: custom_id {name!r} is not in {targets}")
        answers[name] = _answer(line, where)
    if missing := [name for name in expected if name not in answers]:
        raise ValueError(
            f"{path}: {len(missing)} of {len(expected)} prompts have no answer, first "
            f"custom_id {missing[0]!r}; ask them again"
        )
    return [
        (where, _prediction(name, fields) | answers[name])
        for name, (where, fields, _) in expected.items()
    ]


def _by_id(path: Path, kind: type[T]) -> dict[str, tuple[str, dict[str, Any], T]]:
    """Return the lines of a file by ``custom_id``: file and line, fields, and parsed object."""
    lines: dict[str, tuple[str, dict[str, Any], T]] = {}
    for where, fields in read_jsonl(path):
        line = checked(kind, fields, where)
        if line.custom_id in lines:
            first, *_ = lines[line.custom_id]
            raise ValueError(
                f"{where}: custom_id {line.custom_id!r} already occurs at {first}"
            )
        lines[line.custom_id] = where, fields, line
    return lines


def _answer(line: _Line, where: str) -> dict[str, Any]:
    response = line.response or _Response()
    body = response.body if isinstance(response.body, dict) else {}
    why = line.error or body.get("error")
    if why or response.status_code != 200:
        why = one_line(str(why or f"status {response.status_code}"))
        raise ValueError(f"{where}: the request failed ({why}); ask it again")
    choice = checked(_Body, response.body, f"{where}: response.body").choices[0]
    text, refusal = choice.text, None
    if choice.message is not None:
        text, refusal = choice.message.content, choice.message.refusal
    elif text is None:
        raise ValueError(f"{where}: response.body: choices[0] has no message or text")
    answer: dict[str, Any] = {"finished": choice.finish_reason != "length"}
    if refusal or text is None:
        why = f"refused: {refusal}" if refusal else "no content"
        return {"output": "", **answer, "unanswered": why}
    return {"output": text, **answer}


def _prediction(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    is_number = re.fullmatch("0|[1-9][0-9]{0,17}", name)
    left_out = ("custom_id", "prompt_token_ids")
    scored = {k: v for k, v in fields.items() if k not in left_out}
    return {"id": int(name) if is_number else name, **scored}
