"""A context manager that gathers a sharded model on every rank."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather all parameters on every rank. Within the context, a rank can call any layers any
    number of times, or none, without waiting for other ranks.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    hooks = [(part._forward_pre_hooks, part._forward_hooks) for part in parts]
    for part in parts:
        part.unshard()
        # FSDP2's hooks record the order of calls, which the next backward pass prefetches by.
        # Ranks with different calls would gather in different orders, and hang.
        part._forward_pre_hooks, part._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for part, (before, after) in zip(parts, hooks, strict=True):
            part._forward_pre_hooks, part._forward_hooks = before, after
            part.reshard()
