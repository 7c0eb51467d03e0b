"""Write the report of an experiment: ``python -m erjepa.report OUTPUT``."""

import argparse
from pathlib import Path

from erjepa.report.build import build_report


def main() -> None:
    """Write a report and say where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m erjepa.report", description=__doc__
    )
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="of an experiment")
    try:
        print(build_report(parser.parse_args().output))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
