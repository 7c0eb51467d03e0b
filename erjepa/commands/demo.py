"""Scores the embedded model, trains it with `tune run --nproc_per_node 2`, and scores the result."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine
from erjepa.utils.files import PREDICTIONS, SUMMARY

RANKS = 2


def tune_run(
    recipe: str, output_dir: Path, *overrides: str, ranks: int = RANKS
) -> None:
    """Run a recipe with the config ``tiny_synth`` as a user would, showing the command."""
    command = ["tune", "run", "--nproc_per_node", str(ranks), recipe]
    command += ["--config", "tiny_synth", f"output_dir={output_dir}", *overrides]
    print(f"\n$ {shlex.join(command)}", flush=True)
    threads = max(1, (os.cpu_count() or 1) // ranks)
    command[0] = str(Path(sys.executable).parent / "tune")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if code := subprocess.run(command, env=environment).returncode:
        raise RuntimeError(f"{recipe} ended with exit code {code}; see above")


def accuracy(output_dir: Path, name: str) -> float:
    """Exact match of one evaluation, between 0 and 1."""
    summary = output_dir / "evaluation" / name / SUMMARY
    return json.loads(summary.read_text())["accuracy"]


def main(arguments: Sequence[str]) -> None:
    """Run the demo and say where its results are."""
    parser = CommandLine(prog="erjepa demo", description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("demo_output"))
    asked = parser.parse_args(arguments)
    with parser.errors(asked):
        run(asked.output_dir.resolve() / time.strftime("%H%M%S"))


def run(output_dir: Path) -> None:
    """Score, train, score again, and draw the curve."""
    import matplotlib  # noqa: F401  missing, it is not to be found out in the end

    from erjepa.studies.training_curve import draw_training_curve

    start = time.monotonic()
    tune_run("erjepa_eval", output_dir, "base_only=True")
    held_out = ["validation.size=200", "validation.generate=200"]
    tune_run("erjepa_recipe", output_dir, *held_out, "eval_every_n_steps=15")
    tune_run("erjepa_eval", output_dir)
    log, picture = output_dir / "logs" / "metrics.txt", output_dir / "training.png"
    draw_training_curve(log, picture)

    print(
        f"""
exact match on held-out pairs
  before training  {accuracy(output_dir, "base"):6.1%}
  after training   {accuracy(output_dir, "epoch_0"):6.1%}
log               {log}
checkpoint        {output_dir / "epoch_0"}
training curve    {picture}
predictions       {output_dir / "evaluation" / "epoch_0" / PREDICTIONS}
{time.monotonic() - start:.0f} s"""
    )
