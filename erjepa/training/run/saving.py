"""Writes the checkpoints of a run."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import training, utils

from erjepa.checkpoints import checkpoint, peft_adapter
from erjepa.checkpoints.manifest import MANIFEST
from erjepa.checkpoints.model_card import base_of, write_model_card
from erjepa.checkpoints.served_chat import Serving, write_serving
from erjepa.checkpoints.space import (
    checkpoint_sizes,
    is_full_disk,
    readable,
    require_space,
)
from erjepa.configs import Config
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.model.precision import dtypes_of
from erjepa.training.model.sharding import free_gathered, gather, trained_by_name
from erjepa.training.model.trainable import TrainableWeights
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.progress import score_of
from erjepa.training.run.recipe_state import RecipeState
from erjepa.training.run.signals import resuming_command
from erjepa.training.run.start import RunFolder, Start
from erjepa.training.step.finite import require_finite_weights
from erjepa.utils.files import EMA, PEFT

log = utils.get_logger("INFO")


class RunCheckpoints:
    """Writes the checkpoints of a run.

    All ranks call its methods together; rank 0 writes, and its errors are raised on all ranks.

    Args:
        checkpointer: exports weights to the scratch folder.
        state: at the step where training starts or resumes.
        serving: how to serve the exported weights.

    Raises:
        OSError: if the disk has no room for a checkpoint.
    """

    def __init__(
        self,
        cfg: Config,
        folder: RunFolder,
        checkpointer: Any,
        start: Start,
        *,
        trainable: TrainableWeights,
        averaged: AveragedWeights,
        memory: RunMemory,
        state: RecipeState,
        serving: Serving,
    ) -> None:
        self._cfg = cfg
        self._folder, self._output_dir = folder, folder.path
        self._checkpointer = checkpointer
        self._checkpointer.repo_id = base_of(cfg.as_dict())  # goes into PEFT's config
        self._fingerprint, self._data = start.fingerprint, start.data
        self._started_from = start.started_from
        self._trainable = trainable
        self._averaged = averaged
        self._memory = memory
        self._state, self._progress = state, state.progress
        self._model, self._device = state.model, state.device
        self._serving = serving
        # At least 2: the newest is not known to be good until a later step is finite.
        self._keep_last_n = cfg.keep_last_n and max(cfg.keep_last_n, 2)
        self._is_resumed = start.state is not None
        self._saved_at = self._progress.steps
        self._warn_of_past_budgets()
        self._dtype, _ = dtypes_of(cfg)
        self._sizes = checkpoint_sizes(
            cfg,
            self._model,
            dtype=self._dtype,
            has_adapters=trainable.has_adapters,
            memory=memory.most_bytes,
        )
        run_bytes = self._sizes.run(cfg, cfg.epochs - self._progress.epoch)
        warning = on_rank_zero(
            lambda: require_space(self._output_dir, self._sizes, run_bytes)
        )
        if warning is not None:
            utils.log_rank_zero(log, warning, logging.WARNING)

    def _warn_of_past_budgets(self) -> None:
        """Warn of budgets that a resumed run has passed without a checkpoint."""
        flops = self._progress.totals["flops"]
        for i, budget in enumerate(self._cfg.checkpoint_at_flops or []):
            name = checkpoint.flops_name(i)
            if budget <= flops and not (self._output_dir / name).is_dir():
                utils.log_rank_zero(
                    log,
                    f"checkpoint_at_flops: {self._progress.checkpoint_name()} is past "
                    f"{budget:g} FLOPs, so {name} will not be written",
                    logging.WARNING,
                )

    # ------------------------------------------------------------------ how to resume

    @property
    def is_saved(self) -> bool:
        """Whether the current step is saved; also true before the first step."""
        return self._saved_at == self._progress.steps

    def print_resume_command(self) -> None:
        text = "Stopped before the first step: there is nothing to resume."
        if steps := self._progress.steps:
            text = f"Stopped after step {steps}. To resume:\n  {resuming_command()}"
        if dist.get_rank() == 0:
            print(text, flush=True)

    def how_to_resume(self) -> str:
        """Return a text, the same on every rank, that names the newest good checkpoint and how to
        resume from it: the newest after which losses, gradients and weights were finite.
        """

        def text() -> str:
            resumable = checkpoint.resumable_checkpoints(self._output_dir)
            if not resumable:
                return "There is no checkpoint to resume from."
            newest, command = resumable[-1], f"\n  {resuming_command()}"
            advice = f"{newest.name} is good; to resume from it{command}"
            if self.is_saved:  # no step after the newest was finite
                before = checkpoint.how_to_resume_before(newest, f"\nthen{command}")
                advice = f"{newest.name} may already be bad. {before}"
            return (
                "With the same settings a resumed run fails again; "
                f"resume_changes=[optimizer.lr] allows a lower optimizer.lr. {advice}"
            )

        return on_rank_zero(text)

    # ------------------------------------------------------------------ when and what

    def save(self) -> None:
        """Write a checkpoint that can be resumed."""
        self._save(self._progress.checkpoint_name(), state=self._state.state_dict())
        self._saved_at = self._progress.steps

    def save_at_flops(self, step_flops: float) -> None:
        """Save the adapter, or all weights without one, at each budget that the step reached."""
        total = self._progress.totals["flops"]
        for i, budget in enumerate(self._cfg.checkpoint_at_flops or []):
            if total - step_flops < budget <= total:
                self._save(
                    checkpoint.flops_name(i),
                    {"budget": budget},
                    adapter_only=self._trainable.has_adapters,
                )

    def save_best(self, validation: dict[str, float]) -> None:
        """Save the weights as the best so far, with the metrics in ``validation``, unless the run
        was resumed and has saved better ones after the checkpoint that it resumed.
        """
        if self._is_resumed and not on_rank_zero(lambda: self._is_best(validation)):
            return
        measured, _ = score_of(validation)
        name = checkpoint.best_name(self._progress.steps)
        self._save(name, validation, note=f": {measured} {validation[measured]:.4f}")
        on_rank_zero(lambda: checkpoint.set_best(self._output_dir / name))

    def _is_best(self, validation: dict[str, float]) -> bool:
        """Whether no better weights are saved, as measured by the same metric."""
        best = self._output_dir / checkpoint.BEST
        if not (best / checkpoint.PROGRESS).is_file():
            return True
        measured, score = score_of(validation)
        measured_before, score_before = score_of(checkpoint.load_progress(best))
        return measured != measured_before or not score_before > score

    # ------------------------------------------------------------------ how

    def _save(
        self,
        name: str,
        progress: Mapping[str, Any] | None = None,
        *,
        adapter_only: bool = False,
        state: dict[str, Any] | None = None,
        note: str = "",
    ) -> None:
        """Write a checkpoint; one with a ``state`` can be resumed.

        Args:
            progress: values to add to the run's in ``progress.json``.
            adapter_only: whether to leave out the merged model, whatever the config says.
            note: end of the line that is logged.
        """
        cfg, model, device = self._cfg, self._model, self._device
        free_gathered(model)
        require_finite_weights(
            model, step=self._progress.steps, how_to_resume=self.how_to_resume
        )
        adapter_only = adapter_only or cfg.save_adapter_weights_only
        if adapter_only:
            weights = gather(trained_by_name(model), device)
        else:
            is_rank_zero = dist.get_rank() == 0
            weights = training.gather_cpu_state_dict(model, is_rank_zero, device=device)
        weights = _in_decoder(weights)
        averaged = self._averaged.gather()
        # Before adapters are merged in place.
        averages = {**weights, **_in_decoder(averaged)} if averaged else None
        export = partial(
            self._export,
            adapter_only=adapter_only,
            progress={
                **(progress or {}),
                **self._progress.summary(),
                "data": self._data,
                "base_weights": self._fingerprint["base model"],
                **({"started_from": self._started_from} if self._started_from else {}),
                **self._averaged.progress(),
                **self._trainable.summary(cfg.base_adapters or []),
            },
        )
        needed = self._sizes.resumable - (0 if state else self._sizes.state)

        def write() -> None:
            with self._explained(name, needed):
                with checkpoint.new(self._output_dir, name) as folder:
                    export(folder, weights)
                    if averages is not None:
                        export(folder / EMA, averages)
                    if state is not None:
                        state["fingerprint"] = self._fingerprint
                        if not self._trainable.has_adapters:
                            state["weights"] = weights  # the exported ones are rounded
                        if self._averaged.is_on:
                            state["averaged"] = self._averaged.state_dict(averaged)
                        torch.save(state, folder / checkpoint.RECIPE_STATE)
                    self._memory.write(folder)
                if state is not None:
                    checkpoint.prune(
                        self._output_dir, self._keep_last_n, cfg.keep_epochs
                    )
                write_model_card(self._output_dir)
            log.info(f"Saved {self._output_dir / name}{note}.")

        on_rank_zero(write)

    @contextmanager
    def _explained(self, name: str, needed: int) -> Iterator[None]:
        """Say in words that the folder is gone, or the disk has no ``needed`` bytes for ``name``."""
        self._folder.require()
        try:
            yield
        except Exception as error:
            self._folder.require()
            if not is_full_disk(error, self._output_dir, needed):
                raise
            advice = "There is no checkpoint to resume"
            if resumable := checkpoint.resumable_checkpoints(self._output_dir):
                advice = (
                    f"{resumable[-1].name} is complete: free some space, and resume it with\n"
                    f"  {resuming_command()}"
                )
            free = readable(shutil.disk_usage(self._output_dir).free)
            raise OSError(
                f"output_dir={self._output_dir}: no room for {name}, which takes about "
                f"{readable(needed)}; {free} are free. {advice}"
            ) from error

    def _export(
        self,
        folder: Path,
        weights: dict[str, Tensor],
        *,
        adapter_only: bool,
        progress: Mapping[str, Any],
    ) -> None:
        """Write weights for inference and the progress.

        To save memory, this takes ``predictor`` out of ``weights`` and merges adapters in them.
        """
        predictor = weights.pop("predictor", None)
        name = folder.relative_to(self._output_dir / checkpoint.SCRATCH).as_posix()
        # torchtune logs paths of files that are moved later.
        logging.disable(logging.INFO)
        try:
            self._checkpointer.save_checkpoint(
                self._trainable.export(
                    weights, self._device, adapter_only=adapter_only
                ),
                epoch=name.removeprefix(checkpoint.EPOCH),
                adapter_only=adapter_only,
            )
        finally:
            logging.disable(logging.NOTSET)
        # It copied these from the checkpoint that the run started from.
        for copied in (PEFT, checkpoint.MEMORY, EMA):
            shutil.rmtree(folder / copied, ignore_errors=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        if self._cfg.base_adapters:  # PEFT would put it over the base without them
            for file in (peft_adapter.WEIGHTS, peft_adapter.CONFIG):
                (folder / file).unlink(missing_ok=True)
        peft_adapter.move_peft_adapter(folder)
        if not adapter_only:
            _write_dtype(folder / "config.json", self._dtype)
        write_serving(folder, self._serving)
        text = json.dumps(progress, indent=2) + "\n"
        (folder / checkpoint.PROGRESS).write_text(text)
        if predictor is not None:
            torch.save(predictor, folder / checkpoint.PREDICTOR)


def _write_dtype(file: Path, dtype: torch.dtype) -> None:
    """Set the dtype in which transformers and servers load a model, which was that of its base."""
    if not file.is_file():
        return
    config = json.loads(file.read_bytes())
    names = [name for name in ("dtype", "torch_dtype") if name in config]
    config |= dict.fromkeys(names, str(dtype).removeprefix("torch."))
    file.write_text(json.dumps(config, indent=2) + "\n")


def _in_decoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights of the model to their names in the decoder; ``predictor`` keeps its name."""
    return {name.removeprefix("decoder."): weight for name, weight in weights.items()}
