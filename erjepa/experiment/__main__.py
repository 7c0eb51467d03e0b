"""Grids of runs: ``python -m erjepa.experiment run NAME [key=value ...]``.

NAME is a packaged experiment or the path of a YAML file. Started again, it goes on where it
was. ``show`` prints what would run. Of OUTPUT, the folder of an experiment, ``status`` says where
each run is, ``cancel`` ends what ``launcher=slurm`` submitted, and ``report`` makes the report of
what is there.
"""

import shlex
import signal
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from omegaconf import OmegaConf

from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import cells, evaluation_command, training_command
from erjepa.studies.grid.config import load_experiment
from erjepa.studies.grid.output import CELLS
from erjepa.studies.grid.running import run_experiment
from erjepa.studies.grid.slurm import submit
from erjepa.studies.grid.status import cancel_jobs, status
from erjepa.utils.command_line import CommandLine


def run(experiment: Experiment) -> int:
    """Run an experiment, or submit it; exit code 1 if a cell failed."""
    if experiment.launcher == "slurm":
        submitted = submit(experiment)
        print(f"{len(submitted)} cells submitted. Where they are, and how to end them:")
        print(f"  python -m erjepa.experiment status {experiment.output_dir}")
        print(f"  python -m erjepa.experiment cancel {experiment.output_dir}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed = run_experiment(experiment)
    if failed:
        print(f"{len(failed)} cells failed: {', '.join(failed)}. Run again to retry.")
        return 1
    print(f"Results: {experiment.output_dir}. Tables and figures:")
    print(f"  python -m erjepa.experiment report {experiment.output_dir}")
    return 0


def show(experiment: Experiment) -> int:
    """Print an experiment with all its keys, and how each method trains."""
    print(OmegaConf.to_yaml(OmegaConf.create(experiment.as_dict()), sort_keys=False))
    found = cells(experiment)
    what = "sequence" if experiment.continual else "method"
    print(f"# {len(found)} cells; the first of each {what}:")
    stages = experiment.datasets if experiment.continual else [None]
    first = {
        (cell.method, cell.dataset if experiment.continual else None): cell
        for cell in reversed(found)
    }
    for cell in filter(None, map(first.get, product(experiment.methods, stages))):
        folder = Path(experiment.output_dir) / CELLS / cell.name
        # Known when the other run has ended.
        tokens = f"TOKENS_OF_{cell.tokens_of}" if cell.tokens_of else None
        command = training_command(experiment, cell, folder, tokens)
        if not cell.datasets:
            command = evaluation_command(experiment, cell, folder, [])
        print(f"# {shlex.join(command)}")
    return 0


def report(output_dir: str) -> int:
    """Make the report of an experiment."""
    from erjepa.studies.report.build import build_report

    build_report(Path(output_dir))
    return 0


def print_status(output_dir: str) -> int:
    """Say where each cell is."""
    for line in status(Path(output_dir).absolute()):
        print(line)
    return 0


def cancel(output_dir: str) -> int:
    """End what was submitted."""
    count = cancel_jobs(Path(output_dir).absolute())
    print(f"{count} jobs cancelled. Run again to go on.")
    return 0


_OF_OUTPUT = {"status": print_status, "cancel": cancel, "report": report}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line.

    Args:
        arguments (Sequence[str] | None): ``None`` for those of the process.

    Returns:
        int: exit code.
    """
    parser = CommandLine(prog="python -m erjepa.experiment", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "show"):
        command = commands.add_parser(name)
        command.add_argument("name", metavar="NAME")
        command.add_argument("overrides", metavar="key=value", nargs="*")
    for name in _OF_OUTPUT:
        commands.add_parser(name).add_argument("output_dir", metavar="OUTPUT")
    args = parser.parse_args(arguments)
    try:
        with parser.errors(args):
            if args.command in _OF_OUTPUT:
                return _OF_OUTPUT[args.command](args.output_dir)
            experiment = load_experiment(args.name, args.overrides)
            return run(experiment) if args.command == "run" else show(experiment)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
