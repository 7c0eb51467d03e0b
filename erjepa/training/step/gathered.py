"""A sharded model, whole on every rank for a while."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold all parameters on every rank, so that each can call layers in any order and number, or
    not at all, without waiting for another rank.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    hooks = [(part._forward_pre_hooks, part._forward_hooks) for part in parts]
    for part in parts:
        part.unshard()
        # FSDP2's would note each call and prefetch by these notes in the next backward pass:
        # ranks that called differently would then gather differently, and hang.
        part._forward_pre_hooks, part._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for part, (before, after) in zip(parts, hooks, strict=True):
            part._forward_pre_hooks, part._forward_hooks = before, after
            part.reshard()
