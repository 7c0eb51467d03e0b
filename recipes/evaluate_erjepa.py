import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchtune import config, utils
from torchtune.modules.peft import get_adapter_params
from tqdm import tqdm

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.model_card import datasets_of, write_model_card
from erjepa.datasets import (
    build_dataset,
    components,
    hold_out,
    predictor_token_ids,
)
from erjepa.evaluation.alignment import pair_cosines
from erjepa.evaluation.answers import generate_answers
from erjepa.evaluation.generation import batches_of_like_length
from erjepa.evaluation.model import empty_model, load_weights
from erjepa.evaluation.predictions import PredictionStore, folder_of
from erjepa.packing import PairCollator, layout_of
from erjepa.tasks.score import (
    load_task,
    require_fields,
    require_targets,
    score_predictions,
)
from erjepa.tasks.summary import verbatim_overlap
from erjepa.training.device import attention_of, run_device
from erjepa.training.distributed import gather_objects, on_rank_zero, process_group
from erjepa.training.signals import end_with_launcher
from erjepa.utils.escape import one_line

log = utils.get_logger("INFO")


class EvaluationRecipeERJEPA:
    """
    Greedy generation for every pair of ``eval_dataset``, or with ``eval_split=validation`` for
    the training pairs that ``validation`` holds out, scored by the ``task``.

    Reads the config of the training run. Scores the adapter in ``checkpoint_dir``, which may be
    a list, by default the newest checkpoint of ``output_dir``, or its weights where the
    ``model`` has no adapters; with ``merged=True`` the merged
    weights there, which are rounded to the base's precision, under ``NAME_merged``; with
    ``checkpoint=ema`` the averaged weights there, under ``NAME_ema``, or both; with
    ``base_only=True`` the base model. Writes ``predictions.jsonl`` and ``summary.json`` to
    ``output_dir/evaluation/NAME``, those of a further dataset beside it; interrupted, it goes on
    where it stopped. With ``alignment=True`` each prediction has the ``cosine`` of its pair's
    embeddings. Ranks share the examples; each holds the whole model.

    Args:
        cfg (DictConfig): config after overrides.

    Raises:
        FileNotFoundError: if there is no checkpoint to score.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg
        self._device = utils.get_device(device=cfg.device)
        self._world_size, self._rank = utils.get_world_size_and_rank()
        self._batch_size = cfg.eval_batch_size
        self._max_new_tokens = cfg.max_new_tokens
        self._alignment = cfg.alignment
        self._merged = cfg.merged
        self._split = cfg.eval_split
        self._output_dir = Path(cfg.output_dir)
        self._require_split(cfg)
        self._checkpoints = self._find_checkpoints(cfg)

    def _require_split(self, cfg: DictConfig) -> None:
        size = OmegaConf.select(cfg, "validation.size")
        if self._split == "validation" and size is None:
            raise ValueError(
                "eval_split=validation scores the pairs that training held out; set "
                "validation.size (and .seed) to what the run was trained with"
            )

    def _find_checkpoints(self, cfg: DictConfig) -> Sequence[Path | None]:
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

    def _find_folders(self, cfg: DictConfig) -> Sequence[Path]:
        if given := cfg.checkpoint_dir:
            paths = [Path(p) for p in ([given] if isinstance(given, str) else given)]
            for path in paths:
                if not path.is_dir():
                    raise FileNotFoundError(f"checkpoint_dir={path} is not a folder")
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

    def setup(self, cfg: DictConfig) -> None:
        """Load tokenizer, examples and model."""
        if self._alignment:
            self._attention = attention_of(cfg, self._device)
        erjepa.configs.require_files(cfg)
        self._tokenizer = config.instantiate(cfg.tokenizer)
        self._setup_pairs(cfg)
        self._model = empty_model(cfg, self._device, merged=self._merged)
        self._has_adapters = bool(get_adapter_params(self._model))
        if self._alignment:
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

    def _setup_pairs(self, cfg: DictConfig) -> None:
        """The pairs to score, and how many of their targets occur in training."""
        key = "eval_dataset" if self._split == "test" else "dataset"
        if cfg[key] is None:
            raise ValueError(f"{key} is null: there is nothing to score")
        self._dataset = build_dataset(cfg[key], self._tokenizer, key)
        name = cfg.task or self._dataset.task
        self._task = load_task(name, cfg.get("databases", None))
        parts = zip(self._dataset.parts, components(cfg[key]), strict=True)
        for part, component in parts:
            require_fields(self._task, part, component._component_)
        self._ids = list(range(len(self._dataset)))
        train, train_ids = None, list[int]()
        if self._split == "validation":
            size, seed = cfg.validation.size, cfg.validation.seed
            split = hold_out(self._dataset.pairs, size, seed)
            self._ids = sorted(split.held_out)
            train, train_ids = self._dataset, split.train
        elif self._rank == 0 and cfg.dataset is not None:
            train = build_dataset(cfg.dataset, self._tokenizer)
            train_ids = list(range(len(train)))
        require_targets(self._task, self._dataset, self._ids)
        self._in_train = None
        if train is not None:
            self._in_train = verbatim_overlap(
                [train.target_text(i) for i in train_ids],
                [self._dataset.target_text(i) for i in self._ids],
            )

    def _settings(self, path: Path | None) -> dict[str, Any]:
        """All that predictions depend on."""
        pairs = {"test": "eval_dataset", "validation": "dataset"}[self._split]
        keys = ["model", "tokenizer", "checkpointer", pairs, "dtype", "max_new_tokens"]
        cfg = OmegaConf.to_container(self._cfg, resolve=True)
        settings = {key: cfg[key] for key in keys}
        settings["batch_size"] = self._batch_size
        settings["merged"] = self._merged
        if self._split == "validation":
            settings["held out"] = [cfg["validation"].get(k) for k in ("size", "seed")]
        if path is not None:
            settings["files"] = {
                file.name: [file.stat().st_size, file.stat().st_mtime_ns]
                for file in sorted(path.glob("*model*"))
            }
        if self._alignment:
            keys = [
                "views",
                "predictor_position",
                "num_predictor_tokens",
                "predictor_tokens",
                "row_length",
            ]
            settings["alignment"] = {key: cfg.get(key) for key in keys}
        return settings

    def evaluate(self) -> list[dict[str, Any]]:
        """Score every checkpoint; rank 0 writes the results.

        Returns:
            list[dict[str, Any]]: on rank 0 the summaries, with ``accuracy`` between 0 and 1.
        """
        return [self._evaluate(path) for path in self._checkpoints]

    def _evaluate(self, path: Path | None) -> dict[str, Any]:
        """Generate what is missing and score all."""
        name = "base" if path is None else checkpoint.score_name(path)
        trained = "adapter" if self._has_adapters else "full"
        weights = "base" if path is None else "merged" if self._merged else trained
        if path is not None and path.name == checkpoint.EMA:
            weights = f"averaged {weights}"
        if self._split == "validation":
            name += "_validation"
        if self._merged:
            name += "_merged"
        settings = self._settings(path)
        key = "eval_dataset" if self._split == "test" else "dataset"
        pairs = settings[key]
        results_dir = folder_of(self._output_dir / "evaluation" / name, pairs, key)
        store = PredictionStore(results_dir, settings, rank=self._rank)
        done = on_rank_zero(store.open)
        # Batches do not depend on ranks or interruptions, and a batch is generated whole:
        # the same numbers.
        prompts = [self._dataset.prompt(i) for i in self._ids]
        batches = batches_of_like_length(prompts, self._batch_size)
        mine = [
            [self._ids[i] for i in batch]
            for batch in batches[self._rank :: self._world_size]
            if not all(self._ids[i] in done for i in batch)
        ]
        if mine:
            scratch = results_dir / checkpoint.SCRATCH
            load_weights(
                self._model, self._cfg, path, merged=self._merged, scratch=scratch
            )
            self._predictor = None
            if self._alignment and path is not None:
                checkpoint.require_intact(path, [checkpoint.PREDICTOR])
                self._predictor = checkpoint.load_predictor(path)
        mine_done: list[dict[str, Any]] = []
        start = time.perf_counter()
        with tqdm(total=sum(map(len, mine)), disable=self._rank != 0) as progress:
            for batch in mine:
                predictions = self._generate(batch)
                store.append(predictions)
                mine_done.extend(predictions)
                progress.update(len(batch))
        seconds = time.perf_counter() - start
        by_rank = gather_objects(mine_done)
        new = {p["id"]: p for predictions in by_rank for p in predictions}
        if self._rank != 0:
            return {}
        rate = len(new) / seconds if new else None
        predictions = [{**done, **new}[i] for i in self._ids]
        scored, summary = score_predictions(self._task, predictions)
        summary = {
            "checkpoint": str(path or "base"),
            "weights": weights,
            "split": self._split,
            "pairs": ", ".join(call for _, call in datasets_of({"dataset": pairs})),
            **summary,
            "cut": sum(not p["finished"] for p in predictions),
            "targets_in_train": self._in_train,
            "examples_per_second": rate,
        }
        folder = store.finish(scored, summary)
        write_model_card(self._output_dir)
        parts = "".join(
            f", {part['share']:.1%} of the {part['examples']} of {one_line(part['origin'])}"
            for part in summary.get("by_origin", [])
        )
        log.info(
            f"{self._task.primary} {summary['accuracy']:.1%} of {len(predictions)} for "
            f"{summary['checkpoint']}{parts}; see {folder}."
        )
        return summary

    def _generate(self, ids: list[int]) -> list[dict[str, Any]]:
        predictions = generate_answers(
            self._model,
            self._tokenizer,
            self._dataset,
            ids,
            max_new_tokens=self._max_new_tokens,
        )
        if self._alignment:
            pairs = [self._dataset[i] for i in ids]
            cosines = pair_cosines(
                self._model, self._collator, pairs, self._predictor, self._attention
            )
            for prediction, cosine in zip(predictions, cosines, strict=True):
                prediction["cosine"] = cosine
        return predictions


@erjepa.configs.parse
def recipe_main(cfg: DictConfig) -> None:
    """
    Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    end_with_launcher()
    with process_group(run_device(cfg), cfg.step_timeout):
        recipe = EvaluationRecipeERJEPA(cfg)
        recipe.setup(cfg)
        recipe.evaluate()


if __name__ == "__main__":
    sys.exit(recipe_main())
