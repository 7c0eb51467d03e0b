"""Where benchmarks run: on the GPU if there is one."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


def synchronize() -> None:
    """Wait for what the GPU has been given to do."""
    if ON_GPU:
        torch.cuda.synchronize()


def where() -> str:
    """What a time was taken on, for notes."""
    threads = torch.get_num_threads()
    return "GPU" if ON_GPU else f"{threads} thread{'s' if threads > 1 else ''}"
