"""Count the planted wrong labels that ``erjepa memory`` flags, and the right ones.

    python -m tests.benchmarks.wrong_labels [--pairs 2000] [--epochs 4] [--seed 0]

Trains the embedded model on pairs of the grammar twice: on the original pairs, and with the
targets of a twentieth of them replaced by those of other pairs. Prints how many of the suspects of
each memory are wrong. It measures no time, so ``make bench`` leaves it out.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from erjepa.commands.memory.trajectories import read_contents
from erjepa.tasks.nl_rx.grammar import generate_records

SHARE = 0.05


def plant(path: Path, pairs: int, seed: int, share: float) -> set[int]:
    """Write pairs, a share of them with wrong targets; the places of these."""
    rows = generate_records(pairs, split="train", seed=seed)
    rng = random.Random(seed)
    wrong = set(rng.sample(range(pairs), round(share * pairs)))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for share in (0.0, SHARE):
            folder = (arguments.folder or Path(name)) / f"{share:.0%}"
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "pairs.jsonl"
            wrong = plant(file, arguments.pairs, arguments.seed, share)
            train(folder, arguments.epochs, arguments.seed)
            slots = read_contents(folder / "run").slots
            flagged = {*slots.example[slots["flags"] != ""]}
            print(
                f"{len(wrong)} of {len(slots)} labels are wrong: {len(flagged)} flagged, "
                f"{len(flagged & wrong)} of them wrong"
            )


if __name__ == "__main__":
    main()
