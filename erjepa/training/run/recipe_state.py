"""All that a run resumes besides its weights and its memory."""

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torchtune import training

from erjepa.objective import PackedDecoder
from erjepa.training.model.distributed import gather_objects
from erjepa.training.model.sharding import free_gathered
from erjepa.training.run.progress import RunProgress
from erjepa.training.step.random_state import random_state, set_random_state


class RecipeState:
    """Collects the state of a run's parts, and puts it back."""

    def __init__(
        self,
        model: PackedDecoder,
        optimizer: Optimizer,
        lr_scheduler: LRScheduler,
        run: RunProgress,
        device: torch.device,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._run = run
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks; whole on rank 0."""
        free_gathered(self._model)
        random_states = gather_objects(random_state(self._device))
        return {
            **self._run.state_dict(),
            "optimizer": training.get_full_optimizer_state_dict(
                self._model, self._optimizer, dist.get_rank() == 0, device=self._device
            ),
            "lr_scheduler": self._lr_scheduler.state_dict(),
            "random_states": random_states,
        }

    def load_state_dict(
        self, state: dict[str, Any], changed: Collection[str] = ()
    ) -> None:
        """Put everything back to where :meth:`state_dict` was taken, but for the values of the
        dotted keys in ``changed``, which are those of this run.

        Raises:
            ValueError: if it does not fit this run.
        """
        self._run.load_state_dict(state)
        if "optimizer._component_" not in changed:
            self._load_optimizer(state["optimizer"], changed)
        self._load_schedule(state["lr_scheduler"], changed)
        if len(state["random_states"]) == dist.get_world_size():
            set_random_state(state["random_states"][dist.get_rank()], self._device)

    def _load_optimizer(self, saved: dict[str, Any], changed: Collection[str]) -> None:
        own = [dict(group) for group in self._optimizer.param_groups]
        training.load_from_full_optimizer_state_dict(
            self._model, self._optimizer, saved, self._device
        )
        names = [key.removeprefix("optimizer.") for key in changed]
        for group, values in zip(self._optimizer.param_groups, own, strict=True):
            group.update({name: values[name] for name in names if name in values})

    def _load_schedule(self, saved: dict[str, Any], changed: Collection[str]) -> None:
        schedule = self._lr_scheduler
        is_new_rate = bool({"optimizer.lr", "optimizer._component_"} & set(changed))
        own = {"base_lrs": schedule.base_lrs} if is_new_rate else {}
        schedule.load_state_dict({**saved, **own})
        if isinstance(schedule, LambdaLR):
            factors = [f(schedule.last_epoch) for f in schedule.lr_lambdas]
        else:
            factors = [
                now / base
                for now, base in zip(saved["_last_lr"], saved["base_lrs"], strict=True)
            ]
        rates = zip(schedule.base_lrs, factors, strict=True)
        schedule._last_lr = [base * factor for base, factor in rates]
        for group, base, rate in zip(
            self._optimizer.param_groups,
            schedule.base_lrs,
            schedule._last_lr,
            strict=True,
        ):
            group["initial_lr"], group["lr"] = base, rate
