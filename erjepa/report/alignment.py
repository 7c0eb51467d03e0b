"""The section on alignment: cosine and correctness of the same examples over checkpoints."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas

from erjepa.analysis.dynamics import history_order
from erjepa.analysis.training_log import read_training_log
from erjepa.report.answers import Answers, read_answers, require_same_examples
from erjepa.report.figures import PAGE, Figure, canvas
from erjepa.report.results import Result, Results, Unavailable
from erjepa.report.select import find_method
from erjepa.report.table import Column, Table
from erjepa.report.trajectories import whole_runs

_VERDICTS = ListedColormap(["#e6e6e6", "#262626"])


def alignment(
    results: Results,
    dataset: str,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
) -> Iterator[Table | Figure]:
    """Cosine of prompt and target, and correctness, of the same examples over checkpoints."""
    if methods is None:
        methods = [find_method(results, role) for role in ("LLM-JEPA", "ER-JEPA")]
    seed = results.seeds[0] if seed is None else seed
    found = {}
    for method in methods:
        run = whole_runs(results, dataset, method).get(seed)
        if run is None:
            raise Unavailable(f"{method} on {dataset} with seed {seed} is not finished")
        found[method] = run, [read_answers(results, row) for row in run]
    every = [one for _, answers in found.values() for one in answers]
    require_same_examples(every)
    if any(one.cosines is None for one in every):
        raise Unavailable("the evaluations computed no cosines (key `alignment`)")
    lowest = min(min(one.cosines) for one in every)
    picture, panels = canvas(PAGE, 0.4 + 2.1 * len(methods), len(methods), 3)
    rows = []
    for index, (method, (run, answers)) in enumerate(found.items()):
        loss, *heat = panels[3 * index : 3 * index + 3]
        _draw_loss(loss, results, run[-1])
        loss.set_ylabel(f"{method}\nJEPA loss")
        _draw_histories(picture, heat, answers, lowest)
        for number, (row, one) in enumerate(zip(run, answers, strict=True), start=1):
            means = (_mean_cosine(one, right) for right in (True, False))
            rows.append([method, number, row.checkpoint, row.accuracy, *means])
    titles = ("JEPA loss", "cosine", "correct (dark)")
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title)
    names = ("step", "checkpoint", "checkpoint")
    for axes, name in zip(panels[-3:], names, strict=True):
        axes.set_xlabel(name)
    yield Figure(
        f"alignment_{dataset}",
        f"JEPA loss in training, and for each test example of {dataset} the cosine of its "
        "embeddings of prompt and target, and whether its prediction is right (dark), at each "
        "checkpoint. Rows are sorted within each method by correctness at the last "
        f"checkpoint, then at the ones before. Seed {seed}.",
        picture,
    )
    yield Table(
        f"alignment_{dataset}",
        f"Accuracy on {dataset} and mean cosine of prompt and target, of examples that are "
        f"right and wrong at each checkpoint. Seed {seed}.",
        [
            Column("Method"),
            Column("Number"),
            Column("Checkpoint"),
            Column("Accuracy (%)", scale=100),
            Column("Cosine, right", digits=4),
            Column("Cosine, wrong", digits=4),
        ],
        rows,
    )


def _draw_histories(
    picture: Canvas, panels: Sequence[Axes], answers: Sequence[Answers], lowest: float
) -> None:
    """Cosines, from ``lowest`` to 1, and verdicts: a row an example, a column a checkpoint."""
    order = history_order([one.correct for one in answers])
    cosines = np.array([one.cosines for one in answers]).T[order]
    correct = np.array([one.correct for one in answers]).T[order]
    style = {"aspect": "auto", "interpolation": "nearest"}
    shades = panels[0].imshow(cosines, cmap="cividis", vmin=lowest, vmax=1, **style)
    picture.colorbar(shades, ax=panels[0], fraction=0.08)
    panels[1].imshow(correct, cmap=_VERDICTS, vmin=0, vmax=1, **style)
    for axes in panels:
        axes.set_xticks(range(len(answers)), [str(i + 1) for i in range(len(answers))])
        axes.set_yticks([])
        axes.set_ylabel("examples")


def _mean_cosine(answers: Answers, right: bool) -> float | None:
    """Over the examples that are right, or wrong; None if there is none."""
    pairs = zip(answers.cosines, answers.correct, strict=True)
    found = [cosine for cosine, is_right in pairs if is_right == right]
    return float(np.mean(found)) if found else None


def _draw_loss(axes: Axes, results: Results, row: Result) -> None:
    log = results.output / row.log
    steps = read_training_log(log) if log.is_file() else {}
    points = {
        step: one["jepa_loss"] for step, one in steps.items() if "jepa_loss" in one
    }
    if points:
        axes.plot(points.keys(), points.values(), color="black", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.grid()
    else:
        axes.text(0.5, 0.5, "not logged", ha="center", transform=axes.transAxes)
