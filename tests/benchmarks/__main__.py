"""Run benchmarks: ``python -m tests.benchmarks [NAME ...]``, all of them by default.

Prints a table and writes it to ``--output`` as ``results.json`` and ``RESULTS.md``, with hardware
and versions. ``ERJEPA_DATA`` names the folder of the real datasets; ``LLM_JEPA_CHECKOUT`` and
``LLM_JEPA_PYTHON`` are needed for the comparison with LLM-JEPA's code, see
:mod:`tests.benchmarks.llm_jepa`.
"""

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

from tests import benchmarks
from tests.benchmarks.device import bfloat16_by
from tests.benchmarks.timing import Row

PARTS = (
    "device",
    "timing",
    "setting",
    "llm_jepa_launcher",
    "wrong_labels",
    "__main__",
)  # no benchmarks
PACKAGES = ("torch", "torchtune", "torchao")


def names() -> list[str]:
    """The benchmarks that there are."""
    modules = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return [name for name in modules if name not in PARTS]


def machine(threads: int) -> dict[str, str]:
    """Hardware and versions."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = (
            x for x in info.read_text().splitlines() if x.startswith("model name")
        )
        cpu = next(models, cpu).split(":")[-1].strip()
    found = {
        "cpu": f"{cpu}, {os.cpu_count()} cores, {threads} used",
        "bfloat16 products by": bfloat16_by(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
    }
    return found | {name: version(name) for name in PACKAGES}


def markdown(results: dict[str, list[Row]], about: dict[str, str], command: str) -> str:
    """The figures as Markdown tables, one a benchmark."""
    lines = ["# Benchmarks", "", f"Measured by `{command}` on:", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "Medians of repeated, interleaved runs, ± half the interquartile range. Rows that",
        "name no model use a small Llama, or on a GPU the shape of Llama-3.2-1B.",
    ]
    for name, rows in results.items():
        lines += [
            "",
            f"## {name}",
            "",
            "| measured | value | unit | target | note |",
            "| --- | ---: | --- | --- | --- |",
        ]
        for row in rows:
            spread = "" if row.spread is None else f" ± {row.spread:.3g}"
            cells = (
                row.name,
                f"{row.value:.4g}{spread}",
                row.unit,
                row.target,
                row.note,
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--output", type=Path, default=Path("bench_output"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"no benchmark {unknown[0]}; there are {', '.join(names())}")
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")

    about = machine(args.threads)
    command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
    results = {}
    for name in args.names or names():
        start = time.perf_counter()
        module = importlib.import_module(f"tests.benchmarks.{name}")
        results[name] = module.benchmark(args.quick)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        write(args.output, results, about, command)  # what is measured is kept
    print((args.output / "RESULTS.md").read_text())


def write(
    folder: Path, results: dict[str, list[Row]], about: dict[str, str], command: str
) -> None:
    """Write ``results.json`` and ``RESULTS.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "RESULTS.md").write_text(markdown(results, about, command))
    figures = {name: [row._asdict() for row in rows] for name, rows in results.items()}
    (folder / "results.json").write_text(
        json.dumps({"machine": about, "results": figures}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
