"""The earlier runs that a run started from: their scored datasets and stored answers."""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erjepa.checkpoints.checkpoint import (
    name_of_scores,
    progress_of,
    scored_weights,
    with_link,
)
from erjepa.checkpoints.fingerprint import digests_of_files
from erjepa.checkpoints.peft_adapter import is_peft_adapter
from erjepa.checkpoints.stored_memory import memory_folder
from erjepa.configs import Config, merged, resolved
from erjepa.evaluation.examples import SCORED, Examples
from erjepa.evaluation.predictions import SETTINGS
from erjepa.evaluation.run import find_run
from erjepa.tasks.score import read_predictions
from erjepa.tasks.summary import change
from erjepa.tasks.task import Prediction, Task
from erjepa.utils.checked import read_json
from erjepa.utils.files import EMA, PREDICTIONS, config_of_run, moved_along
from erjepa.utils.summary import Change, Summary, scores_of_run

# Keys that determine the scoring and, of held-out pairs, the scored examples.
SCORING = ("validation", "task", "primary", "databases")


@dataclass(frozen=True)
class _Settings:
    """The keys of an evaluation's settings that this module reads; one of the datasets is set."""

    max_new_tokens: int
    eval_dataset: Any = None
    dataset: Any = None
    weights: Any = None  # digests of their files
    scoring: Mapping[str, Any] = field(default_factory=dict)  # values of these keys


_Scores = tuple[Path, _Settings]  # folder of a finished evaluation


@dataclass(frozen=True)
class EarlierRun:
    """A run that another run started from."""

    config: Path
    checkpoint: Path  # folder of the weights that the other run started from
    key: str  # of the scored dataset, ``eval_dataset`` or ``dataset``
    pairs: Any  # value of that key in the config, or ``None``
    how: Mapping[str, Any]  # keys of the config that determine the scoring
    merged: bool  # whether its adapter is scored merged
    own_scores: Sequence[_Scores]  # of the checkpoint
    other_scores: Sequence[_Scores]  # of the run's other checkpoints
    compared: Sequence[Path]  # earlier checkpoints that its scores were compared with

    def datasets(self) -> Iterator[dict[str, Any]]:
        """Yield the keys of each scored dataset; if none was scored, those of the config."""
        # The checkpoint's own come first: they have the settings to repeat.
        scores = [*self.own_scores, *self.other_scores]
        for _, settings in scores:
            limit = {"max_new_tokens": settings.max_new_tokens}
            scored = {self.key: getattr(settings, self.key), **settings.scoring}
            yield {**self.how, **scored, **limit}
        if not scores and self.pairs is not None:
            yield {**self.how, self.key: self.pairs}

    def scores_on(self, pairs: Any) -> _Scores | None:
        """Return the checkpoint's own evaluation on a dataset, or ``None``."""
        for folder, settings in self.own_scores:
            if getattr(settings, self.key) == pairs:
                return folder, settings
        return None

    def scoring_command(self, pairs: Any) -> str:
        """Return the command that scores the checkpoint on ``pairs``; ``None``: on a FILE."""
        overrides = [f"checkpoint_dir={self.checkpoint}"]
        overrides += ["eval_split=validation"] * (self.key == SCORED["validation"])
        overrides += ["merged=True"] * self.merged
        if pairs is None:
            overrides += [f"{self.key}=erjepa.datasets.paired_dataset"]
            overrides += [f"{self.key}.source=FILE"]
        elif pairs != self.pairs:
            value = json.dumps(pairs, ensure_ascii=False)
            overrides.append(f"{self.key}={value}")
        command = ["tune", "run", "erjepa_eval", "--config", str(self.config)]
        return shlex.join([*command, *overrides])


def earlier_runs(
    path: Path, starts: Sequence[Path], cfg: Config, warn: Callable[[str], None]
) -> list[EarlierRun]:
    """Return the runs before the one that wrote a checkpoint, nearest first.

    Its run started from ``starts``, see :func:`starts_of`. ``warn`` is called for a missing run,
    unless a later run was scored on its dataset and compared with it. PEFT adapters and memories
    without a run are skipped.
    """
    waiting, missing = list(starts), dict[Path, str]()
    runs = dict[Path, EarlierRun]()
    while waiting:
        start = waiting.pop(0)
        try:
            file, checkpoint = _find_run(start)
        except FileNotFoundError as error:
            if not (is_peft_adapter(start) or memory_folder(start)):
                whole = Path(os.path.abspath(start))
                missing[whole] = f"forgetting since {whole} is not measured: {error}"
            continue
        if file.resolve() in runs:
            continue
        run = _read_run(file, checkpoint, cfg, averaged=path.name == EMA)
        runs[file.resolve()] = run
        waiting += starts_of(run.checkpoint, cfg)
    compared = [path for run in runs.values() for path in run.compared]
    for whole, text in missing.items():
        if not any(path.is_relative_to(whole) for path in compared):
            warn(text)
    return list(runs.values())


def _find_run(start: Path) -> tuple[Path, Path]:
    """Return the config and the checkpoint of an earlier run, which may have deleted it since."""
    file = config_of_run(start)
    if file is not None and not start.exists():
        return file, start
    return find_run(start)


def earlier_datasets(runs: Sequence[EarlierRun]) -> list[dict[str, Any]]:
    """Return the keys of each scored dataset of earlier runs, those of the nearest run first.

    A run that continued another was scored on that one's datasets, too. The nearest run whose
    config names a dataset determines how it is scored; if none does, the oldest run that was scored
    on it.
    """
    found, named = dict[str, dict[str, Any]](), set[str]()
    for run in runs:
        of_run = dict[str, dict[str, Any]]()
        for keys in run.datasets():
            of_run.setdefault(json.dumps(keys[run.key], sort_keys=True), keys)
        found |= {name: keys for name, keys in of_run.items() if name not in named}
        named.add(json.dumps(run.pairs, sort_keys=True))
    return list(found.values())


def starts_of(path: Path, cfg: Config) -> list[Path]:
    """Return the paths that the run of a checkpoint started from: weights, adapters, memories.

    The config in the run's folder names them; for a checkpoint outside of one, ``cfg`` does. In
    place of an earlier run or its link ``best``, this is the checkpoint for which it stood then, if
    the run's own checkpoint ``path`` has recorded it. Paths that were moved along with the run are
    those of now.
    """
    file = config_of_run(path)
    values = cfg.as_dict() if file is None else resolved(merged(str(file)))
    memories = (values.get("replay") or {}).get("init_from") or []
    memories = [memories] if isinstance(memories, str) else memories
    adapters = reversed(values.get("base_adapters") or [])
    runs = [run for run in (values.get("init_from"), *adapters, *memories) if run]
    names = progress_of(path).get("started_from", {})
    output_dir = values.get("output_dir", "")
    starts = []
    for run in runs:
        start = moved_along(run, output_dir, file.parent) if file else Path(run)
        if name := names.get(str(Path(run))) or _name_in(names, start):
            start = Path(os.path.normpath(start / name))
        starts.append(start)
    return starts


def _name_in(names: Mapping[str, str], start: Path) -> str | None:
    """Return what is recorded for a start that was moved since, if one path alone ends as it does."""
    found = [name for run, name in names.items() if Path(run).name == start.name]
    return found[0] if len(found) == 1 else None


def _read_run(
    file: Path, checkpoint: Path, cfg: Config, *, averaged: bool
) -> EarlierRun:
    """Read a run; with ``averaged`` its checkpoint is that of the averaged weights, if any."""
    values, key = resolved(merged(str(file))), SCORED[cfg.eval_split]
    if averaged and _has_average(checkpoint, values):
        checkpoint /= EMA
    summaries = scores_of_run(file.parent)
    own, other = _scores_of(checkpoint, summaries, cfg)
    before = [summary.before for summary in summaries.values() if summary.before]
    return EarlierRun(
        config=file,
        checkpoint=checkpoint,
        key=key,
        pairs=values.get(key),
        how={"primary": None}
        | {key: values[key] for key in (*SCORING, "max_new_tokens") if key in values},
        merged=cfg.merged,
        own_scores=own,
        other_scores=other,
        compared=[Path(os.path.abspath(change.checkpoint)) for change in before],
    )


def _has_average(checkpoint: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint has averaged weights; if it was deleted, the config tells."""
    if checkpoint.exists() or checkpoint.name == EMA:
        return (checkpoint / EMA).is_dir()
    return values.get("ema_decay") is not None


def _scores_of(
    checkpoint: Path, summaries: Mapping[Path, Summary], cfg: Config
) -> tuple[list[_Scores], list[_Scores]]:
    """Return the evaluations of a checkpoint, and those of the other checkpoints of its run."""
    name, linked = (
        name_of_scores(path, cfg.eval_split, merged=cfg.merged)
        for path in (checkpoint, with_link(checkpoint))
    )
    own, other = list[_Scores](), list[_Scores]()
    for folder, summary in summaries.items():
        # Scores of another engine, by erjepa score, have no settings.
        if not all((folder / file).is_file() for file in (PREDICTIONS, SETTINGS)):
            continue
        settings = read_json(_Settings, folder / SETTINGS)
        if getattr(settings, SCORED[cfg.eval_split]) is None:
            continue
        scored = scored_weights(folder.name, summary)
        is_own = scored == name or (
            # The link may have led to other weights then.
            scored == linked and settings.weights == digests_of_files(checkpoint)
        )
        (own if is_own else other).append((folder, settings))
    return own, other


@dataclass(frozen=True)
class Before:
    """The answers of an earlier run to examples that are scored again, by example id.

    There are none if the dataset had other pairs then.
    """

    checkpoint: Path
    answers: Mapping[int, Prediction]
    max_new_tokens: int  # of the answers

    def compare(self, task: Task, scored: Sequence[Mapping[str, Any]]) -> Change:
        _, verdicts = task.judge(self.answers.values())
        now = {prediction["id"]: prediction[task.primary] for prediction in scored}
        return change(
            str(self.checkpoint),
            [verdict[task.primary] is True for verdict in verdicts],
            [now[i] is True for i in self.answers],
        )


def answers_before(
    runs: Sequence[EarlierRun], examples: Examples
) -> tuple[Before | None, Before | None]:
    """Return the nearest earlier run's answers to the unchanged examples, and those of the nearest
    that was scored on the dataset when it had other pairs.
    """
    section, current = examples.section, examples.texts
    to_current, to_others = list[Before](), list[Before]()
    for run in runs:
        if (scores := run.scores_on(section)) is None:
            continue
        folder, settings = scores
        answers = {
            answer["id"]: answer
            for answer in read_predictions(folder / PREDICTIONS, examples.task)
            if current.get(answer["id"]) == (answer["prompt"], answer["target"])
        }
        found = Before(run.checkpoint, answers, settings.max_new_tokens)
        (to_current if answers else to_others).append(found)
    return next(iter(to_current), None), next(iter(to_others), None)
