"""A simulated CUDA device, for tests on a machine without a GPU.

Tensors are stored and computed on the CPU. A mark on each storage makes it claim to be on CUDA, so
a program takes the code paths of a GPU. As on a GPU,

- an operation on tensors of both devices raises an error;
- each wait of the host for the device is counted, with the line that causes it;
- collectives are recorded in order, with the device, dtype and shape of each tensor.

Streams, memory, kernels and their rounding are not simulated.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import erjepa.objective.attention
import erjepa.training.model.device

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PROJECT = Path(__file__).parents[2]
LINES_OF = (f"{PROJECT}/erjepa/", f"{PROJECT}/recipes/")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")

true_device = torch._C.TensorBase.device.__get__  # type: ignore[attr-defined]


def place(tensor: Tensor) -> str:
    """Return the place a tensor claims: ``cpu``, ``pinned`` (on the CPU), ``cuda`` or ``meta``."""
    if (true := true_device(tensor).type) != "cpu":
        return true
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # within vmap
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return getattr(tensor.untyped_storage(), "place", "cpu")


def mark(tensor: Tensor, place: str) -> Tensor:
    """Make a tensor, and all that share its storage, claim to be on the device."""
    tensor.untyped_storage().place = place  # type: ignore[attr-defined]
    return tensor


def device_type(tensor: Tensor) -> str:
    return {"pinned": "cpu"}.get(place(tensor), place(tensor))


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def tensors_in(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def running_lines() -> Iterator[tuple[str, int]]:
    """Return file and number of the lines on the stack, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def line_of_project() -> str:
    """Return the innermost line of the project on the stack, without tests."""
    for path, number in running_lines():
        if path.startswith(LINES_OF):
            return f"{Path(path).relative_to(PROJECT)}:{number}"
    return "elsewhere"


class Records:
    """What happened on the pretended device.

    Attributes:
        waits (Counter[str]): how often the host waited for the device, by line and cause.
        collectives (list[tuple]): name, and device, dtype and shape of each tensor.
    """

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.collectives: list[tuple] = []

    def wait(self, cause: str) -> None:
        self.waits[f"{line_of_project()}: {cause}"] += 1


class PretendedOperations(TorchDispatchMode):
    """Checks each operation, and marks its outputs."""

    def __init__(self, records: Records) -> None:
        super().__init__()
        self._records = records

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return self._run(func, args, dict(kwargs or {}))

    def _run(self, func, args, kwargs):
        inputs = [t for t in tensors_in(args, kwargs) if place(t) != "meta"]
        on_cuda = any(device_type(t) == "cuda" for t in inputs)
        if func.namespace == "c10d" and inputs:
            self._record(func, inputs)
        elif on_cuda:
            self._check(func, args, kwargs, inputs)
        # In backward passes, autograd asks for its zeros where tensors truly are.
        in_backward = torch._C._current_graph_task_id() != -1
        target = kwargs.get("device")
        if target is not None and torch.device(target).type == "cuda":
            kwargs["device"], on_cuda = CPU, True
        elif target is not None and not in_backward and "_to_copy" not in str(func):
            on_cuda = False
        elif not inputs and in_backward:
            on_cuda = True
        if kwargs.get("pin_memory"):
            return mark(func(*args, **{**kwargs, "pin_memory": False}), "pinned")
        out = func(*args, **kwargs)
        if on_cuda:
            before = {storage(t) for t in inputs}
            for tensor in tensors_in(out):
                if true_device(tensor) == CPU and storage(tensor) not in before:
                    mark(tensor, "cuda")
        return out

    def _record(self, func, tensors: list[Tensor]) -> None:
        described = [(device_type(t), str(t.dtype), tuple(t.shape)) for t in tensors]
        if len({device for device, *_ in described}) > 1:
            raise mixture(func, tensors)
        self._records.collectives.append((func._schema.name, *described))

    def _check(self, func, args, kwargs, inputs: list[Tensor]) -> None:
        """Raise an error, or record a wait, where a GPU would cause it."""
        wait, name = self._records.wait, func._schema.name.split("::")[1]
        on_cpu = [t for t in inputs if device_type(t) == "cpu"]
        if name == "copy_":
            non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
            if on_cpu and not (non_blocking and place(on_cpu[0]) == "pinned"):
                wait("copy_ between devices")
            return
        if name in INDEXING:
            indices = tensors_in(args[1])
            # Vmap adds an index of its own, which is where tensors truly are.
            in_vmap = any(path.endswith("vmap.py") for path, _ in running_lines())
            if any(device_type(i) == "cpu" for i in indices) and not in_vmap:
                wait("an index on the CPU")
            if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
                wait("a boolean index")
            values = tensors_in(args[0], args[2:])
            on_cpu = [t for t in values if device_type(t) == "cpu"]
        elif {*func.tags} & {
            torch.Tag.data_dependent_output,
            torch.Tag.dynamic_output_shape,
        }:
            wait(name)
        takes_scalars = torch.Tag.pointwise in func.tags or name in INDEXING
        if any(t.dim() or not takes_scalars for t in on_cpu):
            raise mixture(func, inputs)


def mixture(func, tensors: list[Tensor]) -> RuntimeError:
    described = ", ".join(f"{device_type(t)} {list(t.shape)}" for t in tensors)
    return RuntimeError(f"{line_of_project()}: {func} mixes devices: {described}")


def attend(q: Tensor, k: Tensor, v: Tensor, block_mask: BlockMask) -> Tensor:
    """FlexAttention, by the rule of its mask for single positions."""
    assert device_type(block_mask.kv_indices) == "cuda"
    rows = torch.arange(len(q), device=q.device)[:, None, None]
    index = torch.arange(q.shape[2], device=q.device)
    mask = block_mask.mask_mod(rows, 0, index[:, None], index)[:, None]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Moves:
    """What stands for methods of ``Tensor`` and functions of ``torch`` that move tensors.

    These are the calls that C++ answers by the true device.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._to, self._numpy, self._tolist = Tensor.to, Tensor.numpy, Tensor.tolist

    def move(self, tensor: Tensor, target: Any, non_blocking: bool = False) -> Tensor:
        here = place(tensor)
        there = CUDA.type if isinstance(target, int) else torch.device(target).type
        if there == device_type(tensor):
            return tensor
        if "meta" in (here, there):
            return self._to(tensor, there)
        if not (non_blocking and here != "cpu"):
            self._records.wait(f"a copy from {here} to {there}")
        return mark(tensor.clone(), there)

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.pop("device", None)
        if args and isinstance(args[0], (torch.device, str, int)):
            target, *args = args
        elif args and isinstance(args[0], Tensor):
            target, args = device_type(args[0]), [args[0].dtype, *args[1:]]
        moved = self._to(tensor, *args, **kwargs) if args or kwargs else tensor
        if target is None:
            return moved
        return self.move(moved, target, kwargs.get("non_blocking", False))

    def tolist(self, tensor: Tensor) -> Any:
        return self._tolist(self.move(tensor, "cpu"))

    def numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        if device_type(tensor) != "cpu":
            raise TypeError(f"{line_of_project()}: numpy() of a tensor on CUDA")
        return self._numpy(tensor, **kwargs)

    def new(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """``torch.tensor`` and similar functions, from numbers of the host."""

        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            if device is None:
                device = torch.empty(0).device
                if isinstance(args[0], Tensor):
                    device = device_type(args[0])
            if torch.device(device).type == "meta":
                return function(*args, device=device, **kwargs)
            return self.move(function(*args, device=CPU, **kwargs), device)

        return made


@contextlib.contextmanager
def pretended_device() -> Iterator[Records]:
    """Make ``device=cuda`` work: each rank has an 80 GiB GPU, with collectives over Gloo."""
    records = Records()
    moves = Moves(records)
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(tensors: list, with_indices: bool = False) -> dict:
        groups = group(tensors, with_indices)
        return {
            (groups_of[0][0][0].device, dtype): groups_of
            for (_, dtype), groups_of in groups.items()
        }

    of_tensors = {
        "device": property(
            lambda t: CUDA if device_type(t) == "cuda" else true_device(t)
        ),
        "is_cuda": property(lambda t: device_type(t) == "cuda"),
        "is_cpu": property(lambda t: device_type(t) == "cpu"),
        "pin_memory": lambda t: mark(t.clone(), "pinned"),
        "is_pinned": lambda t: place(t) == "pinned",
        "to": lambda *args, **kwargs: moves.to(*args, **kwargs),
        "cpu": lambda t: moves.move(t, "cpu"),
        "cuda": lambda t: moves.move(t, "cuda"),
        "record_stream": lambda t, stream: None,
        "tolist": lambda t: moves.tolist(t),
        "numpy": lambda t, **kwargs: moves.numpy(t, **kwargs),
        "new_tensor": moves.new(Tensor.new_tensor),
    }
    of_torch = {
        "tensor": moves.new(torch.tensor),
        "as_tensor": moves.new(torch.as_tensor),
    }
    nothing = lambda *_, **__: None  # noqa: E731
    of_cuda = {
        "_lazy_init": nothing,
        "is_available": lambda: True,
        "device_count": lambda: 8,
        "current_device": lambda: 0,
        "set_device": nothing,
        "get_device_name": lambda device=None: "pretended",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(
            total_memory=80 << 30, major=9, minor=0
        ),
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": nothing,
        "Stream": torch.cpu.Stream,
        "Event": torch.cpu.Event,
        "stream": torch.cpu.stream,
        "current_stream": torch.cpu.current_stream,
        "default_stream": torch.cpu.current_stream,
        "synchronize": lambda device=None: records.wait("synchronize"),
        "empty_cache": nothing,
        "memory_stats": lambda device=None: {},
        "max_memory_allocated": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": nothing,
    }
    with pytest.MonkeyPatch.context() as patch:
        for owner, replaced in (
            (Tensor, of_tensors),
            (torch, of_torch),
            (torch.cuda, of_cuda),
            (torch.cuda.nccl, {"version": lambda: (2, 27)}),
            (torch.distributed, {"is_nccl_available": lambda: True}),
            (torch.accelerator, {"is_available": lambda: True}),
            (torch._C, {"_group_tensors_by_device_and_dtype": grouped}),
            (erjepa.training.model.device, {"compiler_obstacle": nothing}),
            (erjepa.objective.attention, {"_compiled": lambda: attend}),
        ):
            for name, value in replaced.items():
                patch.setattr(owner, name, value)
        with PretendedOperations(records):
            yield records
