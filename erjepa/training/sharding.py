"""The model over ranks: FSDP2 on several, whole on one.

On one rank FSDP2 would copy every parameter at each use, and cannot hold the NF4 weights of
QLoRA there.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torchao.dtypes.nf4tensor import NF4Tensor, to_nf4
from torchtune import training


def shard(
    model: nn.Module,
    *,
    layer_names: Sequence[str] = (),
    cpu_offload: bool = False,
    reshard_after_forward: bool = True,
) -> None:
    """Shard each transformer layer, the named modules, and the rest, if there are ranks to.

    Args:
        model (nn.Module): model on the meta device.
        layer_names (Sequence[str]): further modules to shard on their own.
        cpu_offload (bool): keep shards on the CPU; uses FSDP2 on one rank too.
        reshard_after_forward (bool): free gathered parameters after the forward pass.
    """
    if dist.get_world_size() == 1 and not cpu_offload:
        return
    condition = partial(training.get_shard_conditions, names_to_match=layer_names)
    training.shard_model(
        model=model,
        shard_conditions=[condition],
        cpu_offload=cpu_offload,
        reshard_after_forward=reshard_after_forward,
    )


def load_weights(
    model: nn.Module,
    weights: dict[str, Tensor],
    device: torch.device,
    *,
    cpu_offload: bool = False,
) -> None:
    """Give a model on the meta device its weights, cast and quantized as it wants them.

    Args:
        model (nn.Module): model after :func:`shard`.
        weights (dict[str, Tensor]): full tensors for all of its parameters.
        device (torch.device): device of the run.
        cpu_offload (bool): as for :func:`shard`.
    """
    if isinstance(model, FSDPModule):
        training.load_from_full_model_state_dict(
            model, weights, device, strict=True, cpu_offload=cpu_offload
        )
        return
    wanted = {
        name.replace("_checkpoint_wrapped_module.", ""): parameter
        for name, parameter in model.named_parameters()
    }
    state = {}
    for name, weight in weights.items():
        parameter = wanted[name]
        weight = weight.to(device=device, dtype=parameter.dtype)
        if isinstance(parameter, NF4Tensor):
            weight = to_nf4(
                weight,
                block_size=parameter.block_size,
                scaler_block_size=parameter.scaler_block_size,
            )
        state[name] = weight
    model.load_state_dict(state, strict=True, assign=True)


def set_last_backward(model: nn.Module, last: bool, *, keep_gathered: bool) -> None:
    """Whether the next backward pass is the last one of a step.

    Gradients add up on each rank and are reduced over ranks after the last one.

    Args:
        model (nn.Module): model after :func:`shard`.
        last (bool): whether it is.
        keep_gathered (bool): keep gathered parameters until the last one, so that a step
            gathers them once; for ``reshard_after_forward=False``.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last or not keep_gathered)
