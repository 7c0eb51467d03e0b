"""A picture of a run: ``python -m erjepa.analysis.training_curve LOG PICTURE``."""

import argparse
from pathlib import Path

from erjepa.analysis.training_log import read_training_log

PANELS = (
    ("next-token loss (nats)", {"lm_loss": "new", "replay_lm_loss": "replayed"}),
    ("JEPA loss", {"jepa_loss": "new", "replay_jepa_loss": "replayed"}),
    ("cosine", {"cosine_paired": "own target", "cosine_shuffled": "another's target"}),
)


def draw_training_curve(log: Path, picture: Path) -> None:
    """Draw losses and cosines over steps.

    Args:
        log (Path): log of the run.
        picture (Path): file to write; its suffix chooses the format.

    Raises:
        ValueError: if the log holds no step.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = read_training_log(log)
    if not steps:
        raise ValueError(f"{log}: no step is logged here")
    figure, axes = plt.subplots(
        1, len(PANELS), figsize=(4 * len(PANELS), 3), layout="constrained"
    )
    for axis, (title, lines) in zip(axes, PANELS, strict=True):
        for (name, label), style in zip(lines.items(), ("-", "--"), strict=True):
            # Nothing is replayed in the first step, so its replay losses are no losses.
            points = {
                step: metrics[name]
                for step, metrics in steps.items()
                if name in metrics and ("replay" not in name or metrics["replayed"])
            }
            axis.plot(points.keys(), points.values(), style, label=label, linewidth=1.2)
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
