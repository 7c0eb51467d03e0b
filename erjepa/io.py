"""Files that one part writes and another reads: their names, JSON lines, whole or absent."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

# Of an evaluation.
PREDICTIONS = "predictions.jsonl"
SUMMARY = "summary.json"
# Of an experiment.
EXPERIMENT = "experiment.json"
RESULTS = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment keeps of a scored checkpoint: a line of ``results.jsonl``.

    Args:
        cell (str): the run, such as ``synth/llm-jepa/seed_82``.
        dataset (str): as the experiment calls it.
        method (str): as the experiment calls it.
        seed (int): of the run.
        overrides (Mapping[str, Any]): what the run sets on the command line.
        checkpoint (str): name of the checkpoint's folder.
        budget (float | None): FLOPs that it was saved at; None: at the end of an epoch or
            of the run.
        steps (int): optimizer steps up to it.
        total_flops (float): training compute up to it.
        total_tokens (int): tokens processed up to it.
        epoch (float): passes over the training pairs up to it.
        split (str): what was scored, ``test`` or ``validation``.
        task (str): of the dataset.
        accuracy (float): share of examples that are right, by ``primary``.
        primary (str): the reading of the answers that is the accuracy.
        readings (Mapping[str, float]): every reading of the answers, to its share.
        examples (int): how many were scored.
        predictions (str): file of the predictions, in the experiment's folder.
        log (str): the run's log, in the experiment's folder.
        train_seconds (float): training up to it, without evaluation.
        eval_seconds (float | None): scoring it.
        of (int | None): checkpoints of the run that were scored, each a line; None: an older
            line does not say.
    """

    cell: str
    dataset: str
    method: str
    seed: int
    overrides: Mapping[str, Any]
    checkpoint: str
    budget: float | None
    steps: int
    total_flops: float
    total_tokens: int
    epoch: float
    split: str
    task: str
    accuracy: float
    primary: str
    readings: Mapping[str, float]
    examples: int
    predictions: str
    log: str
    train_seconds: float
    eval_seconds: float | None
    of: int | None = None


def read_results(output_dir: Path) -> list[Result]:
    """The scored checkpoints of an experiment, in order of completion.

    Args:
        output_dir (Path): its folder. A last line that is being written is left out.

    Returns:
        list[Result]: one for each line; fields that are not known are left out.

    Raises:
        ValueError: naming file and line, if a line is no result.
    """
    path, names = output_dir / RESULTS, [field.name for field in fields(Result)]
    needed = [field.name for field in fields(Result) if field.default is MISSING]
    if not path.exists():
        return []
    results = []
    for where, row in read_jsonl(path, growing=True):
        if missing := [name for name in needed if name not in row]:
            raise ValueError(f"{where}: no field {', '.join(missing)}")
        results.append(Result(**{name: row[name] for name in names if name in row}))
    return results


def whole_cells(results: Iterable[Result]) -> set[str]:
    """The runs all of whose lines are there, also after a file was cut off or edited."""
    found: dict[str, dict[str, int]] = {}
    for result in results:
        found.setdefault(result.cell, {})[result.checkpoint] = result.of or 0
    return {cell for cell, lines in found.items() if len(lines) >= max(lines.values())}


def add_results(output_dir: Path, results: Iterable[Result]) -> None:
    """Add scored checkpoints to an experiment's, all of them or, if killed, none."""
    path = output_dir / RESULTS
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # not the half of a line
    write_whole(path, whole + to_jsonl(map(asdict, results)))


def read_jsonl(
    path: Path, name: str | None = None, *, growing: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with the place it was read, ``FILE:LINE``.

    Args:
        path (Path): the file. Empty lines count, but hold nothing.
        name (str | None): what the places call it; ``None``: its path.
        growing (bool): whether a last line that is cut off is left out.

    Yields:
        tuple[str, dict[str, Any]]: place and object, in order.

    Raises:
        ValueError: naming the place, if a line is not a JSON object.
    """
    # As bytes, so that a line that is no UTF-8 is found out where its number is known.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{name or path}:{number}"
            if growing and not line.endswith(b"\n") and not _is_json(line):
                return
            require_utf8(line, name or str(path), number)
            try:
                fields = json.loads(line.decode("utf-8-sig").rstrip())
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{where}: not JSON ({error.msg}, column {error.colno})"
                ) from None
            except RecursionError:
                raise ValueError(f"{where}: JSON that is nested too deeply") from None
            if not isinstance(fields, dict):
                raise ValueError(
                    f"{where}: expected a JSON object, got {type(fields).__name__}"
                )
            yield where, fields


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def require_utf8(content: bytes, name: str, line: int = 1) -> None:
    """Fail where a text is of another encoding.

    Args:
        content (bytes): the text, or a line of it.
        name (str): of its file.
        line (int): number of its first line.

    Raises:
        ValueError: naming line and column of the first byte that is no UTF-8.
    """
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        line += before.count("\n")
        raise ValueError(
            f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}, column "
            f"{len(before) - before.rfind(chr(10))}); if it is Latin-1, convert it: "
            "iconv -f LATIN1 -t UTF-8"
        ) from None


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of JSON for each row."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_whole(path: Path, text: str) -> None:
    """Write a file aside, then put it in place: a killed process leaves the file before.

    Args:
        path (Path): the file, replaced if there is one.
        text (str): what it is to hold.
    """
    aside = path.with_name(f".{path.name}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
