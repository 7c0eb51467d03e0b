"""Compare steps of LLM-JEPA's reference code with steps of the recipe under the same objective.

Needs ``LLM_JEPA_CHECKOUT``, a checkout of its repository, and ``LLM_JEPA_PYTHON``, a Python
interpreter with transformers 4.55.2, peft 0.17.0, datasets and tiktoken. Pairs, model, LoRA rank
and dropout, pairs per step, threads and bfloat16 are the same; gradient accumulation is 1. The
other settings of LLM-JEPA's code are its defaults: it checkpoints activations, and keeps adapters
in float32 under autocast.
"""

import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.benchmarks.device import ON_GPU, bfloat16_by
from tests.benchmarks.setting import (
    LORA_RANK,
    build_recipe,
    pairs_are,
    shared_model,
    stepper,
    threads,
    write_pairs,
)
from tests.benchmarks.timing import Row, Times, interleave, ratio

LAUNCHER = Path(__file__).with_name("llm_jepa_launcher.py")
OUR_STEPS = 5  # a turn: ours take as long as their pairs, the padded ones all as long
DEFAULT = {"padded to 512, its default": ["--max_length", "512"]}
SHORT = {
    "padded to 128": ["--max_length", "128"],
    "additive mask, padded to 128": ["--max_length", "128", "--additive_mask"],
}
LEAST = (27, 6, 4.2) if bfloat16_by() == "AMX" else (40, 8, 5.5)  # of a CPU
TARGETS = {} if ON_GPU else dict(zip(DEFAULT | SHORT, LEAST, strict=True))
# By pairs of a step: 4 is its default. 16 padded to 512 may not fit beside the others.
VARIANTS = {4: DEFAULT | SHORT} | ({16: SHORT} if ON_GPU else {})


def missing() -> str:
    """Why the comparison cannot run, "" if it can."""
    checkout = os.environ.get("LLM_JEPA_CHECKOUT")
    python = os.environ.get("LLM_JEPA_PYTHON")
    if not checkout or not python:
        return "LLM_JEPA_CHECKOUT and LLM_JEPA_PYTHON are not set"
    if not (Path(checkout) / "finetune.py").is_file():
        return f"LLM_JEPA_CHECKOUT={checkout} has no finetune.py"
    if not Path(python).is_file():
        return f"LLM_JEPA_PYTHON={python} is no file"
    return ""


def benchmark(quick: bool) -> list[Row]:
    """Examples per second over those of LLM-JEPA's code, for each way it pads."""
    if reason := missing():
        print(f"skipped: {reason}")
        return []
    return [row for size in VARIANTS for row in compare(size, 3 if quick else 7)]


def compare(batch_size: int, repeats: int) -> list[Row]:
    """The same for steps of ``batch_size`` pairs."""
    variants = VARIANTS[batch_size]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = shared_model()
        pairs = write_pairs(folder / "pairs.jsonl", 512)
        steps = {
            name: stack.enter_context(
                reference(model, pairs, folder / name, batch_size, arguments)
            )
            for name, arguments in variants.items()
        }
        recipe = build_recipe(
            model, pairs, folder / "ours", replay__weight=0, batch_size=batch_size
        )
        step = stepper(recipe)
        steps["ours"] = lambda: [step() for _ in range(OUR_STEPS)]
        times = interleave(steps, repeats=repeats)
        times["ours"] = Times([s / OUR_STEPS for s in times["ours"].seconds])
    note = f"{pairs_are()}, {batch_size} pairs a step"
    rows = [
        Row(
            f"pairs per second, {name}",
            batch_size / t.median,
            "1/s",
            batch_size * t.spread / t.median**2,
            note=note,
        )
        for name, t in times.items()
    ]
    rows += [
        ratio(
            f"LLM-JEPA {name}: its time over ours",
            times[name],
            times["ours"],
            target=f">= {TARGETS[name]}" if name in TARGETS else "",
            note=note,
        )
        for name in variants
    ]
    return rows


@contextmanager
def reference(
    model: Path, pairs: Path, output_dir: Path, batch_size: int, arguments: list[str]
) -> Iterator[Callable[[], float]]:
    """A function that makes LLM-JEPA's code take one step, in a process of its own.

    The process gets ready while others do, and the first call waits for it.
    """
    command = [
        *(os.environ["LLM_JEPA_PYTHON"], LAUNCHER),
        *(os.environ["LLM_JEPA_CHECKOUT"], model),
        *("--train_file", pairs, "--output_dir", output_dir),
        *("--lora", "--lora_rank", LORA_RANK, "--last_token", -2, "--predictors", 1),
        *("--batch_size", batch_size, "--grad_accum", 1, "--num_epochs", 1000),
        *arguments,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads()),
        "HF_HOME": str(output_dir / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )

    def answer() -> str:
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            raise RuntimeError(f"LLM-JEPA's code ended:\n{log.read()[-3000:]}")
        return line.strip()

    @functools.cache
    def wait_until_ready() -> None:
        assert answer() == "ready"

    def step() -> float:
        wait_until_ready()
        process.stdin.write("step\n")
        process.stdin.flush()
        return float(answer())

    try:
        yield step
    finally:
        process.stdin.close()
        process.wait()
        log.close()
