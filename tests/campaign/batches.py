"""Attacks with malformed batch outputs and targets, which no serving engine would write."""

import json
import random
from pathlib import Path
from typing import Any

from erjepa.commands.score import main
from tests.campaign.attack import REFUSED, UNHARMED, Attack, Lost, Try, called
from tests.campaign.files import harm
from tests.campaign.inputs import alter
from tests.campaign.queries import TEXTS, mutate

_COUNT = 6


def batches(folder: Path) -> Try:
    """Lines with odd values, damaged bytes, duplicates, another order, or missing lines."""

    def attempt(rng: random.Random, scratch: Path) -> str:
        targets = [
            {"custom_id": str(i), "target": rng.choice(TEXTS), "prompt": "?"}
            for i in range(_COUNT)
        ]
        answers = [_answer(rng, target) for target in targets]
        rng.shuffle(answers)
        paths = scratch / "answers.jsonl", scratch / "targets.jsonl"
        for path, rows in zip(paths, (answers, targets), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        harmed = rng.choice(paths)
        for _ in range(rng.randint(0, 2)):
            _spoil(rng, harmed)
        arguments = ["exact_match", str(paths[0]), "--targets", str(paths[1])]
        # Of two files that do not belong together either may be named.
        outcome, printed = called(main, arguments, *paths)
        if outcome == REFUSED:
            return REFUSED
        right, count = _right(*paths)
        found = json.loads(printed)["exact_match"]
        if (found["right"], found["examples"]) != (right, count):
            raise Lost(f"{right} of {count} are right, not {found}")
        return UNHARMED

    return attempt


def _answer(rng: random.Random, target: dict[str, str]) -> dict[str, Any]:
    text = target["target"]
    if rng.random() < 0.3:
        text = mutate(rng, text, TEXTS)
    choice: dict[str, Any] = {"text": text, "finish_reason": "stop"}
    if rng.random() < 0.7:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "choices": [choice]}
    response = {"status_code": 200, "request_id": "x", "body": body}
    return {"custom_id": target["custom_id"], "response": response, "error": None}


def _spoil(rng: random.Random, path: Path) -> None:
    lines = path.read_text(errors="surrogateescape").splitlines()
    if not lines or rng.random() < 0.2:
        if path.stat().st_size:
            harm(rng, path, None)
        if not path.exists():
            path.touch()
        return
    at, way = rng.randrange(len(lines)), rng.choice(["alter"] * 4 + ["twice", "remove"])
    if way == "twice":
        lines.insert(rng.randint(0, len(lines)), lines[at])
    elif way == "remove":
        del lines[at]
    else:
        try:
            row = json.loads(lines[at])
        except ValueError:
            return
        if isinstance(row, dict):
            alter(rng, row)
            lines[at] = json.dumps(row)
    text = "\n".join(lines) + "\n"
    path.write_text(text, errors="surrogateescape")


def _right(answers: Path, targets: Path) -> tuple[int, int]:
    """Count the answers that equal their targets, and all answers, without any checks."""
    said = {}
    for line in filter(str.strip, answers.read_text().splitlines()):
        row = json.loads(line)
        choice = row["response"]["body"]["choices"][0]
        message = choice.get("message")
        text = choice.get("text") if message is None else message["content"]
        refused = message is not None and message.get("refusal")
        said[row["custom_id"]] = None if refused else text
    rows = [json.loads(line) for line in targets.read_text().splitlines() if line]
    right = [said[row["custom_id"]] == row["target"].strip() for row in rows]
    return sum(right), len(rows)


ATTACKS = [Attack("odd batch files", 1000, 1, batches)]
