"""The runs of an experiment, and the commands that train and score them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.experiment.config import (
    BATCH_SIZE_TIMES,
    TOKENS_OF,
    WEIGHTS,
    Experiment,
    as_arguments,
    config_of,
    slug,
)


@dataclass(frozen=True)
class Cell:
    """One run: a method on a dataset with a seed.

    Args:
        dataset (str): short name of the dataset.
        config (str): config of the recipe.
        method (str): name of the method.
        seed (int): seed of the run.
        overrides (Mapping[str, Any]): of the experiment, the dataset and the method.
        tokens_of (str | None): name of the cell whose tokens end this run.
    """

    dataset: str
    config: str
    method: str
    seed: int
    overrides: Mapping[str, Any]
    tokens_of: str | None = None

    @property
    def name(self) -> str:
        """Where the run is within the results, such as ``synth/llm-jepa/seed_82``."""
        return cell_name(self.dataset, self.method, self.seed)


def cell_name(dataset: str, method: str, seed: int) -> str:
    """Name of a cell, which is its folder as well."""
    return f"{dataset}/{slug(method)}/seed_{seed}"


def cells(experiment: Experiment) -> list[Cell]:
    """All runs: seed by seed, so that what is there early can be compared.

    Runs that depend on another's tokens come after all others of their seed and dataset.
    """
    found = []
    for seed in experiment.seeds:
        for dataset, entry in experiment.datasets.items():
            config, of_dataset = config_of(entry)
            group = []
            for method, own in experiment.methods.items():
                overrides = {**experiment.overrides, **of_dataset, **own}
                if times := overrides.pop(BATCH_SIZE_TIMES, None):
                    overrides["batch_size"] = times * _batch_size(config, overrides)
                source = overrides.pop(TOKENS_OF, None)
                tokens_of = source and cell_name(dataset, source, seed)
                cell = Cell(dataset, config, method, seed, overrides, tokens_of)
                group.append(cell)
            found += sorted(group, key=lambda cell: cell.tokens_of is not None)
    return found


def _batch_size(config: str, overrides: Mapping[str, Any]) -> int:
    if "batch_size" in overrides:
        return overrides["batch_size"]
    return erjepa.configs.load(config).batch_size


def training_command(
    experiment: Experiment, cell: Cell, folder: Path, tokens: int | str | None = None
) -> list[str]:
    """The command that trains a cell, or goes on with it.

    Args:
        experiment (Experiment): what it belongs to.
        cell (Cell): the run.
        folder (Path): its output_dir.
        tokens (int | str | None): tokens at which it ends, or what is to stand for them.

    Returns:
        list[str]: arguments of ``tune``.
    """
    own: dict[str, Any] = {"seed": cell.seed, "output_dir": str(folder)}
    if experiment.budgets is not None:
        own["checkpoint_at_flops"] = list(experiment.budgets)
    if tokens is not None:
        own["stop.tokens"] = tokens
    elif experiment.match == "flops" and experiment.budgets:
        own["stop.flops"] = experiment.budgets[-1]
    if checkpoint.resumable_checkpoints(folder):
        own["resume_from_checkpoint"] = True
    return _tune(experiment, "erjepa_recipe", cell, own)


def evaluation_command(
    experiment: Experiment, cell: Cell, folder: Path, paths: Iterable[Path]
) -> list[str]:
    """The command that scores checkpoints of a cell; arguments as above, and ``paths``."""
    weights = WEIGHTS[tuple(experiment.score_weights)]
    own = {
        "seed": cell.seed,
        "output_dir": str(folder),
        "alignment": experiment.alignment,
        **({} if experiment.score_on == "test" else {"eval_split": "validation"}),
        **({} if weights == "last" else {"checkpoint": weights}),
        **experiment.evaluation,
        "checkpoint_dir": [str(path) for path in paths],
    }
    return _tune(experiment, "erjepa_eval", cell, own)


def checkpoints_to_score(experiment: Experiment, folder: Path) -> list[Path]:
    """The checkpoints of a finished run that its experiment asks for, oldest first.

    Those at budgets, or else at the ends of epochs; and the run's end, unless that is a
    budget.

    Args:
        experiment (Experiment): what the run belongs to.
        folder (Path): output_dir of the run.

    Returns:
        list[Path]: folders of the checkpoints.
    """
    *before, end = checkpoint.checkpoints(folder)
    if experiment.budgets is None:
        return [path for path in before if "step" not in path.name] + [end]
    at_flops = checkpoint.flops_checkpoints(folder)
    steps = [checkpoint.load_progress(path)["steps"] for path in (*at_flops, end)]
    return at_flops if steps[-1] in steps[:-1] else [*at_flops, end]


def _tune(
    experiment: Experiment, recipe: str, cell: Cell, own: Mapping[str, Any]
) -> list[str]:
    launcher = []
    if experiment.nproc_per_node > 1:
        # A port of its own, so that runs can go on side by side.
        launcher = ["--standalone", "--nproc_per_node", str(experiment.nproc_per_node)]
    arguments = as_arguments({**cell.overrides, **own})
    return ["tune", "run", *launcher, recipe, "--config", cell.config, *arguments]
