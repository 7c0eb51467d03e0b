"""Saves and restores the random state that dropout draws from."""

import torch
from torch import Tensor

RandomState = tuple[Tensor, Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """Return the generator states of the CPU and, for a CUDA device, of that device."""
    on_cuda = device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_cuda else None


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Restore the generators to a state from :func:`random_state`."""
    cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda, device)
