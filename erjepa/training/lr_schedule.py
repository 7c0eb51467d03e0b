"""Learning rate schedules."""

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
) -> LambdaLR:
    """Linear warm-up from zero to the optimizer's rate, then linear decay to a fraction of it.

    The defaults (no warm-up, decay to zero) are those of Hugging Face's trainer, which LLM-JEPA
    uses. With a final factor of 1 the rate stays constant, whatever the planned length of the run.

    Args:
        num_training_steps: optimizer steps of all epochs.
        final_factor: final rate, as a fraction of the optimizer's.
        until: where the decay ends: after all ``epochs``, or where ``stop`` ends the run.
        expected_steps: returns the expected optimizer steps of the run; called at each step with
            ``until="stop"``.

    Raises:
        ValueError: if ``until`` is ``stop`` and ``expected_steps`` is missing.
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

    return LambdaLR(optimizer, factor)
