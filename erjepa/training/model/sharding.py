"""Shards a model with FSDP2 on several ranks; on one rank the model is usually not sharded.

On one rank FSDP2 would copy every parameter at each use, and does not support QLoRA's NF4
weights. But if no parameter is stored in the dtype of the computation, each is cast, hence copied,
at each use anyway; then FSDP2 does so on one rank too.
"""

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torchao.dtypes.nf4tensor import NF4Tensor, to_nf4
from torchtune import training
from torchtune.modules import TiedLinear

from erjepa.configs import Config
from erjepa.training.model.device import memory_of
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.model.precision import dtypes_of


def is_sharded(cfg: Config, model: nn.Module) -> bool:
    """Whether :func:`shard` shards ``model``: on several ranks, or if FSDP2 is needed to cast all
    parameters or to keep them on the CPU.
    """
    dtype, _ = dtypes_of(cfg)
    held = {p.dtype for p in model.parameters()}
    return dist.get_world_size() > 1 or cfg.fsdp_cpu_offload or dtype not in held


def modules_to_shard(cfg: Config, model: nn.Module) -> list[nn.Module]:
    """Return the modules to shard separately: each transformer layer, those of
    ``custom_sharded_layers``, and last the root, which holds the remaining parameters.

    Raises:
        ValueError: if the model has no such layer.
    """
    modules = dict(model.named_modules())
    names = [f"decoder.{name}" for name in cfg.custom_sharded_layers or []]
    decoder = modules["decoder"]
    for name in cfg.custom_sharded_layers or []:
        # A tied output is no module: it is sharded with the embeddings.
        is_tied = isinstance(getattr(decoder, name, None), TiedLinear)
        if f"decoder.{name}" not in modules and not is_tied:
            raise ValueError(f"custom_sharded_layers: the model has no module {name}")
    return [
        module
        for name, module in reversed(modules.items())
        if not name or training.get_shard_conditions(name, module, names)
    ]


def require_shardable(cfg: Config, model: nn.Module, device: torch.device) -> None:
    """Check that a model, if it :func:`is_sharded`, can be.

    Raises:
        ValueError: if ``fsdp_cpu_offload`` is set on the CPU, or for a quantized model on one rank;
            if a quantized weight cannot be divided among the ranks.
    """
    if not is_sharded(cfg, model):
        return
    if cfg.fsdp_cpu_offload and device.type == "cpu":
        raise ValueError(
            "fsdp_cpu_offload=True: the run is on the CPU, where all shards are; set it to False"
        )
    ranks = dist.get_world_size()
    quantized = {n: p for n, p in model.named_parameters() if isinstance(p, NF4Tensor)}
    # On one rank FSDP2 copies the first of the three tensors of an NF4 weight (pytorch#197999).
    if ranks == 1 and quantized:
        raise ValueError(
            "fsdp_cpu_offload=True: FSDP2 does not support QLoRA on one rank; set it to False, or "
            "start more ranks"
        )
    for name, weight in quantized.items():
        rows, blocks = len(weight), weight.quantization_factor.numel()
        if rows % ranks or blocks % ranks:
            raise ValueError(
                f"model.quantize_base=True: the {rows} rows and {blocks} blocks of NF4 in {name} "
                f"cannot be divided evenly among {ranks} ranks; start a number that divides both, "
                "or set it to False"
            )


def shard(cfg: Config, model: nn.Module, device: torch.device) -> None:
    """Shard :func:`modules_to_shard` of a model on the meta device if :func:`is_sharded`.

    Parameters are gathered in ``dtype``, in which the model computes; gradients are accumulated and
    reduced in the dtype of the trainable parameters.

    Raises:
        ValueError: as :func:`require_shardable`.
    """
    require_shardable(cfg, model, device)
    if not is_sharded(cfg, model):
        return
    dtype, _ = dtypes_of(cfg)
    precision = MixedPrecisionPolicy()
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    if trained != {dtype}:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=trained.pop())
    offload = CPUOffloadPolicy() if cfg.fsdp_cpu_offload else OffloadPolicy()
    # Logits may be a view, such as those of transformers; nothing changes them in place.
    warnings.filterwarnings(
        "ignore", "FSDP2-wrapped module .* returned a view", UserWarning
    )
    # Without a mesh, FSDP2 uses GPUs if the machine has any, even in a run on the CPU.
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # FSDP2 does not shard scalars, such as constants of Apertus.
    scalars = {p for p in model.parameters() if p.ndim == 0}
    for module in modules_to_shard(cfg, model):
        # A tied output projection reads the embeddings after their own forward pass.
        is_read_again = isinstance(module, nn.Embedding)
        part = fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=bool(cfg.fsdp_reshard_after_forward)
            and not is_read_again,
            mp_policy=precision,
            offload_policy=offload,
            ignored_params=scalars,
        )
        # Gradients of ranks add up: each rank's loss is its part of the step's.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def with_resharding(cfg: Config, model: nn.Module, device: torch.device) -> Config:
    """Return the config with ``fsdp_reshard_after_forward`` resolved, the same on every rank."""
    memory = memory_of(device)
    # Ranks with different values would wait for each other forever.
    reshards = on_rank_zero(lambda: reshards_after_forward(cfg, model, memory))
    return replace(cfg, fsdp_reshard_after_forward=reshards)


def reshards_after_forward(cfg: Config, model: nn.Module, memory: int) -> bool:
    """Whether ranks free gathered weights between the forward and the backward pass.

    With ``fsdp_reshard_after_forward: null`` they do so if the parameters in ``dtype`` take more
    than a seventh of ``memory`` (bytes available to a rank), if shards are on the CPU, or if there
    is one rank, which has nothing to gather from others.
    """
    if cfg.fsdp_reshard_after_forward is not None:
        return cfg.fsdp_reshard_after_forward
    dtype, _ = dtypes_of(cfg)
    gathered = dtype.itemsize * sum(p.numel() for p in model.parameters())
    is_large = 7 * gathered > memory
    return is_large or cfg.fsdp_cpu_offload or dist.get_world_size() == 1


def load_weights(
    cfg: Config, model: nn.Module, weights: dict[str, Tensor], device: torch.device
) -> None:
    """Load full tensors into a model after :func:`shard`, cast and quantized as it needs."""
    if isinstance(model, FSDPModule):
        offload = cfg.fsdp_cpu_offload
        training.load_from_full_model_state_dict(
            model, weights, device, strict=True, cpu_offload=offload
        )
        return
    # Each replaces an earlier one, which is freed: an evaluation loads several models one after the
    # other, and the device may have room for one.
    replaced = parameters_by_name(model)
    for name, weight in weights.items():
        parameter = replaced.pop(name)
        weight = weight.to(device=device, dtype=parameter.dtype)
        if isinstance(parameter, NF4Tensor):
            weight = to_nf4(
                weight,
                block_size=parameter.block_size,
                scaler_block_size=parameter.scaler_block_size,
            )
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        module.load_state_dict({last: weight}, strict=False, assign=True)


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by the names that they have without activation checkpointing."""
    return {
        name.replace("_checkpoint_wrapped_module.", ""): parameter
        for name, parameter in model.named_parameters()
    }


def trained_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of :func:`parameters_by_name` that are trained."""
    return {n: p for n, p in parameters_by_name(model).items() if p.requires_grad}


@torch.no_grad()
def gather(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return full copies of weights, sharded or not, on the CPU of rank 0; empty on other ranks.

    Called on all ranks, with the same names in the same order.
    """
    gathered = {}
    for name, weight in weights.items():
        if isinstance(weight, DTensor):
            # With fsdp_cpu_offload shards are on the CPU, but ranks gather on CUDA.
            weight = cast(DTensor, weight.to(device)).full_tensor()
        if dist.get_rank() == 0:
            gathered[name] = weight.to("cpu", copy=True)
    return gathered


def set_last_backward(model: nn.Module, last: bool, *, keep_gathered: bool) -> None:
    """Set whether the next backward pass is the last one before gradients are reduced.

    Until then gradients accumulate on each rank. With ``keep_gathered``, which needs
    ``reshard_after_forward=False``, parameters stay gathered until then, so they are gathered once.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last or not keep_gathered)


def free_gathered(model: nn.Module) -> None:
    """Free gathered weights before the state of a model is read.

    A backward pass frees them; a forward pass without one may leave them gathered.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


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


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a weight or a gradient, or all of it if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
