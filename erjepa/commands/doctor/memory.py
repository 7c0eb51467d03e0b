"""Memory of a training step by part, computed without a GPU and without weights.

Weights, gradients and optimizer states are those of the run's model on the meta device, sharded
as in the run. For activations, a forward and backward pass runs on the meta device while the
bytes of live tensors are counted.

Not counted: the CUDA context, NCCL's buffers, fragmentation of the allocator, and workspaces of
kernels. ``compile=True`` is treated as ``False``, which needs more.
"""

import warnings
import weakref
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves

from erjepa.configs import Component, Config
from erjepa.objective import Backend, JEPALoss, PackedDecoder
from erjepa.packing import PackedBatch
from erjepa.replay import slot_bytes
from erjepa.training.model.build import call_in_modules, checkpoint_layers
from erjepa.training.model.precision import dtypes_of
from erjepa.training.model.sharding import (
    is_sharded,
    modules_to_shard,
    reshards_after_forward,
)
from erjepa.training.run.memory import reserved_slots
from erjepa.training.run.prepared import PreparedRun

# Layers whose activations are there at once, if the others are offloaded.
_ON_DEVICE = 3


def memory_parts(
    run: PreparedRun, batch: PackedBatch, memory: int, inherited: int = 0
) -> dict[str, int]:
    """Return the bytes that a step needs on the device of a rank, by part.

    Args:
        run: its model cannot be used afterwards.
        batch: the largest micro-batch.
        memory: bytes of the device.
        inherited: number of pairs of earlier runs.

    Returns:
        Part to bytes; their sum is the peak. The parts are ``weights`` of this rank, ``gathered
        weights`` (unsharded, while layers run), ``gradients``, ``optimizer``, ``averaged
        weights``, ``activations``, ``logits`` (the increase of the peak through the logits at
        all labels), ``replay memory`` and ``answers`` (the increase through
        ``validation.generate``, which gathers all weights, between two steps).
    """
    model, replay = run.model, run.cfg.replay
    call_in_modules(model, "rope_init")  # rotary embeddings, which meta cannot compute
    reshards = reshards_after_forward(run.cfg, model, memory)
    cfg = replace(run.cfg, fsdp_reshard_after_forward=reshards)
    replays = replay.weight != 0 and replay.share is None  # in a separate pass
    weights, groups = list(model.parameters()), _groups(cfg, model)
    trained = [p for p in weights if p.requires_grad]
    rotary = sum(buffer.nbytes for buffer in model.buffers())
    averages = 0 if cfg.ema_decay is None else sum(_rows(p).numel() for p in trained)
    parts = {
        "weights": sum(map(_own_bytes, weights)) + rotary,
        "gathered weights": _gathered(cfg, groups),
        "gradients": _gradients(cfg, trained, groups, replays=replays),
        "optimizer": optimizer_bytes(cfg.optimizer, [_rows(p) for p in trained]),
        "averaged weights": 4 * averages,
    }
    activations, logits = activation_bytes(cfg, model, run.loss_fn, batch, run.device)
    parts |= {"activations": activations, "logits": logits, "replay memory": 0}
    if cfg.fsdp_cpu_offload:
        parts |= dict.fromkeys(("weights", "optimizer", "averaged weights"), 0)
    if replay.weight:
        slot, projection = slot_bytes(run.slot_settings, model.embed_dim)
        slots = replay.capacity + reserved_slots(replay, inherited)
        parts["replay memory"] = slots * slot + projection
    parts["answers"] = 0
    if cfg.validation.generate:
        of_step = ("gathered weights", "gradients", "activations", "logits")
        everything = _gathered(replace(cfg, fsdp_reshard_after_forward=False), groups)
        parts["answers"] = max(0, everything - sum(parts[part] for part in of_step))
    return parts


def optimizer_bytes(optimizer: Component, trained: Iterable[Tensor]) -> int:
    """Return the bytes of an optimizer's states, from a step on the meta device."""
    if "fused" in optimizer.arguments:
        optimizer = optimizer.with_arguments(fused=False)  # meta has no fused step
    parameters = [nn.Parameter(tensor) for tensor in trained]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    made = optimizer.build(parameters)
    made.step()
    states = tree_leaves([*made.state.values()])
    return sum(state.nbytes for state in states if isinstance(state, Tensor))


# ---------------------------------------------------------------------- weights


def _rows(parameter: Tensor) -> Tensor:
    """Return the first rank's shard of a parameter: FSDP2 shards rows."""
    parameter = torch.atleast_1d(parameter)
    rows = -(-len(parameter) // dist.get_world_size())
    return torch.empty_like(parameter[:rows], device="meta")


def _own_bytes(parameter: Tensor) -> int:
    if is_traceable_wrapper_subclass(parameter):
        return -(-_quantized_bytes(parameter) // dist.get_world_size())
    return _rows(parameter).nbytes


def _quantized_bytes(tensor: Any) -> int:
    names, _ = tensor.__tensor_flatten__()
    return sum(getattr(tensor, name).nbytes for name in names)


def _groups(cfg: Config, model: nn.Module) -> list[list[nn.Parameter]]:
    """Return the groups of parameters that FSDP2 gathers at once, the root's last."""
    if not is_sharded(cfg, model):
        return []
    groups, taken = [], set[nn.Parameter]()
    for module in modules_to_shard(cfg, model):
        groups.append([p for p in module.parameters() if p not in taken])
        taken.update(groups[-1])
    return groups


def _gathered(cfg: Config, groups: list[list[nn.Parameter]]) -> int:
    """Return the bytes of all unsharded layers, or of two, the root and a buffer for one."""

    def whole(parameter: nn.Parameter) -> int:
        if is_traceable_wrapper_subclass(parameter) and not cfg.fsdp_cpu_offload:
            return _quantized_bytes(parameter)
        # torchtune dequantizes the shards that it moves to the CPU.
        return parameter.numel() * dtypes_of(cfg)[0].itemsize

    if not groups:
        return 0
    *layers, root = [sum(map(whole, group)) for group in groups]
    largest = max(layers, default=0)
    if cfg.fsdp_reshard_after_forward:
        return root + 3 * largest
    return root + sum(layers) + largest


def _gradients(
    cfg: Config,
    trained: list[nn.Parameter],
    groups: list[list[nn.Parameter]],
    *,
    replays: bool,
) -> int:
    """Return bytes of gradients, which FSDP2 keeps unsharded over several backward passes."""
    if not groups:
        return sum(p.nbytes for p in trained)
    whole = [sum(p.nbytes for p in group if p.requires_grad) for group in groups]
    if replays or cfg.gradient_accumulation_steps > 1:
        return sum(whole)
    # One group unsharded, and the buffer of its reduction.
    return sum(map(_own_bytes, trained)) + 2 * max(whole)


# ------------------------------------------------------------------ activations


def activation_bytes(
    cfg: Config,
    model: PackedDecoder,
    loss_fn: JEPALoss,
    batch: PackedBatch,
    device: torch.device,
) -> tuple[int, int]:
    """Return the peak bytes of a forward and backward pass without logits, and the increase
    through logits. Weights and their gradients are not counted. The model, whose rotary embeddings
    are initialized, cannot be used afterwards.
    """
    is_cuda = device.type == "cuda"
    model.to("meta")
    if is_cuda:
        _as_on_cuda(model)
    if cfg.enable_activation_checkpointing:
        checkpoint_layers(model)
    without_labels = replace(
        batch,
        label_pos=batch.label_pos[:1],
        labels=batch.labels[:1],
        label_logit=batch.label_logit[:1],
        label_pair=batch.label_pair[:1],
    )
    if cfg.enable_activation_offloading and not isinstance(model.decoder, Backend):
        model.decoder.layers = model.decoder.layers[:_ON_DEVICE]
    _compute_in(model, dtypes_of(cfg)[0] if is_sharded(cfg, model) else None)
    # Replaces attention by its fused kernel, in recomputed layers too.
    fused = patch.object(F, "scaled_dot_product_attention", _fused_attention)
    experts = patch.object(F, "grouped_mm", _grouped_mm, create=True)
    with fused if is_cuda else nullcontext(), experts:
        without, peak = (
            _peak(model, loss_fn, part) for part in (without_labels, batch)
        )
    return without, peak - without


def _peak(model: PackedDecoder, loss_fn: JEPALoss, batch: PackedBatch) -> int:
    """Return the peak bytes of a forward and backward pass."""
    batch = batch.to(torch.device("meta"))
    known = [*model.parameters(), *model.buffers()]
    with warnings.catch_warnings(), LiveBytes(known) as live:
        warnings.simplefilter("ignore")  # about kernels that are not fused
        loss, _ = loss_fn(model(batch), batch, batch.num_labels, batch.num_pairs)
        loss.backward()
    return live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors that operations create; ``peak`` is the maximum.

    Each storage counts once, those of ``known`` tensors not at all.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self._alive = {t.untyped_storage()._cdata for t in known}
        self._now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return True  # transformers asks whether each row has one text
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not is_traceable_wrapper_subclass(tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._alive:
            return
        size = storage.nbytes()
        self._alive.add(storage._cdata)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size


def _compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Convert trainable weights to ``dtype``, and drop each gradient once it is computed."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(drop)
            p.data = p.data if dtype is None else p.data.to(dtype)


def _as_on_cuda(model: PackedDecoder) -> None:
    """Save for backward what fused kernels save: no attention scores, boolean dropout masks."""
    if isinstance(model.decoder, Backend):
        if model.attention == "flex":
            model.attend_by("dense")
    else:
        for layer in model.decoder.layers:
            layer.attn._attention_call = _fused_attention
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.forward = partial(_fused_dropout, module.p)  # type: ignore[method-assign]


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]


def _grouped_mm(inputs: Tensor, weight: Tensor, **_: Any) -> Tensor:
    """Compute all by one expert: on the meta device, torch's own only takes bfloat16."""
    return inputs @ weight[0]


def _fused_dropout(probability: float, x: Tensor) -> Tensor:
    return torch.native_dropout(x, probability, True)[0]
