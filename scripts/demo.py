"""Draw the README's picture, what_is_kept.svg, in demo_output: `make demo`.

The embedded model trains on one kind of regexes, then on another, with and without the memory of
the first run. Each model is scored on both kinds.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd

from erjepa.studies.report.figures import STYLE, Figure, canvas, draw_bars
from erjepa.utils.files import SUMMARY
from erjepa.utils.summary import read_summary

RANKS = 2
OLD = "constructs=[and,not]", "without=[or,count,word]"
NEW = "constructs=[or,count,word]", "without=[and,not]"


def tune_run(recipe: str, output_dir: Path, *overrides: str) -> None:
    """Run a recipe as a user would, and print the command."""
    command = ["tune", "run", "--nproc_per_node", str(RANKS), recipe, "--config"]
    command += ["tiny_continual", f"output_dir={output_dir}", *overrides]
    print(f"\n$ {shlex.join(command)}", flush=True)
    threads = max(1, (os.cpu_count() or 1) // RANKS)
    command[0] = str(Path(sys.executable).parent / "tune")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, env=environment, check=True)


def accuracy(folder: Path, pairs: Sequence[str]) -> float:
    """Return the exact match of a run on pairs of a kind."""
    data = [f"eval_dataset.{setting}" for setting in pairs]
    data.append("eval_earlier=False")  # each run is scored on both kinds here
    tune_run("erjepa_eval", folder, *data)
    scored = max((folder / "evaluation").glob(f"*/{SUMMARY}"), key=os.path.getmtime)
    return read_summary(scored.parent).accuracy


def main(output_dir: Path) -> None:
    """Train three times, score each model on both kinds of pairs, and draw the scores."""
    start, first = time.monotonic(), output_dir / "first"
    runs = {
        "first run": (first, []),
        "second run, without the memory": (
            output_dir / "without",
            [f"init_from={first}", "replay.weight=0"],
        ),
        "second run, with it": (output_dir / "with", [f"continue_from={first}"]),
    }
    rows = []
    for name, (folder, settings) in runs.items():
        pairs = OLD if folder == first else NEW
        data = [f"dataset.{setting}" for setting in pairs]
        tune_run("erjepa_recipe", folder, *settings, *data)
        for kind, pairs in (("old", OLD), ("new", NEW)):
            percent = 100 * accuracy(folder, pairs)
            rows.append({"method": name, "kind": kind, "accuracy": percent})

    scores = pd.DataFrame(rows)
    file = output_dir / "what_is_kept.svg"
    with matplotlib.rc_context(fname=STYLE):
        picture, panels = canvas(2)
        for kind, panel in zip(("old", "new"), panels, strict=True):
            of_kind = scores[scores.kind == kind]
            draw_bars(panel, of_kind, "accuracy", "method", list(runs))
            panel.set(title=f"on {kind} pairs", xlim=(0, 100))
        panels[1].tick_params(labelleft=False)
        file.write_bytes(Figure("", picture, height=1.3, columns=2).saved("svg"))
    table = scores.pivot(index="method", columns="kind", values="accuracy")
    print(f"\nexact match in percent\n{table.loc[list(runs), ['old', 'new']]}")
    print(f"picture  {file}\n{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(Path("demo_output", time.strftime("%H%M%S")).resolve())
