"""Draw the losses, cosines and accuracy of a run over its steps."""

from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa curve", description=__doc__)
    parser.add_argument(
        "run", metavar="RUN", type=Path, help="output_dir of a run, or a log file"
    )
    parser.add_argument(
        "picture", metavar="FILE", type=Path, help="image to write, such as curve.svg"
    )
    args = parser.parse_args(arguments)
    with parser.errors(args):
        from erjepa.studies.training_curve import draw_training_curve

        log = args.run / "logs" / "metrics.txt" if args.run.is_dir() else args.run
        draw_training_curve(log, args.picture)
