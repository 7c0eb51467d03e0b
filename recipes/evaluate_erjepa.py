import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torchtune import utils
from torchtune.config._errors import InstantiationError
from torchtune.modules.peft import get_adapter_params
from tqdm import tqdm

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.model_card import write_model_card
from erjepa.configs import Config, read
from erjepa.datasets import build_dataset, predictor_token_ids
from erjepa.evaluation.alignment import pair_cosines, target_losses
from erjepa.evaluation.answers import generate_answers
from erjepa.evaluation.earlier import Before, EarlierRun, answers_before, earlier_runs
from erjepa.evaluation.examples import (
    SCORED,
    Examples,
    calls,
    read_examples,
    texts,
)
from erjepa.evaluation.generation import batches_of_like_length
from erjepa.evaluation.model import empty_model, load_weights
from erjepa.evaluation.predictions import PredictionStore, folder_of, name_of_scores
from erjepa.packing import PairCollator, layout_of
from erjepa.tasks.score import score_predictions
from erjepa.tasks.summary import Texts, mean_target_loss, reading_without
from erjepa.training.model.device import attention_of, run_device
from erjepa.training.model.distributed import (
    gather_objects,
    on_each_rank,
    on_rank_zero,
)
from erjepa.training.run.process_group import process_group
from erjepa.training.run.signals import end_with_launcher
from erjepa.utils.escape import one_line
from erjepa.utils.summary import Change, Summary

log = utils.get_logger("INFO")

FORGOTTEN = 3  # exit code: more than max_forgetting
# What of the training asks for held-out pairs, which other datasets need not have.
_OF_TRAINING = {"eval_every_n_steps": None, "keep_best": False, "stop": None}


class _Job(NamedTuple):
    """What to score on what: folder of weights, or ``None`` for the base model; examples; and
    what an earlier run answered to them, if that is known.
    """

    path: Path | None
    examples: Examples
    before: Before | None


class EvaluationRecipeERJEPA:
    """Greedy generation for every pair of ``eval_dataset``, or with ``eval_split=validation`` for
    the training pairs that ``validation`` holds out, scored by the ``task``.

    Reads the config of the training run. Scores the adapter in ``checkpoint_dir``, which may be
    a list, by default the newest checkpoint of ``output_dir``, or its weights where the
    ``model`` has no adapters; with ``merged=True`` the merged
    weights there, which are rounded to the base's precision, under ``NAME_merged``; with
    ``checkpoint=ema`` the averaged weights there, under ``NAME_ema``, or both; with
    ``base_only=True`` the base model. Writes ``predictions.jsonl`` and ``summary.json`` to
    ``output_dir/evaluation/NAME``, those of a further dataset beside it; interrupted, it goes on
    where it stopped. With ``alignment=True`` each prediction has the cosines of its pair's
    embeddings, with ``target_loss=True`` the loss of its target. Ranks share the examples; each
    holds the whole model.

    A run that was continued from another one is scored on the datasets of the runs before it
    too, and compared with what these had, unless ``eval_earlier=False``.

    Raises:
        FileNotFoundError: if there is no checkpoint to score.
        ValueError: with ``max_forgetting``, if an earlier dataset cannot be compared.
    """

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self._device = utils.get_device(device=cfg.device)
        self._world_size, self._rank = utils.get_world_size_and_rank()
        self._batch_size = cfg.eval_batch_size
        self._alignment = cfg.alignment
        self._reads_targets = cfg.alignment or cfg.target_loss
        self._merged = cfg.merged
        self._max_forgetting = cfg.max_forgetting
        self._output_dir = Path(cfg.output_dir)
        self._checkpoints = self._find_checkpoints(cfg)

    def _find_checkpoints(self, cfg: Config) -> Sequence[Path | None]:
        """Folders to score, each by a name of its own; ``None`` is the base model."""
        if cfg.base_only:
            if self._merged:
                raise ValueError("merged=True scores a checkpoint, base_only=True none")
            if cfg.checkpoint != "last":
                raise ValueError(
                    f"checkpoint={cfg.checkpoint} scores a checkpoint, base_only=True none"
                )
            return [None]
        return [
            weights
            for path in self._find_folders(cfg)
            for weights in checkpoint.of_weights(path, cfg.checkpoint)
        ]

    def _find_folders(self, cfg: Config) -> Sequence[Path]:
        if given := cfg.checkpoint_dir:
            paths = [Path(p) for p in ([given] if isinstance(given, str) else given)]
            for path in paths:
                if not path.is_dir():
                    raise FileNotFoundError(f"checkpoint_dir={path} is not a folder")
            paths = list(map(checkpoint.newest, paths))
            if len(set(map(checkpoint.score_name, paths))) < len(paths):
                raise ValueError(
                    f"checkpoint_dir={given}: results go to folders of these names, so "
                    "the names must differ"
                )
            return paths
        found = checkpoint.checkpoints(self._output_dir)
        if not found:
            raise FileNotFoundError(
                f"output_dir={cfg.output_dir} holds no checkpoint. Train one, set "
                "checkpoint_dir, or score the base model with base_only=True."
            )
        return found[-1:]

    def setup(self) -> None:
        """Load tokenizer, examples and model."""
        cfg = self._cfg
        if self._reads_targets:
            self._attention = attention_of(cfg, self._device)
        self._cfg = cfg = erjepa.configs.require_files(cfg)
        self._tokenizer = cfg.tokenizer.build()
        self._setup_jobs(cfg)
        self._model = empty_model(cfg, self._device)
        self._loaded: tuple[Path | None] | None = None  # the weights that it has
        self._has_adapters = bool(get_adapter_params(self._model))
        if self._reads_targets:
            vocab_size = self._model.tok_embeddings.num_embeddings
            self._collator = PairCollator(
                **layout_of(cfg),
                predictor_ids=predictor_token_ids(
                    self._tokenizer,
                    cfg.num_predictor_tokens,
                    vocab_size,
                    cfg.predictor_tokens,
                ),
                pad_id=self._tokenizer.pad_id,
                row_length=cfg.row_length,
                trim=self._attention == "dense",
            )

    def _setup_jobs(self, cfg: Config) -> None:
        """Find out before generating what is to be scored on what."""
        self._train_texts: list[Texts] | None = None
        self._examples: dict[str, Examples] = {}
        self._jobs = [job for path in self._checkpoints for job in self._jobs_of(path)]
        if not self._jobs:
            key = SCORED[cfg.eval_split]
            raise ValueError(f"{key} is null: there is nothing to score")

    def _jobs_of(self, path: Path | None) -> list[_Job]:
        """A checkpoint on its own dataset, then on those of the runs before; each once."""
        runs, jobs = list[EarlierRun](), dict[str, _Job]()
        if path is not None and self._cfg.eval_earlier:
            runs = on_rank_zero(partial(earlier_runs, path, self._cfg))
            for run in runs:
                if not any(run.datasets()):
                    self._miss(
                        f"what {run.checkpoint} learned is not scored, as its config has no "
                        f"{run.key}; to score it: {run.scoring_command(None)}"
                    )
        for keys in ({}, *(keys for run in runs for keys in run.datasets())):
            section = {**self._cfg.as_dict(), **keys}[SCORED[self._cfg.eval_split]]
            if section is None or (name := json.dumps(section, sort_keys=True)) in jobs:
                continue
            try:
                cfg = self._cfg
                if keys:
                    cfg = read({**cfg.as_dict(), **_OF_TRAINING, **keys})
                if name not in self._examples:
                    self._examples[name] = on_each_rank(partial(self._read, cfg))
                examples = self._examples[name]
                before = on_rank_zero(partial(answers_before, runs, examples))
            except (InstantiationError, OSError, ValueError) as error:
                if not keys:
                    raise
                self._miss(f"{calls(section)}, of a run before, is not scored: {error}")
                continue
            if keys and before is None:
                self._miss(
                    f"what {runs[0].checkpoint} had on {calls(section)} is not known; to "
                    f"score it: {runs[0].scoring_command(section)}"
                )
            jobs[name] = _Job(path, examples, before)
        return list(jobs.values())

    def _read(self, cfg: Config) -> Examples:
        return read_examples(cfg, self._tokenizer, self._texts_of_training)

    def _texts_of_training(self) -> list[Texts] | None:
        if self._train_texts is None and self._rank == 0:
            train = build_dataset(self._cfg.dataset, self._tokenizer)
            self._train_texts = texts(train, range(len(train)))
        return self._train_texts

    def _miss(self, problem: str) -> None:
        """Say that forgetting is not known; where it is to be judged, that is an error."""
        if self._max_forgetting is not None:
            raise ValueError(f"max_forgetting={self._max_forgetting}: {problem}")
        utils.log_rank_zero(log, problem, logging.WARNING)

    def _settings(self, path: Path | None, examples: Examples) -> dict[str, Any]:
        """All that predictions depend on."""
        split = self._cfg.eval_split
        keys = ["model", "tokenizer", "checkpointer", "dtype", "max_new_tokens"]
        keys.append(SCORED[split])
        cfg = examples.cfg.as_dict()
        settings = {key: cfg[key] for key in keys}
        settings["batch_size"] = self._batch_size
        settings["merged"] = self._merged
        if cfg["base_adapters"]:
            settings["base_adapters"] = cfg["base_adapters"]
        if split == "validation":
            settings["held out"] = [cfg["validation"][k] for k in ("size", "seed")]
        if path is not None:
            settings["files"] = {
                file.name: [file.stat().st_size, file.stat().st_mtime_ns]
                for file in sorted(path.glob("*model*"))
            }
        if self._cfg.target_loss:
            settings["target_loss"] = True
        if self._alignment:
            keys = [
                "views",
                "predictor_position",
                "num_predictor_tokens",
                "predictor_tokens",
                "row_length",
            ]
            settings["alignment"] = {key: cfg[key] for key in keys}
        return settings

    def evaluate(self) -> list[Summary]:
        """Score every checkpoint; rank 0 writes the results, and returns them."""
        found = [self._evaluate(*job) for job in self._jobs]
        return [summary for summary in found if summary is not None]

    def exit_code(self, summaries: Sequence[Summary]) -> int:
        """Of the process: 0, or 3 if accuracy fell by more than ``max_forgetting``."""
        limit = self._max_forgetting
        if limit is None:
            return 0

        def judge() -> int:
            for summary in summaries:
                before = summary.before
                if before and -before.difference > limit:
                    log.error(
                        f"max_forgetting={limit}: of {summary.pairs} "
                        f"{before.lost} were lost and {before.gained} gained of "
                        f"{before.examples}."
                    )
                    return FORGOTTEN
            return 0

        return on_rank_zero(judge)

    def _evaluate(
        self, path: Path | None, examples: Examples, before: Before | None
    ) -> Summary | None:
        """Generate what is missing and score all; the summary on rank 0."""
        trained = "adapter" if self._has_adapters else "full"
        weights = "base" if path is None else "merged" if self._merged else trained
        if path is not None and path.name == checkpoint.EMA:
            weights = f"averaged {weights}"
        settings = self._settings(path, examples)
        folder = self._output_dir / "evaluation" / name_of_scores(path, self._cfg)
        key = SCORED[self._cfg.eval_split]
        results_dir = folder_of(folder, examples.section, key)
        store = PredictionStore(results_dir, settings, rank=self._rank)
        done = on_rank_zero(store.open)
        # Batches do not depend on ranks or interruptions, and a batch is generated whole:
        # the same numbers.
        ids = examples.ids
        prompts = [examples.dataset.prompt(i) for i in ids]
        batches = batches_of_like_length(prompts, self._batch_size)
        mine = [
            [ids[i] for i in batch]
            for batch in batches[self._rank :: self._world_size]
            if not all(ids[i] in done for i in batch)
        ]
        if mine and self._loaded != (path,):
            scratch = results_dir / checkpoint.SCRATCH
            load_weights(self._model, self._cfg, path, scratch)
            self._predictor = None
            if self._alignment and path is not None:
                checkpoint.require_intact(path, [checkpoint.PREDICTOR])
                self._predictor = checkpoint.load_predictor(path)
            self._loaded = (path,)
        mine_done: list[dict[str, Any]] = []
        start = time.perf_counter()
        is_hidden = self._rank != 0 or not mine
        with tqdm(total=sum(map(len, mine)), disable=is_hidden) as progress:
            for batch in mine:
                predictions = self._generate(examples, batch)
                store.append(predictions)
                mine_done.extend(predictions)
                progress.update(len(batch))
        seconds = time.perf_counter() - start
        by_rank = gather_objects(mine_done)
        new = {p["id"]: p for predictions in by_rank for p in predictions}
        if self._rank != 0:
            return None
        rate = len(new) / seconds if new else None
        predictions = [{**done, **new}[i] for i in ids]
        scored, summary = score_predictions(examples.task, predictions)
        summary = summary.model_copy(
            update={
                "checkpoint": str(path or "base"),
                "weights": weights,
                "split": self._cfg.eval_split,
                "pairs": calls(examples.section),
                "cut": sum(not p["finished"] for p in predictions),
                "target_loss": mean_target_loss(predictions),
                **_unseen(examples, scored, summary.primary),
                "examples_per_second": rate,
                "before": before and before.compare(examples.task, scored),
            }
        )
        folder = store.finish(scored, summary)
        write_model_card(self._output_dir)
        parts = "".join(
            f", {part.share:.1%} of the {part.examples} of {one_line(part.origin)}"
            for part in summary.by_origin or []
        )
        log.info(
            f"{summary.primary} {summary.accuracy:.1%} of {len(predictions)} for "
            f"{summary.checkpoint} on {one_line(calls(examples.section))}{parts}"
            f"{_in_words(summary.before)}; see {folder}."
        )
        return summary

    def _generate(self, examples: Examples, ids: list[int]) -> list[dict[str, Any]]:
        predictions = generate_answers(
            self._model,
            self._tokenizer,
            examples.dataset,
            ids,
            max_new_tokens=examples.cfg.max_new_tokens,
        )
        pairs = [examples.dataset[i] for i in ids if self._reads_targets]
        if self._alignment:
            cosines = pair_cosines(
                self._model, self._collator, pairs, self._predictor, self._attention
            )
            for prediction, cosine in zip(predictions, cosines, strict=True):
                prediction.update(cosine)
        if self._cfg.target_loss:
            losses = target_losses(self._model, self._collator, pairs, self._attention)
            for prediction, loss in zip(predictions, losses, strict=True):
                prediction.update(loss)
        return predictions


def _unseen(
    examples: Examples, scored: Sequence[Mapping[str, Any]], primary: str
) -> dict[str, Any]:
    """What an evaluation says of examples that occur in training."""
    if (seen := examples.seen) is None:
        return {}
    return {
        "targets_in_train": len(seen.targets),
        "unseen_pairs": reading_without(scored, seen.pairs, primary),
        "unseen_targets": reading_without(scored, seen.targets, primary),
    }


def _in_words(before: Change | None) -> str:
    if before is None:
        return ""
    low, high = before.interval
    return (
        f"; {before.checkpoint} had {before.accuracy:.1%} of {before.examples}: "
        f"{before.kept} kept, {before.gained} gained, {before.lost} lost, "
        f"{100 * before.difference:+.1f} points (95% interval {100 * low:+.1f} to "
        f"{100 * high:+.1f})"
    )


@erjepa.configs.parse
def recipe_main(cfg: Config) -> int:
    """Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    end_with_launcher()
    with process_group(run_device(cfg), cfg.step_timeout):
        recipe = EvaluationRecipeERJEPA(cfg)
        recipe.setup()
        exit_code = recipe.exit_code(recipe.evaluate())
    return exit_code


if __name__ == "__main__":
    sys.exit(recipe_main())
