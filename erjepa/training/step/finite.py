"""Checks that end a run whose losses, gradients or weights are not finite."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.model.sharding import local_part, trained_by_name
from erjepa.training.step.passes import PassResult


def require_finite(
    passes: Sequence[PassResult | None],
    *,
    step: int,
    where: Callable[[int], str],
    how_to_resume: Callable[[], str],
    grad_norm: float = 0.0,
) -> None:
    """Fail if a loss of a step or the norm of its gradient is not finite.

    Args:
        step: step of the run, 1-based.
        where: returns the file and line of an example id.
        how_to_resume: returns the end of the error message; called on all ranks.

    Raises:
        RuntimeError: naming the examples with non-finite losses in the first such pass, or all
            examples of the step if only the gradient is not finite.
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
    """Fail on all ranks if a trainable weight of any rank is not finite.

    Arguments are those of :func:`require_finite`.

    Raises:
        RuntimeError: naming the first such weight.
    """
    trained = trained_by_name(model)
    is_bad = [
        ~local_part(weight.detach()).isfinite().all() for weight in trained.values()
    ]
    counts = all_reduce_sum(torch.stack(is_bad).int()).tolist()
    if bad := [name for name, count in zip(trained, counts, strict=True) if count]:
        raise RuntimeError(
            f"The weights are not finite after step {step}, {bad[0]} the first of "
            f"{len(bad)}. Stopping before they are saved. {how_to_resume()}"
        )
