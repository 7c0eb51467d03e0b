"""Draws the training curves of a run: losses, cosines and accuracy over steps."""

from pathlib import Path

import pandas as pd

from erjepa.studies.training_log import read_training_log

# Prefix of a metric's name -> label and style of its curve.
_PAIRS = {"": ("new", "-"), "replay_": ("replayed", "--"), "val_": ("held out", ".-")}
PANELS = {
    "next-token loss (nats)": {f"{of}lm_loss": _PAIRS[of] for of in _PAIRS},
    "JEPA loss": {f"{of}jepa_loss": _PAIRS[of] for of in _PAIRS},
    "cosine": {
        "cosine_paired": ("own target", "-"),
        "cosine_shuffled": ("another's target", "--"),
    },
    "accuracy": {"val_accuracy": _PAIRS["val_"]},
}


def draw_training_curve(log: Path, picture: Path) -> None:
    """Draw losses, cosines and accuracy over steps; metrics that are not logged are left out.

    Raises:
        ValueError: if the log has no steps, or ``picture`` has the suffix of no image format.
    """
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if picture.suffix[1:].lower() not in formats:
        raise ValueError(
            f"{picture}: expected a suffix of {', '.join(sorted(formats))}"
        )
    steps = pd.DataFrame(read_training_log(log)).T
    if steps.empty:
        raise ValueError(f"{log}: no step is logged here")
    # Draw replay losses only at steps that replayed pairs, which the first never does, and none
    # that the run does not have: it is logged as 0.
    replays = [name for name in steps if name.startswith("replay_")]
    if replays:
        losses = steps[replays].where(steps["replayed"] > 0, axis=0)
        steps[replays] = losses.where(losses != 0)
    steps = steps.dropna(axis="columns", how="all")
    panels = [title for title, lines in PANELS.items() if lines.keys() & {*steps}]
    size = 2.6 * len(panels), 2.3  # legible at the width of a README
    figure.set_size_inches(size)
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, title in zip(axes[0], panels, strict=True):
        for name, (label, style) in PANELS[title].items():
            if name in steps:
                points = steps[name].dropna()
                axis.plot(points.index, points, style, label=label, linewidth=1.2)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(picture, dpi=150)
