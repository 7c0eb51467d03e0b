"""Writes the checkpoints of a run."""

import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import training, utils

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.model_card import base_of, write_model_card
from erjepa.checkpoints.peft_adapter import CONFIG as PEFT_CONFIG
from erjepa.checkpoints.peft_adapter import WEIGHTS as PEFT_WEIGHTS
from erjepa.checkpoints.served_chat import Serving, write_chat_template
from erjepa.checkpoints.space import (
    checkpoint_sizes,
    free_bytes,
    is_full_disk,
    readable,
    require_space,
)
from erjepa.configs import Config
from erjepa.objective import PackedDecoder
from erjepa.training.model.averaged import AveragedWeights
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.model.sharding import free_gathered
from erjepa.training.model.trainable import TrainableWeights
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.recipe_state import RecipeState
from erjepa.training.run.signals import resuming_command
from erjepa.training.run.start import RunFolder, Start
from erjepa.training.step.finite import require_finite_weights

log = utils.get_logger("INFO")


class _Gathered(NamedTuple):
    """Full weights on the CPU of rank 0."""

    decoder: dict[str, Tensor]  # by name in the decoder
    predictor: Tensor | None  # trained embeddings of the predictor tokens, [k, H]
    averaged: dict[str, Tensor]  # of the trainable weights, by name in the whole model


class RunCheckpoints:
    """Writes the checkpoints of a run.

    All ranks call its methods together; rank 0 writes, and its errors are raised on all ranks.

    Args:
        checkpointer: exports weights to the scratch folder.
        start: what the run starts from.
        serving: chat template to export, if it is not the base's.

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
        model: PackedDecoder,
        trainable: TrainableWeights,
        averaged: AveragedWeights,
        memory: RunMemory,
        run: RunProgress,
        state: RecipeState,
        serving: Serving,
        device: torch.device,
    ) -> None:
        self._cfg = cfg
        self._folder, self._output_dir = folder, folder.path
        self._checkpointer = checkpointer
        self._checkpointer.repo_id = base_of(cfg.as_dict())  # goes into PEFT's config
        self._model = model
        self._trainable = trainable
        self._averaged = averaged
        self._memory = memory
        self._run = run
        self._state = state
        self._fingerprint = start.fingerprint
        self._serving = serving
        self._device = device
        # At least 2: the newest is not known to be good until a later step is finite.
        self._keep_last_n = cfg.keep_last_n and max(cfg.keep_last_n, 2)
        self._is_rank_zero = dist.get_rank() == 0
        self._saved_at, epochs = 0, cfg.epochs
        if start.resumed is not None:
            self._saved_at = start.resumed.state["totals"]["steps"]
            epochs -= start.resumed.state["epoch"]
        self._sizes = checkpoint_sizes(
            cfg,
            start.weights.base.values(),
            [p for p in model.parameters() if p.requires_grad],
            has_adapters=trainable.has_adapters,
        )
        on_rank_zero(lambda: self._require_space(self._sizes.run(cfg, epochs)))

    def _require_space(self, run: int) -> None:
        if warning := require_space(self._output_dir, self._sizes, run):
            log.warning(warning)

    # ------------------------------------------------------------------ how to resume

    @property
    def is_saved(self) -> bool:
        """Whether the current step is saved; also true before the first step."""
        return self._saved_at == self._run.steps

    def print_resume_command(self) -> None:
        """Print how to resume a run that was stopped by a signal."""
        text = "Stopped before the first step: there is nothing to resume."
        if steps := self._run.steps:
            text = f"Stopped after step {steps}. To resume:\n  {resuming_command()}"
        if self._is_rank_zero:
            print(text, flush=True)

    def how_to_resume(self) -> str:
        """Return a text that names the newest good checkpoint and the commands to resume from it,
        the same on every rank.

        For a run that ends because losses, gradients or weights are not finite. A checkpoint is
        good if they were finite in a step after it.
        """
        return on_rank_zero(self._how_to_resume)

    def _how_to_resume(self) -> str:
        resumable = checkpoint.resumable_checkpoints(self._output_dir)
        if not resumable:
            return "There is no checkpoint to resume from."
        newest, command = resumable[-1], f"\n  {resuming_command()}"
        advice = f"{newest.name} is good; to resume from it{command}"
        if self.is_saved:  # no step after the newest was finite
            before = checkpoint.how_to_resume_before(newest, f"\nthen{command}")
            advice = f"{newest.name} may already be bad. {before}"
        return (
            "With the same settings a resumed run fails again; resume_changes=[optimizer.lr] "
            f"allows a lower optimizer.lr. {advice}"
        )

    # ------------------------------------------------------------------ when and what

    def save(self) -> None:
        """Write a checkpoint that can be resumed."""
        state = self._state.state_dict()
        weights = self._gather()

        def write() -> None:
            content = {**state, "fingerprint": self._fingerprint}
            if (kept := self._trainable.resumable(weights.decoder)) is not None:
                content["weights"] = kept
            if self._averaged.is_on:
                content["averaged"] = self._averaged.state_dict(weights.averaged)
            self._write(
                self._run.checkpoint_name(),
                weights,
                adapter_only=self._cfg.save_adapter_weights_only,
                progress={},
                state=content,
            )

        on_rank_zero(write)
        self._saved_at = self._run.steps

    def save_at_flops(self, step_flops: float) -> None:
        """Save the adapter, or all weights without one, at each budget that the step reached."""
        total = self._run.totals["flops"]
        reached = [
            (checkpoint.flops_name(i), budget)
            for i, budget in enumerate(self._cfg.checkpoint_at_flops or [])
            if total - step_flops < budget <= total
        ]
        if not reached:
            return
        weights = self._gather()

        def write() -> None:
            for name, budget in reached:
                self._write(
                    name,
                    weights,
                    adapter_only=self._trainable.has_adapters,
                    progress={"budget": budget},
                )

        on_rank_zero(write)

    def save_best(self, validation: dict[str, float]) -> None:
        """Save the weights as the best so far, with the metrics in ``validation``."""
        weights = self._gather()
        measured = next(iter(self._run.best))

        def write() -> None:
            path = self._write(
                checkpoint.best_name(self._run.steps),
                weights,
                adapter_only=self._cfg.save_adapter_weights_only,
                progress=validation,
                note=f": {measured} {validation[measured]:.4f}",
            )
            checkpoint.set_best(path)

        on_rank_zero(write)

    # ------------------------------------------------------------------ how

    def _gather(self) -> _Gathered:
        model = self._model
        free_gathered(model)
        require_finite_weights(
            model, step=self._run.steps, how_to_resume=self.how_to_resume
        )
        weights = training.gather_cpu_state_dict(
            model, self._is_rank_zero, device=self._device
        )
        if self._device.type == "cpu":
            # On one rank these are the live weights, and merging is in place.
            weights = {name: weight.clone() for name, weight in weights.items()}
        return _Gathered(*_parts(weights), self._averaged.gather())

    def _write(
        self,
        name: str,
        weights: _Gathered,
        *,
        adapter_only: bool,
        progress: dict[str, Any],
        state: dict[str, Any] | None = None,
        note: str = "",
    ) -> Path:
        """Publish a checkpoint. A failure leaves no checkpoint and an empty scratch folder."""
        self._folder.require()
        write = partial(self._write_weights, adapter_only=adapter_only)
        averaged = None
        if weights.averaged:
            decoder, predictor = _parts(weights.averaged)
            if not adapter_only:
                # Copies of the base, as adapters are merged in place.
                base = {k: v for k, v in weights.decoder.items() if k not in decoder}
                decoder |= {key: weight.clone() for key, weight in base.items()}
            averaged = checkpoint.Exported(partial(write, decoder), predictor)
        try:
            path = checkpoint.publish(
                self._output_dir,
                name,
                checkpoint.Exported(partial(write, weights.decoder), weights.predictor),
                progress=progress | self._run.summary() | self._averaged.progress(),
                averaged=averaged,
                state=state,
                write_memory=self._memory.write,
                keep_last_n=self._keep_last_n,
                keep_epochs=self._cfg.keep_epochs,
            )
            write_model_card(self._output_dir)
        except Exception as error:
            self._folder.require()
            scratch = self._output_dir / checkpoint.SCRATCH
            needed = self._sizes.whole - (0 if state else self._sizes.state)
            is_full = is_full_disk(error, scratch, needed)
            shutil.rmtree(scratch, ignore_errors=True)
            if is_full:
                raise OSError(self._no_room(name, needed)) from error
            raise
        log.info(f"Saved {path}{note}.")
        return path

    def _no_room(self, name: str, needed: int) -> str:
        resumable = checkpoint.resumable_checkpoints(self._output_dir)
        advice = "There is no checkpoint to resume"
        if resumable:
            advice = (
                f"{resumable[-1].name} is complete: free some space, and resume it with\n"
                f"  {resuming_command()}"
            )
        return (
            f"output_dir={self._output_dir}: no room for {name}, which takes about "
            f"{readable(needed)}; {readable(free_bytes(self._output_dir))} are free. {advice}"
        )

    def _write_weights(
        self, weights: dict[str, Tensor], epoch: str, *, adapter_only: bool
    ) -> None:
        """Export weights, by name in the decoder, to the scratch folder."""
        logging.disable(
            logging.INFO
        )  # torchtune logs paths of files that are moved later
        try:
            self._checkpointer.save_checkpoint(
                self._trainable.export(
                    weights, self._device, adapter_only=adapter_only
                ),
                epoch=epoch,
                adapter_only=adapter_only,
            )
        finally:
            logging.disable(logging.NOTSET)
        folder = self._output_dir / checkpoint.SCRATCH / f"epoch_{epoch}"
        if self._cfg.base_adapters:  # PEFT would put it over the base without them
            for name in (PEFT_WEIGHTS, PEFT_CONFIG):
                (folder / name).unlink(missing_ok=True)
        if self._serving.template is not None:
            write_chat_template(folder, self._serving.template)


def _parts(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    """Split into the decoder's weights, by name in it, and the predictor tokens' embeddings."""
    decoder = {
        name.removeprefix("decoder."): weight
        for name, weight in weights.items()
        if name != "predictor"
    }
    return decoder, weights.get("predictor")
