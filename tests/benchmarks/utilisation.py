"""How much of the machine's matrix rate a training step uses, and what takes the rest.

    python -m tests.benchmarks.utilisation                      # small Llama on the CPU
    python -m tests.benchmarks.utilisation --device cuda --llama_3_2_1b

The model has random weights. Operations are those of :class:`erjepa.flops.StepFlops`: of
tokens, not of padding. The matrix rate is measured on the products of the model's own MLP.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from tests.benchmarks.setting import (
    LLAMA_3_2_1B,
    SHAPE,
    build_recipe,
    stepper,
    write_model,
    write_pairs,
)
from tests.benchmarks.timing import Row, interleave

# Kinds of operations by what their names hold, the first that fits.
KINDS = {
    "attention": ("attention", "flex", "flash"),
    "matrix products": ("::mm", "::addmm", "::bmm", "gemm", "cutlass", "cublas"),
    "optimizer": ("adamw", "foreach", "addcdiv", "addcmul", "lerp"),
    "dropout": ("bernoulli", "dropout"),
}


def benchmark(quick: bool) -> list[Row]:
    """Figures of the small model on the CPU."""
    return measure("cpu", SHAPE, repeats=3 if quick else 8)


def measure(
    device: str, shape: dict[str, int], repeats: int, top: int = 0
) -> list[Row]:
    """Rates and kinds of a step of ER-JEPA.

    Args:
        device (str): cpu or cuda.
        shape (dict[str, int]): of the model.
        repeats (int): measured steps.
        top (int): also print so many operations, those that take longest.

    Returns:
        list[Row]: the figures.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model", shape)
        pairs = write_pairs(folder / "pairs.jsonl", 512)
        recipe = build_recipe(
            model,
            pairs,
            folder / "out",
            shape=shape,
            device=device,
            optimizer__fused=device == "cuda",
        )
        run = stepper(recipe)
        slots, rates, flops = [], [], []
        recipe._model.register_forward_pre_hook(
            lambda module, batches: slots.append(
                (batches[0].num_tokens, batches[0].tokens.numel())
            )
        )

        def step() -> None:
            start = time.perf_counter()
            flops.append(run()["step_flops"])
            synchronize(device)
            rates.append(flops[-1] / (time.perf_counter() - start))

        product, product_flops = mlp_product(recipe, slots_hint=1536)
        for _ in range(2):
            step()
        slots.clear()
        times = interleave({"step": step, "matrix": product}, repeats=repeats)
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as trace:
            step()
    real, all_slots = map(sum, zip(*slots, strict=True))
    matrix = product_flops / times["matrix"].median
    achieved = torch.tensor(flops[-repeats - 1 : -1]).double().mean().item()
    achieved /= times["step"].median
    rows = [
        Row(f"matrix rate, {device}", matrix / 1e9, "GFLOP/s"),
        Row(f"model operations, ER-JEPA, {device}", achieved / 1e9, "GFLOP/s"),
        Row(f"utilisation, ER-JEPA, {device}", 100 * achieved / matrix, "%"),
        Row(f"token slots that hold tokens, {device}", 100 * real / all_slots, "%"),
    ]
    return rows + shares(trace, device, top)


def mlp_product(recipe, slots_hint: int):
    """A function that multiplies as the MLP does 20 times, and its operations."""
    weight = recipe._model.decoder.layers[0].mlp.w1.weight
    inputs = torch.randn(slots_hint, weight.shape[1], device=weight.device)
    inputs = inputs.to(weight.dtype)

    def product() -> None:
        with torch.no_grad():
            for _ in range(20):
                torch.nn.functional.linear(inputs, weight)
        synchronize(weight.device.type)

    return product, 20 * 2 * slots_hint * weight.numel()


def shares(trace: profile, device: str, top: int) -> list[Row]:
    """Share of the profiled time that each kind of operation takes."""
    on_device = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = trace.key_averages()
    total = sum(getattr(event, on_device) for event in events)
    by_kind = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in events:
        name = event.key.lower()
        fitting = (k for k, words in KINDS.items() if any(w in name for w in words))
        by_kind[next(fitting, "rest")] += getattr(event, on_device)
    if top:
        print(events.table(sort_by=on_device, row_limit=top, max_name_column_width=60))
    return [
        Row(f"share of {kind} in a step, {device}", 100 * seconds / total, "%")
        for kind, seconds in by_kind.items()
    ]


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--llama_3_2_1b", action="store_true")
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    shape = LLAMA_3_2_1B if args.llama_3_2_1b else SHAPE
    for row in measure(args.device, shape, args.repeats, top=15):
        print(f"{row.name:<48}{row.value:12.1f} {row.unit}")


if __name__ == "__main__":
    main()
