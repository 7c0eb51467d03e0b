"""Run a grid of methods, datasets and seeds.

run        train and score all runs; run it again to resume
show       print all keys of the experiment, and the training command of each method
status     print the state of each run
cancel     cancel the jobs submitted with launcher=slurm

NAME is a packaged experiment or the path of a YAML file; EXPERIMENT is either, or its output_dir.
`erjepa report` makes the tables and figures.
"""

import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from erjepa.utils.command_line import CommandLine
from erjepa.utils.escape import counted

if TYPE_CHECKING:
    from erjepa.studies.experiment import Experiment


def main(arguments: Sequence[str]) -> int:
    parser = CommandLine(prog="erjepa experiment", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, metavar, description in (
        ("run", "NAME", "Train and score all runs; run it again to resume."),
        ("show", "NAME", "Print all keys, and the training command of each method."),
        ("status", "EXPERIMENT", "Print the state of each run."),
        ("cancel", "EXPERIMENT", "Cancel jobs submitted with launcher=slurm."),
    ):
        command = commands.add_parser(name, description=description)
        command.add_argument("name", metavar=metavar)
        if name in ("run", "show"):
            command.add_overrides()
    args = parser.parse_args(arguments)
    with parser.errors(args):
        from erjepa.studies.grid.config import load_experiment, output_of
        from erjepa.studies.grid.status import cancel_jobs, status

        if args.command == "status":
            print(*status(output_of(args.name)), sep="\n")
            return 0
        if args.command == "cancel":
            cancelled = counted(cancel_jobs(output_of(args.name)), "job")
            print(f"Cancelled {cancelled}. Run again to resume.")
            return 0
        experiment = load_experiment(args.name, args.overrides)
        if experiment.report:  # before hours of training
            from erjepa.studies.report.build import sections_of

            try:
                sections_of(experiment)
            except ValueError as error:
                raise ValueError(f"{args.name}: {error}") from None
        return _run(experiment) if args.command == "run" else _show(experiment)


def _run(experiment: "Experiment") -> int:
    """Run or submit an experiment; return exit code 1 if a cell failed."""
    from erjepa.studies.grid.data import require_data
    from erjepa.studies.grid.local import run_experiment
    from erjepa.studies.grid.output import unfinished
    from erjepa.studies.grid.slurm import submit

    require_data(experiment, unfinished(experiment))
    folder = shlex.quote(str(experiment.output_dir))
    if experiment.launcher == "slurm":
        submitted = submit(experiment)
        print(
            f"Submitted {counted(len(submitted), 'cell')}. To show their state, and to cancel them:"
        )
        print(f"  erjepa experiment status {folder}")
        print(f"  erjepa experiment cancel {folder}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed = run_experiment(experiment)
    if failed:
        count = counted(len(failed), "cell")
        print(f"{count} failed: {', '.join(failed)}. Run again to retry.")
        return 1
    print(f"Results: {experiment.output_dir}. Tables and figures:")
    print(f"  erjepa report {folder}")
    return 0


def _show(experiment: "Experiment") -> int:
    from omegaconf import OmegaConf

    from erjepa.studies.grid.cells import (
        Cell,
        cells,
        evaluation_command,
        training_command,
    )
    from erjepa.studies.grid.output import CELLS

    print(OmegaConf.to_yaml(OmegaConf.create(asdict(experiment)), sort_keys=False))
    all_cells = cells(experiment)
    equal = {cell.name: cell.same_as or cell.name for cell in all_cells}
    what = "sequence" if experiment.continual else "method"
    print(f"# {counted(len(all_cells), 'cell')}; the first of each {what}:")
    first: dict[tuple[str, str | None], Cell] = {}
    for cell in all_cells:
        stage = cell.dataset if experiment.continual else None
        first.setdefault((cell.method, stage), cell)
    methods = list(experiment.methods)
    for cell in sorted(first.values(), key=lambda cell: methods.index(cell.method)):
        if cell.same_as is not None:
            print(f"# {cell.name} is equal to {cell.same_as}")
            continue
        runs = Path(experiment.output_dir) / CELLS
        folder = runs / cell.name
        if cell.budget_factor:
            after = [runs / equal[name] for name in cell.after]
            # The number is known once the other run has ended.
            tokens = f"TOKENS_OF_{cell.tokens_of}" if cell.tokens_of else None
            command = training_command(experiment, cell, folder, tokens, after)
        else:
            command = evaluation_command(experiment, cell, folder, [])
        print(f"# {shlex.join(command)}")
    return 0
