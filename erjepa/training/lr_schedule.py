"""The learning rate over a run."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def get_linear_schedule_with_warmup(
    optimizer: Optimizer,
    *,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    final_factor: float = 0.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """From zero to the optimizer's rate over the warm-up, then on a line to a fraction of it.

    Without warm-up and down to zero it is the default of Hugging Face's trainer, which LLM-JEPA
    keeps. A final factor of 1 keeps the rate constant, so that a run does not depend on how long it
    was meant to be.

    Args:
        num_training_steps: optimizer steps of the run.
        final_factor: rate after the last step, as a fraction of the optimizer's.

    Raises:
        ValueError: if the warm-up is negative or the final factor not between 0 and 1.
    """
    if num_warmup_steps < 0:
        raise ValueError(
            f"lr_scheduler.num_warmup_steps must be at least 0, got {num_warmup_steps}"
        )
    if not 0 <= final_factor <= 1:
        raise ValueError(
            f"lr_scheduler.final_factor must lie between 0 and 1, got {final_factor}"
        )

    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return step / num_warmup_steps
        length = max(1, num_training_steps - num_warmup_steps)
        progress = min(1.0, (step - num_warmup_steps) / length)
        return 1 + (final_factor - 1) * progress

    return LambdaLR(optimizer, factor, last_epoch)
