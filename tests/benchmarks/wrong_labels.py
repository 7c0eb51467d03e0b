"""How well ``erjepa.memory`` finds wrong labels: precision and recall of its flags.

    python -m tests.benchmarks.wrong_labels [--pairs 2000] [--epochs 4] [--seed 0]

A twentieth of the grammar's pairs get the target of another pair, the demo's model is trained on
them all, and the suspects of its memory are compared with what was planted. No timing, so it is
no part of ``make bench``.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from erjepa.memory.reading import Slot
from erjepa.memory.suspects import read_suspects
from erjepa.tasks.nl_rx.grammar import generate_records

SHARE = 0.05


def plant(path: Path, pairs: int, seed: int) -> set[int]:
    """Write pairs, some with wrong targets; the places of these."""
    rows = generate_records(pairs, split="train", seed=seed)
    rng = random.Random(seed)
    wrong = set(rng.sample(range(pairs), round(SHARE * pairs)))
    targets = [row["messages"][-1]["content"] for row in rows]
    for i in sorted(wrong):
        others = [target for target in targets if target != targets[i]]
        rows[i]["messages"][-1]["content"] = rng.choice(others)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return wrong


def train(folder: Path, epochs: int, seed: int) -> None:
    """The demo's setting on the planted pairs."""
    overrides = {
        "output_dir": folder / "run",
        "dataset": "erjepa.datasets.paired_dataset",
        "dataset.source": folder / "pairs.jsonl",
        "replay.selection": "uniform",
        "epochs": epochs,
        "seed": seed,
        "log_example_errors": True,
    }
    words = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "erjepa_recipe", "--config", "tiny_synth", *words]
    subprocess.run(command, check=True, capture_output=True)


def scores(slots: list[Slot], wrong: set[int], flag: str) -> str:
    """Precision and recall of one flag, or of any."""
    flagged = {s.example for s in slots if any(flag in text for text in s.flags)}
    right = len(flagged & wrong)
    precision = right / len(flagged) if flagged else float("nan")
    return f"{len(flagged)} flagged, precision {precision:.2f}, recall {right / len(wrong):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the run here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(exist_ok=True)
        wrong = plant(folder / "pairs.jsonl", arguments.pairs, arguments.seed)
        train(folder, arguments.epochs, arguments.seed)
        slots = read_suspects(folder / "run").slots
    print(f"{len(wrong)} wrong labels among {arguments.pairs} pairs")
    for name, flag in (("stays hard", "hard"), ("twins", "asks the same"), ("any", "")):
        print(f"{name}: {scores(slots, wrong, flag)}")


if __name__ == "__main__":
    main()
