"""Answers of a serving engine, in OpenAI's batch format, as predictions to score."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erjepa.utils.jsonl import read_jsonl


def is_batch_output(path: Path) -> bool:
    """Whether the first line of a JSONL file is one of a batch's output."""
    _, first = next(read_jsonl(path), ("", {}))
    return {"custom_id", "response"} <= first.keys()


def read_batch_output(path: Path, targets: Path) -> list[dict[str, Any]]:
    """Predictions of the answers in a file, in the order of the targets.

    Args:
        path (Path): output of a batch, of chats or of completions. Lines may come in any
            order.
        targets (Path): what ``python -m erjepa.prompts`` wrote beside the prompts.

    Returns:
        list[dict[str, Any]]: for each target ``id``, ``prompt``, ``target``, ``output``,
        whether it ``finished`` by itself, and the task's fields.

    Raises:
        ValueError: naming file and line, if a request failed, is answered twice or was
            never asked, or naming the file, if an answer is missing.
    """
    asked = {}
    for where, fields in read_jsonl(targets):
        if not {"custom_id", "target"} <= fields.keys():
            raise ValueError(
                f"{where}: expected custom_id and target, as python -m erjepa.prompts "
                f"writes them; the line has {sorted(fields)}"
            )
        asked[fields["custom_id"]] = fields
    answers: dict[str, dict[str, Any]] = {}
    for where, line in read_jsonl(path):
        name = str(line.get("custom_id"))
        if name not in asked:
            raise ValueError(f"{where}: custom_id {name!r} is not in {targets}")
        if name in answers:
            raise ValueError(f"{where}: custom_id {name!r} is answered twice")
        answers[name] = _answer(line, where)
    if missing := [name for name in asked if name not in answers]:
        raise ValueError(
            f"{path}: {len(missing)} of {len(asked)} prompts have no answer, first "
            f"custom_id {missing[0]!r}; ask them again"
        )
    return [_prediction(fields, answers[name]) for name, fields in asked.items()]


def _answer(line: Mapping[str, Any], where: str) -> dict[str, Any]:
    response = line.get("response") or {}
    status, body = response.get("status_code", 200), response.get("body") or {}
    choices = body.get("choices")
    if line.get("error") or status != 200 or not choices:
        why = line.get("error") or body.get("error") or f"status {status}"
        raise ValueError(f"{where}: the request failed ({why}); ask it again")
    choice = choices[0]
    text = choice["message"]["content"] if "message" in choice else choice.get("text")
    finished = choice.get("finish_reason") != "length"
    return {"output": text or "", "finished": finished}


def _prediction(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    name = asked["custom_id"]
    fields = {
        k: v for k, v in asked.items() if k not in ("custom_id", "prompt_token_ids")
    }
    return {"id": int(name) if name.isdecimal() else name, **fields, **answer}
