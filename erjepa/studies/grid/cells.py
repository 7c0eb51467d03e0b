"""The runs of an experiment, and the commands that train and score them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.studies.experiment import WEIGHTS, Experiment
from erjepa.studies.grid.config import as_arguments, load_run, run_of
from erjepa.studies.names import slug
from erjepa.studies.results import Result
from erjepa.utils.checked import leaves, normalize_numbers


@dataclass(frozen=True)
class Cell:
    """One run: a method on a dataset with a seed."""

    dataset: str
    config: str  # config of the recipe, by name or path
    method: str
    seed: int
    overrides: Mapping[str, Any]  # of the experiment, the dataset and the method
    tokens_of: str | None = None  # name of the cell whose token count ends this run
    # Names of the cells of all earlier stages; the run starts from the weights and memory of
    # the last. Empty if overrides start it without them
    after: Sequence[str] = ()
    # Whether it trains a new adapter, with those of ``after`` merged into the base model
    new_adapter: bool = False
    budget_factor: int = 1  # on the budgets of one dataset; 0: the cell is not trained
    # Name of an earlier cell with an equal run: this one is not run and copies its results
    same_as: str | None = None
    # Names of the cells to run before this one, and what it needs of each
    needs: Mapping[str, str] = field(default_factory=dict)

    def at_end(self, results: Iterable[Result]) -> str:
        """Say the accuracy at its end on its own dataset, of the first kind of weights."""
        own = [line for line in results if line.dataset == self.dataset]
        last = [line for line in own if line.weights == own[0].weights][-1]
        return f"accuracy {last.accuracy:.1%} at the end"

    @property
    def name(self) -> str:
        """Name of the cell and path of its folder, such as ``synth/llm-jepa/seed_82``."""
        return cell_name(self.dataset, self.method, self.seed)


def cell_name(dataset: str, method: str, seed: int) -> str:
    """Return the name of a cell, which is also the relative path of its folder."""
    return f"{dataset}/{slug(method)}/seed_{seed}"


def cells(experiment: Experiment) -> list[Cell]:
    """Return all cells of an experiment, seed by seed, so that methods can be compared early.

    Cells that need the tokens of another cell come last within their seed and dataset. A method
    with ``trains_on: all`` or ``nothing`` has one cell per seed, on the last dataset.
    """
    *_, last = experiment.datasets
    all_cells: list[Cell] = []
    for seed in experiment.seeds:
        for dataset in experiment.datasets:
            group = [
                _cell(experiment, dataset, method, seed)
                for method in experiment.methods
                if experiment.controls(method).has_stages or dataset == last
            ]
            all_cells += sorted(group, key=lambda cell: cell.tokens_of is not None)
    # In a sequence all runs of a method are scored alike; else by the config that trains them.
    one_of = {cell.method: cell for cell in all_cells if experiment.continual}
    scored = {name: _as_text(_how_scored(experiment, c)) for name, c in one_of.items()}
    first: dict[str, str] = {}  # what results depend on -> first cell with such a run
    runs: dict[str, str] = {}  # cell -> first cell with an equal run, or itself
    linked: list[Cell] = []
    for cell in all_cells:
        text = _as_text(_identity(cell, runs)) + scored.get(cell.method, "")
        same = runs[cell.name] = first.setdefault(text, cell.name)
        if same != cell.name:
            linked.append(replace(cell, same_as=same, needs={same: "results"}))
        else:
            needs = {runs[name]: "weights" for name in cell.after}
            if cell.tokens_of:
                needs[runs[cell.tokens_of]] = "tokens"
            linked.append(replace(cell, needs=needs))
    return linked


def _as_text(values: Any) -> str:
    """Return a text that is the same for equal values."""
    return json.dumps(normalize_numbers(values), sort_keys=True)


def _identity(cell: Cell, runs: Mapping[str, str]) -> list[Any]:
    """Return everything that a run depends on; equal values mean equal runs."""
    cfg = load_run(cell.config, cell.overrides)
    trained = {**cfg.as_dict(), "output_dir": None}
    inherited = cfg.replay.draw_from == "inherited"
    if not cfg.replay.weight:
        trained["replay"] = None
    elif inherited and not cell.after and not cfg.replay.start_from:
        trained["replay"] |= {"share": None}  # there is no inherited memory
    needs = [name and runs[name] for name in (cell.tokens_of, *cell.after)]
    merges = cell.new_adapter and bool(cell.after)
    if not (merges or cfg.base_adapters):
        trained["orthogonal_weight"] = None
    starts = _starts_from(cell, "")
    return [cell.dataset, cell.seed, cell.budget_factor, needs, merges, starts, trained]


def _how_scored(experiment: Experiment, cell: Cell) -> list[dict[str, Any]]:
    """Return the configs that score a cell, without what scoring does not use."""
    keys = ("output_dir", "dataset", "replay", "orthogonal_weight")
    unused = dict.fromkeys(keys)
    return [
        {**load_run(one.config, one.overrides).as_dict(), **unused}
        for one in scored_as(experiment, cell)
    ]


def scored_as(experiment: Experiment, cell: Cell) -> list[Cell]:
    """Return the cells whose configs score a cell: in a sequence one per dataset, otherwise, or
    before the end of one with ``score_stages: own``, the cell itself.
    """
    names, method = [*experiment.datasets], cell.method
    scores_own = experiment.score_stages == "own" and cell.dataset != names[-1]
    if not experiment.continual or scores_own:
        return [cell]
    scored = [_cell(experiment, name, method, cell.seed) for name in names]
    for name in experiment.also_scored:
        config, overrides = run_of(experiment, name, method)
        further = replace(cell, dataset=name, config=config, overrides=overrides)
        scored.append(further)
    return scored


def _cell(experiment: Experiment, dataset: str, method: str, seed: int) -> Cell:
    config, overrides = run_of(experiment, dataset, method)
    controls = experiment.controls(method)
    if controls.batch_size_times:
        batch_size = load_run(config, overrides).batch_size
        overrides["batch_size"] = controls.batch_size_times * batch_size
    source, trains_on = controls.tokens_of, controls.trains_on
    names = list(experiment.datasets)
    before = names[: names.index(dataset)]
    if trains_on in ("so_far", "all") and before:
        stages = (*before, dataset)
        runs = [load_run(*run_of(experiment, name, method)) for name in stages]
        parts = [
            part for run in runs for part in erjepa.configs.components(run.dataset)
        ]
        overrides = {
            key: value
            for key, value in overrides.items()
            if key.lstrip("~").partition(".")[0] != "dataset"
        }
        overrides["dataset"] = [part.as_dict() for part in parts]
    follows = experiment.continual and controls.has_stages
    cell = Cell(
        dataset,
        config,
        method,
        seed,
        overrides,
        tokens_of=source and cell_name(dataset, source, seed),
        after=[cell_name(name, method, seed) for name in before if follows],
        new_adapter=controls.new_adapters,
        budget_factor=len(names) if trains_on == "all" else int(trains_on != "nothing"),
    )
    carries = cell.new_adapter or _starts_from(cell, "")
    return cell if carries else replace(cell, after=[])


def training_command(
    experiment: Experiment,
    cell: Cell,
    folder: Path,
    tokens: int | str | None = None,
    after: Sequence[Path] = (),
) -> list[str]:
    """Return the command that trains a cell in ``folder``, or resumes its training.

    ``tokens`` end the run, or are a placeholder; ``after`` are the folders of earlier stages.
    """
    overrides: dict[str, Any] = {"seed": cell.seed, "output_dir": str(folder)}
    overrides |= _merged(experiment, cell, after)
    if after:
        overrides |= _starts_from(cell, _end_of(experiment, cell, after[-1]))
    if experiment.budgets is None:  # every epoch is scored
        overrides["keep_epochs"] = True
    if budgets := budgets_of(experiment, cell):
        overrides["checkpoint_at_flops"] = budgets
    if tokens is not None:
        overrides["stop.tokens"] = tokens
    elif budgets:
        overrides["stop.flops"] = budgets[-1]
    if checkpoint.resumable_checkpoints(folder):
        overrides["resume_from_checkpoint"] = True
    return _tune(experiment, "erjepa_recipe", cell, overrides)


def _starts_from(cell: Cell, run: str) -> dict[str, str | None]:
    """Return the overrides that start a cell from the weights and the memory of an earlier run."""
    if not cell.after:
        return {}
    cfg = load_run(cell.config, cell.overrides)
    starts: dict[str, str | None] = {}
    if not cell.new_adapter:
        starts["init_from"] = run
    if cfg.replay.weight and cfg.replay.selection != "current_batch":
        starts["replay.init_from"] = run
    # Overrides of these keys win, including None to start without them.
    for name, value in cell.overrides.items():
        for key, _ in leaves(name, value):
            starts.pop(key, None)
    # The first run of the sequence has continued it.
    if cfg.continue_from is not None and (starts or cell.new_adapter):
        starts["continue_from"] = None
    return starts


def budgets_of(experiment: Experiment, cell: Cell) -> list[float]:
    """Return the FLOPs at which a run is scored, ascending; empty without budgets."""
    return [cell.budget_factor * budget for budget in experiment.budgets or []]


def _merged(
    experiment: Experiment, cell: Cell, after: Sequence[Path]
) -> dict[str, list[str]]:
    """Return the override that merges the adapters of the runs in ``after`` into the base."""
    ends = [_end_of(experiment, cell, f) for f in after if cell.new_adapter]
    return {"base_adapters": ends} if ends else {}


def _end_of(experiment: Experiment, cell: Cell, folder: Path) -> str:
    """Return the path of a method's finished run from which its next stage, ``cell``, starts."""
    if experiment.budgets and not cell.tokens_of:
        folder /= checkpoint.flops_name(len(experiment.budgets) - 1)
    return str(folder)


def evaluation_command(
    experiment: Experiment,
    cell: Cell,
    folder: Path,
    paths: Iterable[Path],
    after: Sequence[Path] = (),
) -> list[str]:
    """Return the command that scores checkpoints of a cell, or without ``paths`` the base model."""
    checkpoints = [str(path) for path in paths]
    overrides = {
        "seed": cell.seed,
        "output_dir": str(folder),
        "eval_split": experiment.score_on,
        "checkpoint": WEIGHTS[tuple(experiment.score_weights)]
        if checkpoints
        else "last",
        **_merged(experiment, cell, after),
        # Each dataset of a sequence has its own evaluation command.
        **({"eval_earlier": False} if experiment.continual else {}),
        "merged": scores_merged(cell),
        **({"checkpoint_dir": checkpoints} if checkpoints else {"base_only": True}),
    }
    return _tune(experiment, "erjepa_eval", cell, overrides)


def scores_merged(cell: Cell) -> bool:
    """Whether the scores of a cell are those of merged weights; the base model has none."""
    return bool(cell.budget_factor) and load_run(cell.config, cell.overrides).merged


def checkpoints_to_score(experiment: Experiment, folder: Path) -> list[Path]:
    """Return the checkpoints of a finished run to score, oldest first: those at budgets, or else at
    the ends of epochs; and the last one, unless it is at the step of a budget.
    """
    *before, end = checkpoint.checkpoints(folder)
    if experiment.budgets is None:
        return [path for path in before if "step" not in path.name] + [end]
    at_flops = checkpoint.flops_checkpoints(folder)
    steps = [checkpoint.load_progress(path)["steps"] for path in (*at_flops, end)]
    return at_flops if steps[-1] in steps[:-1] else [*at_flops, end]


def _tune(
    experiment: Experiment, recipe: str, cell: Cell, overrides: Mapping[str, Any]
) -> list[str]:
    launcher = []
    if experiment.nproc_per_node > 1:
        # --standalone picks a free port, so that several runs fit on one machine.
        launcher = ["--standalone", "--nproc_per_node", str(experiment.nproc_per_node)]
    arguments = as_arguments({**cell.overrides, **overrides})
    return ["tune", "run", *launcher, recipe, "--config", cell.config, *arguments]
