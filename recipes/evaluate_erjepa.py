import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torchtune import config, training, utils
from tqdm import tqdm

import erjepa.config
from erjepa.generation import generate_greedy
from erjepa.model_card import write_model_card
from erjepa.predictions import PredictionStore
from erjepa.tasks.score import FIELDS, load_task, score_predictions
from erjepa.tasks.summary import verbatim_overlap
from erjepa.training import checkpoint
from erjepa.training.adapters import initial_adapter_state
from erjepa.training.distributed import init_process_group
from erjepa_recipe.keys import KEYS, require_files

log = utils.get_logger("INFO")


class EvaluationRecipeERJEPA:
    """
    Greedy generation for every pair of ``eval_dataset``, scored by its ``task``.

    Reads the config of the training run. Scores the adapter (or the merged weights) in
    ``checkpoint_dir``, by default the newest checkpoint of ``output_dir``; with
    ``base_only=True`` the base model. Writes ``predictions.jsonl`` and ``summary.json`` to
    ``output_dir/evaluation/NAME``; interrupted, it goes on where it stopped. Ranks share the
    examples; each holds the whole model.

    Args:
        cfg (DictConfig): config after overrides.

    Raises:
        FileNotFoundError: if there is no checkpoint to score.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._device = utils.get_device(device=cfg.device)
        self._dtype = training.get_dtype(cfg.dtype, device=self._device)
        self._world_size, self._rank = utils.get_world_size_and_rank()
        self._batch_size = cfg.eval_batch_size
        self._max_new_tokens = cfg.max_new_tokens
        self._output_dir = Path(cfg.output_dir)
        self._checkpoint = self._find_checkpoint(cfg, self._output_dir)
        name = "base" if self._checkpoint is None else self._checkpoint.name
        self._results_dir = self._output_dir / "evaluation" / name
        self._task = load_task(cfg.task, cfg.get("databases", None))
        self._store = PredictionStore(
            self._results_dir, self._settings(cfg), rank=self._rank
        )

    def _settings(self, cfg: DictConfig) -> dict[str, Any]:
        """All that predictions depend on."""
        keys = ("model", "tokenizer", "checkpointer", "eval_dataset", "dtype")
        cfg = OmegaConf.to_container(cfg, resolve=True)
        settings = {key: cfg[key] for key in (*keys, "max_new_tokens")}
        settings["batch_size"] = self._batch_size
        if self._checkpoint is not None:
            settings["files"] = {
                file.name: [file.stat().st_size, file.stat().st_mtime_ns]
                for file in sorted(self._checkpoint.glob("*model*"))
            }
        return settings

    def _find_checkpoint(self, cfg: DictConfig, output_dir: Path) -> Path | None:
        if cfg.get("base_only", False):
            return None
        if cfg.get("checkpoint_dir", None):
            path = Path(cfg.checkpoint_dir)
            if not path.is_dir():
                raise FileNotFoundError(f"checkpoint_dir={path} is not a folder")
            return path
        found = checkpoint.checkpoints(output_dir)
        if not found:
            raise FileNotFoundError(
                f"output_dir={output_dir} holds no checkpoint. Train one, set "
                "checkpoint_dir, or score the base model with base_only=True."
            )
        return found[-1]

    def setup(self, cfg: DictConfig) -> None:
        """Load tokenizer, examples and model."""
        require_files(cfg)
        self._tokenizer = config.instantiate(cfg.tokenizer)
        self._dataset = config.instantiate(cfg.eval_dataset, self._tokenizer)
        known = {"target", "output", *self._dataset.scoring_fields(0)}
        if missing := sorted(set(FIELDS[self._task.name]) - known):
            raise ValueError(
                f"task={self._task.name} scores by {', '.join(missing)}, which "
                f"{cfg.eval_dataset._component_} does not give"
            )
        self._in_train = None
        if self._rank == 0 and cfg.get("dataset", None) is not None:
            train, test = (
                config.instantiate(cfg.dataset, self._tokenizer),
                self._dataset,
            )
            self._in_train = verbatim_overlap(
                *([d.target_text(i) for i in range(len(d))] for d in (train, test))
            )
        with training.set_default_dtype(self._dtype), self._device:
            self._model = config.instantiate(cfg.model)
        self._model.load_state_dict(self._weights(cfg))
        if self._adapter is None:
            for module in self._model.modules():
                if hasattr(module, "initialize_dora_magnitude"):
                    module.initialize_dora_magnitude()
        self._model.eval()

    def _weights(self, cfg: DictConfig) -> dict[str, Tensor]:
        """Base and trained adapter; or base or merged weights, and an adapter of no effect."""
        self._adapter = None
        source: dict[str, Any] = {}
        if self._checkpoint is not None:
            if (self._checkpoint / checkpoint.ADAPTER).is_file():
                self._adapter = torch.load(
                    self._checkpoint / checkpoint.ADAPTER, weights_only=True
                )
            else:
                source["checkpoint_dir"] = str(self._checkpoint)
                source["checkpoint_files"] = sorted(
                    path.name for path in self._checkpoint.glob("model*.safetensors")
                )
        checkpointer = config.instantiate(
            cfg.checkpointer,
            output_dir=str(self._results_dir / checkpoint.SCRATCH),
            **source,
        )
        base = checkpointer.load_checkpoint()[training.MODEL_KEY]
        return {**base, **(self._adapter or initial_adapter_state(self._model, 0))}

    def evaluate(self) -> dict[str, Any]:
        """Generate what is missing and score all; rank 0 writes the results.

        Returns:
            dict[str, Any]: the summary on rank 0, with ``accuracy`` between 0 and 1.
        """
        found = [self._store.open() if self._rank == 0 else None]
        dist.broadcast_object_list(found)
        done = found[0]
        # Prompts of like length share a batch, so little of it is padding. Batches do not
        # depend on ranks or interruptions, and a batch is generated whole: the same numbers.
        prompts = [self._dataset.prompt(i) for i in range(len(self._dataset))]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        starts = range(0, len(order), self._batch_size)
        batches = [order[start : start + self._batch_size] for start in starts]
        mine = [
            batch
            for batch in batches[self._rank :: self._world_size]
            if not all(i in done for i in batch)
        ]
        new, start = [], time.perf_counter()
        with tqdm(total=sum(map(len, mine)), disable=self._rank != 0) as progress:
            for batch in mine:
                predictions = self._generate(batch, [prompts[i] for i in batch])
                self._store.append(predictions)
                new.extend(predictions)
                progress.update(len(batch))
        seconds = time.perf_counter() - start
        by_rank: list[Any] = [None] * self._world_size
        dist.all_gather_object(by_rank, new)
        new = {p["id"]: p for predictions in by_rank for p in predictions}
        if self._rank != 0:
            return {}
        rate = len(new) / seconds if new else None
        predictions = [{**done, **new}[i] for i in range(len(prompts))]
        return self._score(predictions, rate)

    def _generate(
        self, ids: list[int], prompts: list[list[int]]
    ) -> list[dict[str, Any]]:
        outputs = generate_greedy(
            self._model,
            prompts,
            max_new_tokens=self._max_new_tokens,
            stop_tokens=self._tokenizer.stop_tokens,
            pad_id=self._tokenizer.pad_id,
        )
        return [
            {
                "id": i,
                "prompt": self._dataset.source_text(i),
                "target": self._dataset.target_text(i),
                "output": self._tokenizer.decode(tokens),
                "tokens": len(tokens),
                "finished": len(tokens) < self._max_new_tokens,
                **self._dataset.scoring_fields(i),
            }
            for i, tokens in zip(ids, outputs, strict=True)
        ]

    def _score(
        self, predictions: list[dict[str, Any]], examples_per_second: float | None
    ) -> dict[str, Any]:
        scored, summary = score_predictions(self._task, predictions)
        summary = {
            "checkpoint": str(self._checkpoint or "base"),
            **summary,
            "cut": sum(not p["finished"] for p in predictions),
            "targets_in_train": self._in_train,
            "examples_per_second": examples_per_second,
        }
        folder = self._store.finish(scored, summary)
        write_model_card(self._output_dir, checkpoint.checkpoints(self._output_dir))
        log.info(
            f"{self._task.primary} {summary['accuracy']:.1%} of {len(predictions)} for "
            f"{summary['checkpoint']}; see {folder}."
        )
        return summary


@erjepa.config.parse
def recipe_main(cfg: DictConfig) -> None:
    """
    Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    erjepa.config.check_keys(cfg, KEYS)
    init_process_group(utils.get_device(device=cfg.device))
    recipe = EvaluationRecipeERJEPA(cfg)
    recipe.setup(cfg)
    recipe.evaluate()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(recipe_main())
