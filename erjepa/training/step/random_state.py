"""The random state that dropout draws from: saved and restored."""

import torch
from torch import Tensor

RandomState = tuple[Tensor, Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """States of the generators of the CPU and, if it is one, of the CUDA device."""
    on_cuda = device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_cuda else None


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Put the generators back to where :func:`random_state` found them."""
    cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda, device)
