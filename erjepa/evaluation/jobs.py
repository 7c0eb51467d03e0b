"""Finds what an evaluation scores: each checkpoint on its own and on earlier runs' datasets."""

import json
import logging
import os
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torchtune import utils
from torchtune.config._errors import InstantiationError
from torchtune.modules.transforms import Transform

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import data_of, digests_of_files
from erjepa.configs import Config, read
from erjepa.datasets import PairedDataset, build_dataset, hold_out
from erjepa.evaluation.earlier import (
    SCORING,
    Before,
    EarlierRun,
    answers_before,
    earlier_datasets,
    earlier_runs,
    starts_of,
)
from erjepa.evaluation.examples import SCORED, Examples, calls, read_examples, texts
from erjepa.evaluation.predictions import require_own_base, require_own_scores
from erjepa.packing import layout_of
from erjepa.tasks.summary import Seen, Texts, seen_in
from erjepa.training.model.distributed import on_each_rank, on_rank_zero
from erjepa.utils.escape import counted, one_line

log = utils.get_logger("INFO")

# Overrides of the training keys that need held-out pairs, which other datasets may lack.
_OF_TRAINING = {"eval_every_n_steps": None, "keep_best": False, "stop": None}


class Weights(NamedTuple):
    """The weights at a path when the evaluation starts; ``best`` may lead elsewhere later."""

    folder: Path  # without the link
    digests: dict[str, str]  # of their files, see digests_of_files

    @classmethod
    def at(cls, path: Path) -> "Weights":
        folder = checkpoint.without_link(path)
        return cls(folder, digests_of_files(folder))


class Job(NamedTuple):
    """One checkpoint to score on one dataset."""

    path: Path | None  # of the weights, whose scores it names; None: the base model
    examples: Examples
    seen: Seen | None  # which examples occur in the training pairs; None: unknown
    before: Before | None  # an earlier run's answers to the examples; None: unknown
    weights: Weights | None

    def settings(self) -> dict[str, Any]:
        """Return everything that the answers depend on, as JSON, and how they are scored."""
        cfg = self.examples.cfg
        values = cfg.as_dict()
        keys = ["model", "tokenizer", "checkpointer", "dtype", "max_new_tokens"]
        settings = {key: values[key] for key in [*keys, SCORED[cfg.eval_split]]}
        settings["scoring"] = {key: values[key] for key in SCORING}
        # Nothing is written there, and a copied run has another one.
        settings["checkpointer"] = {**values["checkpointer"], "output_dir": None}
        # The files that these keys name can change.
        settings["pairs"] = self.examples.digest
        settings |= _base_of(cfg)
        settings |= {"batch_size": cfg.eval_batch_size, "merged": cfg.merged}
        if cfg.eval_split == "validation":
            settings["held out"] = [values["validation"][k] for k in ("size", "seed")]
        if self.weights is not None:
            settings["weights"] = self.weights.digests
        if cfg.target_loss:
            settings["target_loss"] = True
        if cfg.alignment:
            tokens = ("num_predictor_tokens", "predictor_tokens")
            settings["alignment"] = layout_of(cfg) | {k: values[k] for k in tokens}
        return settings


def _base_of(cfg: Config) -> dict[str, Any]:
    """Return the settings that identify the base model."""
    base: dict[str, Any] = {}
    if folder := cfg.checkpointer.get("checkpoint_dir"):
        base["base weights"] = digests_of_files(Path(folder))
    if cfg.base_adapters:
        base["base_adapters"] = cfg.base_adapters
    return base


def weights_to_score(cfg: Config) -> Sequence[Path | None]:
    """Return the folders of the weights to score; ``None`` stands for the base model.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if keys contradict each other, checkpoints have the same name, ``output_dir``
            belongs to another run, or it holds the scores of another base model.
    """
    if cfg.base_only:
        others = ("merged", False), ("checkpoint", "last"), ("checkpoint_dir", None)
        for key, default in others:
            if (value := getattr(cfg, key)) != default:
                raise ValueError(
                    f"{key}={value} cannot be combined with base_only=True"
                )
        require_own_base(Path(cfg.output_dir), _base_of(cfg))
        return [None]
    folders = [
        weights
        for path in _checkpoints(cfg)
        for weights in checkpoint.of_weights(path, cfg.checkpoint)
    ]
    for folder in folders:
        require_own_scores(Path(cfg.output_dir), folder)
    return folders


def _checkpoints(cfg: Config) -> Sequence[Path]:
    if given := cfg.checkpoint_dir:
        paths = [Path(p) for p in ([given] if isinstance(given, str) else given)]
        # "." has a name, too; unlike resolve, abspath keeps the link `best`.
        paths = [p if p.name.strip(".") else Path(os.path.abspath(p)) for p in paths]
        for path in paths:
            if not path.is_dir():
                raise FileNotFoundError(f"checkpoint_dir={path} is not a folder")
        paths = list(map(checkpoint.newest, paths))
        if len(set(map(checkpoint.score_name, paths))) < len(paths):
            raise ValueError(
                f"checkpoint_dir={given}: results go to folders of these names, so "
                "the names must differ; score these checkpoints one by one"
            )
        return paths
    saved = checkpoint.saved(Path(cfg.output_dir))
    if not saved:
        raise FileNotFoundError(
            f"output_dir={cfg.output_dir} holds no checkpoint. Train one, set "
            "checkpoint_dir, or score the base model with base_only=True."
        )
    return saved[-1:]


class _TrainingPairs(NamedTuple):
    """The pairs that a config trains on."""

    texts: list[Texts]
    wordings: Set[str]
    data: dict[str, Any]  # see data_of


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say what has changed from :func:`data_of` a run to that of a config; empty: nothing."""
    changed = []
    if then["pairs"] != now["pairs"]:
        changed.append(f"dataset had {then['pairs']}, and now has {now['pairs']}")
    if then["validation_seed"] != now["validation_seed"]:
        changed.append(f"validation.seed was {then['validation_seed']} then")
    if then["held_out"] != now["held_out"]:
        changed.append(
            f"validation.size held out {counted(then['held_out'], 'pair')} then"
        )
    return " and ".join(changed)


class JobFinder:
    """Determines which weights are scored on which examples, before anything is generated."""

    def __init__(self, cfg: Config, tokenizer: Transform) -> None:
        self._cfg = cfg
        self._tokenizer = tokenizer
        self._examples: dict[str, Examples] = {}
        self._seen_in: dict[int, Seen] = {}

    def find(self, weights: Sequence[Path | None]) -> list[Job]:
        """Return the jobs for all of :func:`weights_to_score`.

        Raises:
            ValueError: if there are no jobs; with ``max_forgetting``, if forgetting on an earlier
                dataset cannot be measured.
        """
        return [job for path in weights for job in self._jobs_of(path)]

    def _jobs_of(self, path: Path | None) -> list[Job]:
        """Return the jobs of a checkpoint: on its own dataset, then on those of earlier runs."""
        starts, runs = ([], []) if path is None else self._runs_before(path)
        earlier = earlier_datasets(runs)
        weights = None if path is None else on_rank_zero(Weights.at, path)
        key = SCORED[self._cfg.eval_split]
        own, others = self._cfg.as_dict()[key], [keys[key] for keys in earlier]
        jobs = list[Job]()
        for keys in ({}, *earlier):
            section = keys.get(key, own)
            if (keys and section == own) or (section is None and earlier):
                continue
            try:
                examples = self._read(keys)
                of_section = [run.checkpoint for run in runs if run.pairs == section]
                for trained in of_section if keys else [path]:
                    self._require_held_out(trained, examples)
                before, of_others = on_rank_zero(answers_before, runs, examples)
            except (InstantiationError, OSError, ValueError) as error:
                if not keys:
                    raise
                self._warn_or_raise(
                    f"{calls(section)}, of an earlier run, is not scored: {error}"
                )
                continue
            if of_others and (before is not None or not keys):
                self._warn_or_raise(
                    f"{calls(section)} has other pairs than when {of_others.checkpoint} was "
                    "scored on it; keep earlier pairs under a name of their own"
                )
            elif section in others and before is None:
                self._warn_or_raise(
                    f"the accuracy of {runs[0].checkpoint} on {calls(section)} is not known; "
                    f"to score it: {runs[0].scoring_command(section)}"
                )
            now = examples.cfg.max_new_tokens
            if before is not None and (then := before.max_new_tokens) != now:
                self._warn_or_raise(
                    f"answers to {calls(section)} have up to max_new_tokens={now}, and those of "
                    f"{before.checkpoint} up to {then}, so their accuracies do not compare; set "
                    f"max_new_tokens={then}"
                )
            seen = None if starts else on_rank_zero(self._seen, path, examples)
            jobs.append(Job(path, examples, seen, before, weights))
        return jobs

    def _runs_before(self, path: Path) -> tuple[list[Path], list[EarlierRun]]:
        """Return what the run of a checkpoint started from, and the earlier runs whose datasets
        are to be scored.
        """
        runs = list[EarlierRun]()
        starts = on_rank_zero(starts_of, path, self._cfg)
        if self._cfg.eval_earlier:
            given = path, starts, self._cfg, self._warn_or_raise
            runs = on_rank_zero(earlier_runs, *given)
        for run in runs:
            if not any(run.datasets()):
                self._warn_or_raise(
                    f"forgetting since {run.checkpoint} is not measured, as its config has no "
                    f"{run.key}; to score it: {run.scoring_command(None)}"
                )
        if starts:
            utils.log_rank_zero(
                log,
                f"{path} is of a run that started from another, whose training pairs are not "
                "known: test pairs that occur in training are not counted.",
            )
        return starts, runs

    def _require_held_out(self, path: Path | None, examples: Examples) -> None:
        """Check that the run of a checkpoint held out the examples of ``eval_split=validation``.

        Raises:
            ValueError: saying what has changed since.
        """
        if self._cfg.eval_split != "validation" or path is None:
            return
        if (then := checkpoint.progress_of(path).get("data")) is None:
            return
        now = examples.data
        # The first of the pairs that the run held out may be scored alone.
        then = {**then, "held_out": min(then["held_out"], now["held_out"])}
        if changes := _changes(then, now):
            raise ValueError(
                f"eval_split=validation: {path} may have been trained on pairs that are to be "
                f"scored, since {changes}; restore what the run had, or score pairs of "
                "another file with eval_dataset"
            )

    def _seen(self, path: Path | None, examples: Examples) -> Seen | None:
        """Return which examples occur in the training pairs, if these are known; on rank 0."""
        if examples.trained is not None:  # _require_held_out has compared them
            trained = texts(examples.dataset, examples.trained)
        elif (train := self._train) is None:
            return None
        else:
            then = checkpoint.progress_of(path).get("data") if path else None
            if then is not None and (changes := _changes(then, train.data)):
                log.warning(
                    f"{path} was trained on other pairs, since {changes}: test pairs that "
                    "occur in training are not counted."
                )
                return None
            trained = iter(train.texts)
        if (name := id(examples)) not in self._seen_in:  # alike for all checkpoints
            self._seen_in[name] = seen_in(trained, examples.texts)
        return self._seen_in[name]

    def _read(self, keys: Mapping[str, Any]) -> Examples:
        """Read the examples of the config with ``keys`` changed; cached."""
        cached = json.dumps(keys, sort_keys=True)
        if cached in self._examples:
            return self._examples[cached]
        cfg = self._cfg
        if keys:
            cfg = read({**cfg.as_dict(), **_OF_TRAINING, **keys})
        examples = self._examples[cached] = on_each_rank(
            read_examples, cfg, self._tokenizer
        )
        if not keys and cfg.eval_split == "test":
            on_rank_zero(self._warn_of_other_wordings, examples.dataset)
        return examples

    @cached_property
    def _train(self) -> _TrainingPairs | None:
        """The training pairs; ``None`` if their file is not named, cannot be reached or has none by
        now.
        """
        held_out = self._cfg.validation
        try:
            train = build_dataset(self._cfg.dataset, self._tokenizer)
            ids: Sequence[int] = range(len(train))
            if held_out.size:  # the run trains neither on these nor on their copies
                ids = hold_out(train.pairs, held_out.size, held_out.seed).train
        except (FileNotFoundError, ConnectionError, ValueError) as error:
            reason = str(error).rstrip(".")
            log.info(f"{reason}. Test pairs that occur in training are not counted.")
            return None
        data = data_of(self._cfg, train.pairs)
        return _TrainingPairs([*texts(train, ids)], train.wordings(), data)

    def _warn_of_other_wordings(self, dataset: PairedDataset) -> None:
        """Warn if texts are put into other prompts than in training, as with other options."""
        trained = self._train and self._train.wordings
        if trained and (other := sorted(dataset.wordings() - trained)):
            log.warning(
                f"eval_dataset asks {one_line(other[0])!r}, and dataset "
                f"{one_line(min(trained))!r}: unless an earlier run was trained on the first "
                "prompt, set the same question, options, columns or new_system_prompt for both"
            )

    def _warn_or_raise(self, problem: str) -> None:
        """Warn that forgetting is unknown; with ``max_forgetting`` raise ValueError."""
        if (limit := self._cfg.max_forgetting) is not None:
            raise ValueError(f"max_forgetting={limit}: {problem}")
        utils.log_rank_zero(log, problem, logging.WARNING)
