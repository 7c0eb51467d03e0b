"""The runs that a run was continued from: what they were scored on, and what they answered."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtune import utils

from erjepa.checkpoints.peft_adapter import is_peft_adapter
from erjepa.checkpoints.stored_memory import memory_folder
from erjepa.configs import Config, merged, resolved
from erjepa.evaluation.examples import SCORED, Examples
from erjepa.evaluation.predictions import SETTINGS, name_of_scores
from erjepa.evaluation.run import find_run
from erjepa.tasks.score import read_predictions
from erjepa.tasks.summary import change
from erjepa.tasks.task import Prediction, Task
from erjepa.utils.checked import checked
from erjepa.utils.files import EMA, PREDICTIONS, SUMMARY
from erjepa.utils.jsonl import parse_json
from erjepa.utils.summary import Change

log = utils.get_logger("INFO")

# Keys that say, in addition to the dataset, what is scored and how.
_HOW = ("validation", "task", "primary", "databases", "max_new_tokens")


@dataclass(frozen=True)
class _Replay:
    init_from: str | list[str] | None = None


@dataclass(frozen=True)
class _Config:
    """What counts here of the config of a run."""

    output_dir: str = ""
    init_from: str | None = None
    base_adapters: list[str] | None = None
    replay: _Replay | None = None

    @property
    def starts(self) -> list[Path]:
        """What the run started from: ``continue_from`` sets two keys."""
        memories = self.replay.init_from if self.replay else None
        memories = [memories] if isinstance(memories, str) else memories or []
        merged = reversed(self.base_adapters or [])
        return [Path(start) for start in (self.init_from, *merged, *memories) if start]


@dataclass(frozen=True)
class _Settings:
    """What counts here of an evaluation's settings, which have one of the two datasets."""

    max_new_tokens: int
    eval_dataset: Any = None
    dataset: Any = None


@dataclass(frozen=True)
class _Answer:
    """What tells an example of an evaluation from others."""

    id: int
    prompt: str
    target: str


@dataclass(frozen=True)
class EarlierRun:
    """A run that another one was continued from.

    Args:
        config: file of its config.
        checkpoint: folder of the weights that were continued from.
        key: of the pairs that are scored.
        pairs: that the config has under it; ``None``: none.
        how: keys of the config that say how they are scored.
        name: of the checkpoint's scores, see :func:`name_of_scores`.
        scores: folder of each finished evaluation of the run, and its settings.
    """

    config: Path
    checkpoint: Path
    key: str
    pairs: Any
    how: Mapping[str, Any]
    name: str
    scores: Sequence[tuple[Path, _Settings]]

    def datasets(self) -> Iterator[dict[str, Any]]:
        """The keys of each dataset that it was scored on; of none, that of its config."""
        for _, settings in self.scores:
            limit = {"max_new_tokens": settings.max_new_tokens}
            yield {**self.how, self.key: getattr(settings, self.key), **limit}
        if not self.scores and self.pairs is not None:
            yield {**self.how, self.key: self.pairs}

    def predictions(self, pairs: Any) -> Path | None:
        """File of what the checkpoint answered to these pairs, if it was scored on them."""
        for folder, settings in self.scores:
            is_of_checkpoint = folder.name.partition("_on_")[0] == self.name
            if is_of_checkpoint and getattr(settings, self.key) == pairs:
                return folder / PREDICTIONS
        return None

    def scoring_command(self, pairs: Any) -> str:
        """The command that scores the checkpoint on these pairs; ``None``: on a file."""
        overrides = [f"checkpoint_dir={self.checkpoint}"]
        overrides += ["eval_split=validation"] * (self.key == SCORED["validation"])
        overrides += ["merged=True"] * self.name.endswith("_merged")
        if pairs is None:
            overrides += [f"{self.key}=erjepa.datasets.paired_dataset"]
            overrides += [f"{self.key}.source=FILE"]
        elif pairs != self.pairs:
            overrides.append(f"{self.key}={json.dumps(pairs)}")
        command = ["tune", "run", "erjepa_eval", "--config", str(self.config)]
        return shlex.join([*command, *overrides])


def earlier_runs(path: Path, cfg: Config) -> list[EarlierRun]:
    """The runs before the one that wrote a checkpoint, nearest first.

    The config in the folder of a run names what it started from; where the checkpoint lies in
    none, ``cfg`` does. A run that is no longer there is warned of; an adapter of PEFT, or a
    memory without a run, is passed over.
    """
    try:
        file, _ = find_run(path)
        waiting = _starts(resolved(merged(str(file))), file)
    except FileNotFoundError:
        waiting = _starts(cfg.as_dict())
    runs: dict[Path, EarlierRun] = {}
    while waiting:
        start = waiting.pop(0)
        try:
            file, checkpoint = find_run(start)
        except FileNotFoundError as error:
            if not (is_peft_adapter(start) or memory_folder(start)):
                log.warning(
                    f"What the run {start.absolute()} learned is not scored: {error}."
                )
            continue
        if file.resolve() in runs:
            continue
        if path.name == EMA and (checkpoint / EMA).is_dir():
            checkpoint /= EMA
        config = resolved(merged(str(file)))
        runs[file.resolve()] = _read_run(file, checkpoint, config, cfg)
        waiting += _starts(config, file)
    return list(runs.values())


def _starts(values: Mapping[str, Any], file: Path | None = None) -> list[Path]:
    """What a run started from. Relative paths are those of the folder where it was typed: where
    its own ``output_dir`` is relative too, the place of its config tells which that was.
    """
    cfg = checked(_Config, values, str(file or ""))
    if file is not None:
        folder, relative = file.absolute().parent.parts, Path(cfg.output_dir).parts
        typed_in = Path(*folder[: -len(relative)])
        if folder[-len(relative) :] == relative and typed_in != Path.cwd():
            return [typed_in / start for start in cfg.starts]
    return cfg.starts


def _read_run(
    file: Path, checkpoint: Path, values: Mapping[str, Any], cfg: Config
) -> EarlierRun:
    key, name = SCORED[cfg.eval_split], name_of_scores(checkpoint, cfg)
    scores = []
    for folder in sorted((file.parent / "evaluation").glob("*/")):
        if (folder / PREDICTIONS).is_file() and (folder / SUMMARY).is_file():
            path = folder / SETTINGS
            content = parse_json(path.read_bytes(), str(path))
            settings = checked(_Settings, content, str(path))
            if getattr(settings, key) is not None:
                scores.append((folder, settings))
    # Those of the checkpoint say best how it is scored.
    scores.sort(key=lambda found: found[0].name.partition("_on_")[0] != name)
    how = {"primary": None} | {key: values[key] for key in _HOW if key in values}
    return EarlierRun(file, checkpoint, key, values.get(key), how, name, scores)


@dataclass(frozen=True)
class Before:
    """What an earlier run answered to examples that are scored again, by example."""

    checkpoint: Path
    answers: Mapping[int, Prediction]

    def compare(self, task: Task, scored: Sequence[Mapping[str, Any]]) -> Change:
        """What became of its answers."""
        verdicts = task.score(list(self.answers.values()))
        now = {prediction["id"]: prediction[task.primary] for prediction in scored}
        return change(
            str(self.checkpoint),
            [verdict[task.primary] is True for verdict in verdicts],
            [now[i] is True for i in self.answers],
        )


def answers_before(runs: Sequence[EarlierRun], examples: Examples) -> Before | None:
    """What the nearest run before answered to those examples that are still the same, if any."""
    for run in runs:
        if (file := run.predictions(examples.section)) is None:
            continue
        stored = read_predictions(file, examples.task)
        known = checked(list[_Answer], stored, str(file))
        pairs = examples.dataset
        asked = {
            i: _Answer(i, pairs.source_text(i), pairs.target_text(i))
            for i in examples.ids
        }
        answers = {
            answer.id: prediction
            for answer, prediction in zip(known, stored, strict=True)
            if asked.get(answer.id) == answer
        }
        if answers:
            return Before(run.checkpoint, answers)
    return None
