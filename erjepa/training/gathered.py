"""A sharded model, whole on every rank for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def gathered(model: nn.Module, *, reshard_after_forward: bool) -> Iterator[None]:
    """Hold all parameters on every rank, so that each runs what it likes: layers can be
    called in any order and number without waiting for another rank.

    Args:
        model (nn.Module): model after :func:`~erjepa.training.sharding.shard`.
        reshard_after_forward (bool): what it was sharded with, and is set back to.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(reshard_after_forward, recurse=False)
            part.reshard()
