"""The progress of a run, and when it ends."""

import math
from collections.abc import Mapping
from typing import Any

from erjepa.checkpoints.checkpoint import checkpoint_name
from erjepa.configs import Stop

_STATE = ("epoch", "step_in_epoch", "totals", "best", "stale")


def score_of(validation: Mapping[str, float]) -> tuple[str, list[float]]:
    """Return the name of a validation's first metric, and its score: the accuracy if measured, then
    the negative loss.
    """
    measured = [name for name in ("val_accuracy", "val_loss") if name in validation]
    score = [validation[name] for name in measured]
    score[-1] *= -1
    return measured[0], score


class RunProgress:
    """Counts the steps, tokens and FLOPs of a run.

    Args:
        stop: limits on ``steps``, ``tokens`` and ``flops``, and ``patience``, a limit on
            validations in a row without a new best; the first one reached ends the run.

    Attributes:
        epoch: current epoch, 0-based.
        step_in_epoch: completed steps of the epoch.
        totals: ``steps``, ``tokens``, ``flops`` and training ``seconds`` of the run.
        best: best validation score, by the name of its first metric.
        stale: validations since the best one.
    """

    def __init__(self, epochs: int, steps_per_epoch: int, stop: Stop) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.epoch = 0
        self.step_in_epoch = 0
        self.totals = {"steps": 0, "tokens": 0, "flops": 0, "seconds": 0.0}
        self.best: dict[str, list[float]] = {}
        self.stale = 0
        self.epochs = epochs
        self._stop = {name: n for name, n in vars(stop).items() if n is not None}

    @property
    def steps(self) -> int:
        """Completed steps of the run."""
        return int(self.totals["steps"])

    def count(self, *, tokens: int, flops: int) -> None:
        self.totals["steps"] += 1
        self.totals["tokens"] += tokens
        self.totals["flops"] += flops

    def advance(self, seconds: float) -> None:
        """Move on to the next step, after one that took ``seconds``."""
        self.totals["seconds"] += seconds
        self.step_in_epoch += 1
        if self.step_in_epoch == self.steps_per_epoch:
            self.epoch, self.step_in_epoch = self.epoch + 1, 0

    def judge(self, validation: Mapping[str, float]) -> bool:
        """Record a validation, the same on every rank. Return whether it is the best so far, by
        accuracy if measured, then by loss.
        """
        name, score = score_of(validation)
        is_best = score > self.best.get(name, [float("-inf")])
        if is_best:
            self.best = {name: score}
        self.stale = 0 if is_best else self.stale + 1
        return is_best

    def has_reached_stop(self) -> bool:
        reached = {**self.totals, "patience": self.stale}
        return any(reached[name] >= limit for name, limit in self._stop.items())

    def expected_steps(self) -> int:
        """Estimate the total steps of the run: to the last epoch, or to the limit that is reached
        first at the rate so far. Ignores ``patience``.
        """
        expected = self.epochs * self.steps_per_epoch
        for name, limit in self._stop.items():
            if reached := self.totals.get(name):
                expected = min(expected, math.ceil(self.steps * limit / reached))
        expected = min(expected, int(self._stop.get("steps", expected)))
        return max(expected, self.steps)

    def is_over(self) -> bool:
        return self.epoch >= self.epochs or self.has_reached_stop()

    def is_time(self, every_n_steps: int | None) -> bool:
        """Whether it is the end of an epoch or of the run, or a multiple of ``every_n_steps``."""
        return (
            self.step_in_epoch == 0
            or self.has_reached_stop()
            or (every_n_steps is not None and self.steps % every_n_steps == 0)
        )

    def checkpoint_name(self) -> str:
        if self.step_in_epoch == 0:
            return checkpoint_name(self.epoch - 1, None)
        return checkpoint_name(self.epoch, self.step_in_epoch)

    def summary(self) -> dict[str, Any]:
        """Return the progress that checkpoints publish in ``progress.json``."""
        return {
            "steps": self.steps,
            "epoch": self.epoch + self.step_in_epoch / self.steps_per_epoch,
            "total_flops": self.totals["flops"],
            "total_tokens": self.totals["tokens"],
            "train_seconds": self.totals["seconds"],
        }

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; other keys in ``state`` are ignored.

        Raises:
            ValueError: if an epoch of this run ends before the step of the state.
        """
        if state["step_in_epoch"] >= self.steps_per_epoch:
            raise ValueError(
                f"the checkpoint was written after {state['step_in_epoch']} steps of an "
                f"epoch, and an epoch of this run has {self.steps_per_epoch}: keep the "
                "dataset and max_steps_per_epoch that the run was started with"
            )
        for name in _STATE:
            setattr(self, name, state[name])
