"""Measure how much of the peak matrix rate a training step reaches, and what takes the rest.

    python -m tests.benchmarks.utilisation

also prints the slowest operations. On a GPU, rows have the lengths of ``ROW_LENGTHS``, and each is
measured with and without compiled layers; on a CPU only if ``ROW_LENGTHS`` is set. The model has
random weights. FLOPs are those of :class:`erjepa.objective.flops.StepFlops`, which counts tokens
but no padding. The peak rate is measured on the matrix products of the model's own MLP.
"""

import os
import time
from functools import partial

import torch
import torch._dynamo.utils
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from erjepa.packing import attention_mask
from erjepa.training.model.precision import dtypes_of
from tests.benchmarks.device import DEVICE, ON_GPU, synchronize
from tests.benchmarks.setting import BATCH_SIZE, fresh_recipe, stepper
from tests.benchmarks.timing import Row, interleave, peak_memory, reset_peak_memory

LENGTHS = os.environ.get("ROW_LENGTHS") or ("2048 8192" if ON_GPU else "")
# Tokens of a row, and whether layers are compiled.
CASES = [(int(n), compiled) for n in LENGTHS.split() for compiled in (False, True)]
EPOCH = 8 if ON_GPU else 0  # steps
PAIRS = 8 * BATCH_SIZE  # new ones in a step
LARGE = {"batch_size": PAIRS, "num_pairs": EPOCH * PAIRS} if ON_GPU else {}
# Kinds of operations by what their names hold, the first that fits.
KINDS = {
    # On a CPU attention is batched products and a softmax, which nothing else is.
    "attention": ("attention", "flex", "flash", "aten::bmm", "aten::_softmax"),
    "matrix products": ("::mm", "::addmm", "gemm", "cutlass", "cublas"),
    "optimizer": ("adamw", "foreach", "addcdiv", "addcmul", "lerp"),
    "drawing dropout": ("bernoulli", "dropout", "random_", "aten::ge"),
    "copies and conversions": ("copy_", "memcpy"),
}


def benchmark(quick: bool) -> list[Row]:
    """The figures of a step of ER-JEPA."""
    repeats = 3 if quick else 8
    cases = CASES or [(512, False)]
    return [row for case in cases for row in measure(repeats, *case)]


def measure(
    repeats: int, row_length: int, is_compiled: bool, top: int = 0
) -> list[Row]:
    """Rates and kinds of a step of ER-JEPA.

    Args:
        repeats (int): measured steps.
        row_length (int): most tokens of a row.
        is_compiled (bool): whether layers are.
        top (int): also print so many operations, those that take longest.

    Returns:
        list[Row]: the figures.
    """
    reset_peak_memory()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with fresh_recipe(row_length=row_length, compile=is_compiled, **LARGE) as recipe:
        run = stepper(recipe)
        batches, flops = [], []
        recipe._model.register_forward_pre_hook(
            lambda module, args: batches.append(args[0])
        )

        def step() -> None:
            flops.append(run()["step_flops"])

        start = time.perf_counter()
        for _ in range(2):
            step()
        first_steps = time.perf_counter() - start
        for _ in range(EPOCH):  # on a GPU, to compile kernels of most row shapes
            step()
        mask = partial(
            attention_mask,
            batches[-1].end,
            dtypes_of(recipe._cfg)[0],
            recipe._model.attention,
        )
        product, product_flops = mlp_product(recipe, batches[-1].tokens.numel())
        batches.clear()
        times = interleave(
            {"step": step, "matrix": product, "mask": mask}, repeats=repeats
        )
        passes = len(batches) / (repeats + 1)
        activities = [ProfilerActivity.CPU]
        if ON_GPU:
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as trace:
            step()
            synchronize()
    real = sum(batch.num_tokens for batch in batches)
    slots = sum(batch.tokens.numel() for batch in batches)
    matrix = product_flops / times["matrix"].median
    achieved = torch.tensor(flops[-repeats - 1 : -1]).double().mean().item()
    achieved /= times["step"].median
    mask_share = 100 * passes * times["mask"].median / times["step"].median
    aims = (">= 45", "< 2") if ON_GPU else ("", "")
    where = DEVICE.type
    if CASES:
        where += f", rows of {row_length}" + ", compiled" * is_compiled
    rows = [
        Row(f"matrix rate, {where}", matrix / 1e9, "GFLOP/s"),
        Row(f"model operations, ER-JEPA, {where}", achieved / 1e9, "GFLOP/s"),
        Row(
            f"utilisation, ER-JEPA, {where}",
            100 * achieved / matrix,
            "%",
            target=aims[0],
        ),
        Row(f"token slots that hold tokens, {where}", 100 * real / slots, "%"),
        Row(f"share of the mask in a step, {where}", mask_share, "%", target=aims[1]),
        times["step"].row(f"step, {where}"),
    ]
    if CASES:
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        rows.append(Row(f"the first two steps, {where}", first_steps, "s"))
        rows.append(Row(f"graphs compiled, {where}", graphs, ""))
    rows += peak_memory(where)
    return rows + shares(trace, times["step"].median, where, top)


def mlp_product(recipe, slots: int):
    """A function that multiplies as the MLP does 20 times, and its operations."""
    weight = recipe._model.decoder.layers[0].mlp.w1.weight
    inputs = torch.randn(slots, weight.shape[1], device=weight.device)
    inputs = inputs.to(weight.dtype)

    def product() -> None:
        with torch.no_grad():
            for _ in range(20):
                torch.nn.functional.linear(inputs, weight)

    return product, 20 * 2 * slots * weight.numel()


def shares(trace: profile, step: float, where: str, top: int) -> list[Row]:
    """Share of the profiled time that each kind of operation takes, and on a GPU the share of the
    ``step`` seconds in which it computes."""
    on_device = "self_device_time_total" if ON_GPU else "self_cpu_time_total"
    averages = trace.key_averages()
    # The time of a kernel is also that of the operation that launched it.
    events = [event for event in averages if event.device_type == DeviceType.CPU]
    total = sum(getattr(event, on_device) for event in events)
    by_kind = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in events:
        name = event.key.lower()
        fitting = (k for k, words in KINDS.items() if any(w in name for w in words))
        by_kind[next(fitting, "rest")] += getattr(event, on_device)
    if top:
        print(
            averages.table(sort_by=on_device, row_limit=top, max_name_column_width=60)
        )
    rows = [
        Row(f"share of {kind} in a step, {where}", 100 * seconds / total, "%")
        for kind, seconds in by_kind.items()
    ]
    if ON_GPU:  # microseconds over seconds
        busy = 1e-4 * total / step
        rows.append(
            Row(f"share of a step in which the GPU computes, {where}", busy, "%")
        )
    return rows


if __name__ == "__main__":
    for case in CASES or [(512, False)]:
        for row in measure(8, *case, top=15):
            print(f"{row.name:<60}{row.value:12.1f} {row.unit}")
