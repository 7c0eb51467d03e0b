"""Make the tables, figures and page of an experiment, finished or not."""

from collections.abc import Sequence

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa report", description=__doc__)
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        nargs="?",
        help="its output_dir, its YAML file, or the name of a packaged one",
    )
    parser.add_argument("--sections", action="store_true", help="list the sections")
    args = parser.parse_args(arguments)
    if args.experiment is None and not args.sections:
        parser.error("name an experiment")
    with parser.errors(args):
        from erjepa.studies.grid.config import output_of
        from erjepa.studies.report.build import SECTIONS, build_report

        if not args.sections:
            print(build_report(output_of(args.experiment)))
            return
        for name, section in SECTIONS.items():
            first, *_ = (section.build.__doc__ or "").splitlines()
            print(f"{name}: {first}")
            print(f"    {', '.join(section.arguments)}")
