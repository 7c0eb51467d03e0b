"""The learning rate over a run."""

from collections.abc import Callable
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def get_linear_schedule_with_warmup(
    optimizer: Optimizer,
    *,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    final_factor: float = 0.0,
    until: Literal["epochs", "stop"] = "epochs",
    expected_steps: Callable[[], int] | None = None,
    last_epoch: int = -1,
) -> LambdaLR:
    """From zero to the optimizer's rate over the warm-up, then on a line to a fraction of it.

    Without warm-up and down to zero it is the default of Hugging Face's trainer, which LLM-JEPA
    keeps. A final factor of 1 keeps the rate constant, so that a run does not depend on how long it
    was meant to be.

    Args:
        num_training_steps: optimizer steps of all epochs.
        final_factor: rate after the last step, as a fraction of the optimizer's.
        until: where the line ends: after all ``epochs``, or where the run does (``stop``).
        expected_steps: returns the optimizer steps that the run is expected to take, which ``stop``
            asks for at each step.

    Raises:
        ValueError: if ``expected_steps`` is missing.
    """
    if until == "stop" and expected_steps is None:
        raise ValueError("lr_scheduler.until=stop needs expected_steps")
    ends_after = expected_steps if until == "stop" else None

    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return step / num_warmup_steps
        total = ends_after() if ends_after else num_training_steps
        length = max(1, total - num_warmup_steps)
        progress = min(1.0, (step - num_warmup_steps) / length)
        return 1 + (final_factor - 1) * progress

    return LambdaLR(optimizer, factor, last_epoch)
