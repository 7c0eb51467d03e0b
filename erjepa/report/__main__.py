"""Write the report of an experiment: ``python -m erjepa.report OUTPUT``."""

from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main() -> None:
    """Write a report and say where it is, or list what a report may have."""
    parser = CommandLine(prog="python -m erjepa.report", description=__doc__)
    parser.add_argument(
        "output", metavar="OUTPUT", type=Path, nargs="?", help="of an experiment"
    )
    parser.add_argument("--sections", action="store_true", help="list the sections")
    arguments = parser.parse_args()
    if arguments.output is None and not arguments.sections:
        parser.error("name the output of an experiment")
    with parser.errors(arguments):
        from erjepa.studies.report.build import SECTIONS, build_report

        if not arguments.sections:
            print(build_report(arguments.output))
            return
        for name, section in SECTIONS.items():
            first, *_ = (section.build.__doc__ or "").splitlines()
            print(f"{name}: {first}")
            print(f"    {', '.join(section.arguments)}")


if __name__ == "__main__":
    main()
