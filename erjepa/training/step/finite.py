"""Losses, gradients and weights that are not finite end a run before they spread or are saved."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.model.sharding import local_part
from erjepa.training.step.passes import PassResult


def require_finite(
    passes: Sequence[PassResult | None],
    *,
    step: int,
    where: Callable[[int], str],
    how_to_resume: Callable[[], str],
    grad_norm: float = 0.0,
) -> None:
    """Fail where the losses of a step, or the norm of its gradient, are not finite.

    Args:
        step: of the run, 1-based.
        where: names an example by its place in the dataset.
        how_to_resume: ends the message; called by all ranks.

    Raises:
        RuntimeError: naming the examples of the first pass with such losses; if the gradient alone
            is not finite, all of the step's.
    """
    what, done = "loss", [p for p in passes if p is not None]
    bad = next((ids for p in done if len(ids := p.non_finite_ids())), None)
    if bad is None:
        if math.isfinite(grad_norm):
            return
        what, bad = "gradient", torch.cat([p.example_ids for p in done])
    raise RuntimeError(
        f"The {what} is not finite at step {step}. Stopping before the optimizer update; the "
        f"step's examples are {', '.join(map(where, bad.unique().tolist()))}. "
        f"{how_to_resume()}"
    )


def require_finite_weights(
    model: nn.Module, *, step: int, how_to_resume: Callable[[], str]
) -> None:
    """Fail on all ranks where a trained weight of any rank is not finite.

    Raises:
        RuntimeError: naming the first such weight; arguments as of :func:`require_finite`.
    """
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    is_bad = [~local_part(weight).isfinite().all() for weight in trained.values()]
    counts = all_reduce_sum(torch.stack(is_bad).int()).tolist()
    if bad := [name for name, count in zip(trained, counts, strict=True) if count]:
        raise RuntimeError(
            f"The weights are not finite after step {step}, {bad[0]} the first of "
            f"{len(bad)}. Stopping before they are saved. {how_to_resume()}"
        )
