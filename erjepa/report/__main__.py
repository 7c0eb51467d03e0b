"""Write the report of an experiment: ``python -m erjepa.report OUTPUT``."""

import argparse
from pathlib import Path

from erjepa.report.build import build_report
from erjepa.report.sections import SECTIONS


def main() -> None:
    """Write a report and say where it is, or list what a report may have."""
    parser = argparse.ArgumentParser(
        prog="python -m erjepa.report", description=__doc__
    )
    parser.add_argument(
        "output", metavar="OUTPUT", type=Path, nargs="?", help="of an experiment"
    )
    parser.add_argument("--sections", action="store_true", help="list the sections")
    arguments = parser.parse_args()
    if arguments.sections:
        for name, section in SECTIONS.items():
            print(f"{name}: {section.build.__doc__.partition(chr(10))[0]}")
            print(f"    {', '.join(section.arguments)}")
        return
    if arguments.output is None:
        parser.error("name the output of an experiment")
    try:
        print(build_report(arguments.output))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
