"""A step whose loss or gradient is not finite ends the run before the weights change."""

import math
from collections.abc import Callable, Sequence

import torch

from erjepa.training.passes import PassResult


def require_finite(
    passes: Sequence[PassResult],
    *,
    step: int,
    where: Callable[[int], str],
    grad_norm: float = 0.0,
) -> None:
    """Fail where the losses of a step, or the norm of its gradient, are not finite.

    Args:
        passes (Sequence[PassResult]): of the step.
        step (int): of the run, 1-based.
        where (Callable[[int], str]): names an example by its place in the dataset.
        grad_norm (float): of the step.

    Raises:
        RuntimeError: naming the examples of the first pass with such losses; if the gradient
            alone is not finite, all of the step's.
    """
    what = "loss"
    bad = next((ids for p in passes if len(ids := p.non_finite_ids())), None)
    if bad is None:
        if math.isfinite(grad_norm):
            return
        what, bad = "gradient", torch.cat([p.example_ids for p in passes])
    raise RuntimeError(
        f"The {what} is not finite at step {step}. Stopping before the optimizer update; the "
        f"step's examples are {', '.join(map(where, bad.unique().tolist()))}."
    )
