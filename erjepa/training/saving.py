"""The checkpoints of a run: when they are written, from which weights, with what beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch import Tensor
from torchtune import config, training, utils

from erjepa.objective import PackedDecoder
from erjepa.training import checkpoint
from erjepa.training.model_card import write_model_card
from erjepa.training.progress import RunProgress
from erjepa.training.trained import Trained

log = utils.get_logger("INFO")


class RunCheckpoints:
    """Writes the checkpoints of a run, and finds the one to go on from.

    Each call that saves is made by all ranks; rank 0 writes.

    Args:
        cfg (DictConfig): config of the run.
        trained (Trained): what of the model is trained.
        device (torch.device): device of the run.

    Raises:
        ValueError: if adapters alone are to be saved, and there are none.
    """

    def __init__(self, cfg: DictConfig, trained: Trained, device: torch.device) -> None:
        self._adapter_only = cfg.save_adapter_weights_only
        if self._adapter_only and not trained.has_adapters:
            raise ValueError(
                "save_adapter_weights_only=True, but the model has no adapters; set it to "
                "False"
            )
        self._output_dir = Path(cfg.output_dir)
        self._checkpointer = config.instantiate(
            cfg.checkpointer, output_dir=str(self._output_dir / checkpoint.SCRATCH)
        )
        self._resume = cfg.resume_from_checkpoint
        self._flops_budgets = list(cfg.checkpoint_at_flops or [])
        self._keep_best = cfg.keep_best
        self._trained = trained
        self._device = device
        self._is_rank_zero = dist.get_rank() == 0

    def load(
        self, identity: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None, dict[str, Any] | None]:
        """Base weights; trained weights and recipe state as well when resuming.

        Args:
            identity (dict[str, Any]): what a resumed run must have in common with that
                which saved, by its name in the recipe state.

        Returns:
            tuple[dict[str, Tensor], dict[str, Tensor] | None, dict[str, Any] | None]: the
            three.

        Raises:
            FileNotFoundError: if there is nothing to go on from.
            ValueError: naming what differs in the run to go on with.
        """
        base = self._checkpointer.load_checkpoint()[training.MODEL_KEY]
        if not self._resume:
            return base, None, None
        path, resumed, state = checkpoint.load_latest(self._output_dir)
        for name, value in identity.items():
            if state[name] != value:
                raise ValueError(
                    f"{path} was written with {name} {state[name]}, this run has {value}; "
                    "a resumed run keeps its seed, its validation pairs and its batch_size "
                    "x gradient_accumulation_steps x ranks."
                )
        utils.log_rank_zero(log, f"Resuming from {path}.")
        return base, resumed, state

    def save(
        self, model: PackedDecoder, run: RunProgress, state: dict[str, Any]
    ) -> None:
        """Write a checkpoint that a run can go on from.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is.
            state (dict[str, Any]): all that a resumed run needs besides the weights.
        """
        weights, predictor = self._gather(model)
        if self._is_rank_zero:
            kept = self._trained.resumable(weights)
            path = self._publish(
                run.checkpoint_name(),
                weights,
                self._adapter_only,
                progress=run.summary(),
                predictor=predictor,
                state=state if kept is None else {**state, "weights": kept},
            )
            log.info(f"Saved {path}.")
        dist.barrier()

    def save_at_flops(
        self, model: PackedDecoder, run: RunProgress, step_flops: int
    ) -> None:
        """Keep the adapter, or the model without any, at each budget the last step reached.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is.
            step_flops (int): operations of the last step.
        """
        total = run.totals["flops"]
        reached = [
            (f"flops_{i}", budget)
            for i, budget in enumerate(self._flops_budgets)
            if total - step_flops < budget <= total
        ]
        if not reached:
            return
        weights, predictor = self._gather(model)
        for name, budget in reached if self._is_rank_zero else ():
            # A run that was killed after writing it comes by again.
            if not (self._output_dir / name).is_dir():
                path = self._publish(
                    name,
                    weights,
                    self._trained.has_adapters,
                    progress={"budget": budget, **run.summary()},
                    predictor=predictor,
                )
                log.info(f"Saved {path}.")
        dist.barrier()

    def save_if_best(
        self, model: PackedDecoder, run: RunProgress, validation: dict[str, float]
    ) -> None:
        """Keep the weights that are the best so far, see :meth:`RunProgress.judge`.

        Args:
            model (PackedDecoder): the model.
            run (RunProgress): where the run is; its best score is brought up to date.
            validation (dict[str, float]): what was measured after the last step, if anything.
        """
        if not (validation and run.judge(validation) and self._keep_best):
            return
        measured = next(iter(run.best))
        weights, predictor = self._gather(model)
        if self._is_rank_zero:
            path = self._output_dir / checkpoint.best_name(run.steps)
            # A run that was killed after writing it comes by again.
            if not path.is_dir():
                self._publish(
                    path.name,
                    weights,
                    self._adapter_only,
                    progress={**validation, **run.summary()},
                    predictor=predictor,
                )
            checkpoint.set_best(path)
            log.info(f"Saved {path}: {measured} {validation[measured]:.4f}.")
        dist.barrier()

    def _gather(self, model: PackedDecoder) -> tuple[dict[str, Tensor], Tensor | None]:
        """The decoder's weights and the predictor tokens' embeddings, whole on rank 0."""
        weights = training.gather_cpu_state_dict(
            model, self._is_rank_zero, device=self._device
        )
        if self._device.type == "cpu":
            # On one rank they are the live weights, and merging works in place.
            weights = {name: weight.clone() for name, weight in weights.items()}
        predictor = weights.pop("predictor", None)
        return {k.removeprefix("decoder."): v for k, v in weights.items()}, predictor

    def _publish(
        self,
        name: str,
        weights: dict[str, Tensor],
        adapter_only: bool,
        **beside: Any,
    ) -> Path:
        path = checkpoint.publish(
            self._output_dir,
            name,
            lambda epoch: self._write_weights(weights, epoch, adapter_only),
            **beside,
        )
        write_model_card(self._output_dir)
        return path

    def _write_weights(
        self, weights: dict[str, Tensor], epoch: str, adapter_only: bool
    ) -> None:
        self._checkpointer.save_checkpoint(
            self._trained.export(weights, adapter_only=adapter_only),
            epoch=epoch,
            adapter_only=adapter_only,
        )


def require_fresh_output(
    output_dir: Path, *, resume: bool, flops_budgets: Sequence[float]
) -> None:
    """Never write over the checkpoints of another run, nor mix budgets with its.

    Args:
        output_dir (Path): folder of the run.
        resume (bool): whether to go on with the run that is there.
        flops_budgets (Sequence[float]): ``checkpoint_at_flops``.

    Raises:
        FileExistsError: if there is one that is not to be gone on with.
        ValueError: if it kept other budgets.
    """
    existing = checkpoint.all_checkpoints(output_dir)
    if existing and not resume:
        raise FileExistsError(
            f"output_dir={output_dir} holds {existing[-1].name} of an earlier run. Go on "
            "with it (resume_from_checkpoint=True) or choose another output_dir."
        )
    for i, budget in enumerate(flops_budgets):
        path = output_dir / f"flops_{i}"
        if path in existing and checkpoint.load_progress(path)["budget"] != budget:
            raise ValueError(
                f"{path} was not written at {budget:g} FLOPs; a resumed run keeps its "
                "checkpoint_at_flops and may add larger ones."
            )
