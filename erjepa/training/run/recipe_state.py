"""The state of a run in addition to its weights and its memory."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchtune import training

from erjepa.objective import PackedDecoder
from erjepa.training.model.distributed import gather_objects
from erjepa.training.model.sharding import free_gathered, trained_by_name
from erjepa.training.run.progress import RunProgress
from erjepa.training.step.random_state import random_state, set_random_state


@dataclass(frozen=True)
class RecipeState:
    """Collects and restores progress, optimizer and random state; the learning rate follows."""

    model: PackedDecoder
    optimizer: Optimizer
    lr_scheduler: LRScheduler
    progress: RunProgress
    device: torch.device

    def state_dict(self) -> dict[str, Any]:
        """Return the state, complete on rank 0 only; called on all ranks."""
        free_gathered(self.model)
        random_states = gather_objects(random_state(self.device))
        return {
            **self.progress.state_dict(),
            "optimizer": training.get_full_optimizer_state_dict(
                self.model, self.optimizer, dist.get_rank() == 0, device=self.device
            ),
            "random_states": random_states,
        }

    def load_state_dict(
        self, state: dict[str, Any], changed: Collection[str] = ()
    ) -> None:
        """Restore a state from :meth:`state_dict`, except the values of the dotted keys in
        ``changed``, which stay those of this run.

        Raises:
            ValueError: if it does not fit this run.
        """
        self.progress.load_state_dict(state)
        self._step_schedule()
        if "optimizer._component_" not in changed:
            self._load_optimizer(state["optimizer"], changed)
        if len(state["random_states"]) == dist.get_world_size():
            set_random_state(state["random_states"][dist.get_rank()], self.device)

    def _load_optimizer(self, saved: dict[str, Any], changed: Collection[str]) -> None:
        stored = {name for group in saved["param_groups"] for name in group["params"]}
        if other := sorted(stored ^ trained_by_name(self.model).keys()):
            raise ValueError(
                f"the checkpoint's optimizer was that of other weights ({other[0]}); undo "
                f"resume_changes={sorted(changed)}, or set a new output_dir and init_from"
            )
        # Of this run: the rates of its schedule, and other implementations of the same update.
        names = {"lr", "initial_lr", "fused", "foreach"}
        names |= {key.removeprefix("optimizer.") for key in changed}
        groups = [
            {**before, **{name: now[name] for name in names if name in now}}
            for before, now in zip(
                saved["param_groups"], self.optimizer.param_groups, strict=True
            )
        ]
        # Not changed after loading, which keeps steps on the CPU unless the update is fused.
        training.load_from_full_optimizer_state_dict(
            self.model, self.optimizer, {**saved, "param_groups": groups}, self.device
        )

    def _step_schedule(self) -> None:
        """Step the schedule to where the run is; a stored state would have the settings of then."""
        with warnings.catch_warnings():
            # Of the optimizer, which has not stepped in this process.
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(self.progress.steps):
                self.lr_scheduler.step()
