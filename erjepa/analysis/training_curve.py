"""A picture of a run: ``python -m erjepa.analysis.training_curve LOG PICTURE``."""

import argparse
from pathlib import Path

import pandas as pd

from erjepa.analysis.training_log import read_training_log

PANELS = (
    (
        "next-token loss (nats)",
        {"lm_loss": "new", "replay_lm_loss": "replayed", "val_lm_loss": "held out"},
    ),
    (
        "JEPA loss",
        {
            "jepa_loss": "new",
            "replay_jepa_loss": "replayed",
            "val_jepa_loss": "held out",
        },
    ),
    ("cosine", {"cosine_paired": "own target", "cosine_shuffled": "another's target"}),
    ("accuracy", {"val_accuracy": "held out"}),
)
_STYLES = {"replay": "--", "shuffled": "--", "val": ".-"}


def draw_training_curve(log: Path, picture: Path) -> None:
    """Draw losses, cosines and accuracy over steps, as far as they are logged.

    Args:
        log (Path): log of the run.
        picture (Path): file to write; its suffix chooses the format.

    Raises:
        ValueError: if the log holds no step.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = pd.DataFrame(read_training_log(log)).T
    if steps.empty:
        raise ValueError(f"{log}: no step is logged here")
    # Nothing is replayed in the first step, so its replay losses are none.
    replays = [name for name in steps if name.startswith("replay_")]
    if replays:
        steps[replays] = steps[replays].where(steps["replayed"] > 0, axis=0)
    steps = steps.dropna(axis="columns", how="all")
    panels = [(title, lines) for title, lines in PANELS if lines.keys() & {*steps}]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(2.6 * len(panels), 2.3),  # legible at the width of a README
        layout="constrained",
        squeeze=False,
    )
    for axis, (title, lines) in zip(axes[0], panels, strict=True):
        for name in filter(steps.__contains__, lines):
            style = next((s for part, s in _STYLES.items() if part in name), "-")
            points = steps[name].dropna()
            axis.plot(points.index, points, style, label=lines[name], linewidth=1.2)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(picture, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    draw_training_curve(arguments.log, arguments.picture)
