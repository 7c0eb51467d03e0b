import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import Tensor
from torchtune import config, training, utils
from tqdm import tqdm

import erjepa.config
from erjepa.generation import generate_greedy
from erjepa.training import checkpoint
from erjepa.training.adapters import initial_adapter_state
from erjepa.training.distributed import init_process_group
from erjepa_recipe.keys import KEYS, require_files

log = utils.get_logger("INFO")


class EvaluationRecipeERJEPA:
    """
    Greedy generation for every pair of ``eval_dataset``, scored by exact match.

    Reads the config of the training run. Scores the adapter (or the merged weights) in
    ``checkpoint_dir``, by default the newest checkpoint of ``output_dir``; with
    ``base_only=True`` the base model. Writes ``predictions.jsonl`` and ``summary.json`` to
    ``output_dir/evaluation/NAME``. Ranks share the examples; each holds the whole model.

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
        output_dir = Path(cfg.output_dir)
        self._checkpoint = self._find_checkpoint(cfg, output_dir)
        name = "base" if self._checkpoint is None else self._checkpoint.name
        self._results_dir = output_dir / "evaluation" / name

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
        """Generate and score; rank 0 writes the results.

        Returns:
            dict[str, Any]: the summary, with ``accuracy`` between 0 and 1.
        """
        start = time.perf_counter()
        # Prompts of like length share a batch, so little of it is padding.
        order = sorted(
            range(len(self._dataset)), key=lambda i: len(self._dataset.prompt(i))
        )
        mine = order[self._rank :: self._world_size]
        predictions = []
        with tqdm(total=len(mine), disable=self._rank != 0) as progress:
            for first in range(0, len(mine), self._batch_size):
                ids = mine[first : first + self._batch_size]
                predictions.extend(self._predict(ids))
                progress.update(len(ids))
        by_rank: list[Any] = [None] * self._world_size
        dist.all_gather_object(by_rank, predictions)
        predictions = sorted(sum(by_rank, []), key=lambda p: p["id"])
        seconds = time.perf_counter() - start
        correct = sum(p["correct"] for p in predictions)
        summary = {
            "accuracy": correct / len(predictions),
            "correct": correct,
            "examples": len(predictions),
            "checkpoint": str(self._checkpoint or "base"),
            "examples_per_second": len(predictions) / seconds,
        }
        if self._rank == 0:
            self._results_dir.mkdir(parents=True, exist_ok=True)
            with (self._results_dir / "predictions.jsonl").open("w") as lines:
                lines.writelines(json.dumps(p) + "\n" for p in predictions)
            text = json.dumps(summary, indent=2) + "\n"
            (self._results_dir / "summary.json").write_text(text)
            log.info(
                f"Exact match {summary['accuracy']:.1%} ({correct} of {len(predictions)}) "
                f"for {summary['checkpoint']}; see {self._results_dir}."
            )
        return summary

    def _predict(self, ids: list[int]) -> list[dict[str, Any]]:
        outputs = generate_greedy(
            self._model,
            [self._dataset.prompt(i) for i in ids],
            max_new_tokens=self._max_new_tokens,
            stop_tokens=self._tokenizer.stop_tokens,
            pad_id=self._tokenizer.pad_id,
        )
        predictions = []
        for i, tokens in zip(ids, outputs, strict=True):
            output, target = (
                self._tokenizer.decode(tokens),
                self._dataset.target_text(i),
            )
            predictions.append(
                {
                    "id": i,
                    "source": self._dataset.source_text(i),
                    "target": target,
                    "output": output,
                    "correct": output.strip() == target,
                    "tokens": len(tokens),
                    "finished": len(tokens) < self._max_new_tokens,
                }
            )
        return predictions


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
