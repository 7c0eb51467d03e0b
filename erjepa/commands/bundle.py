"""Collects what a machine without a network needs.

Run it in a checkout, where there is a network. FOLDER gets the project and wheels of all it needs;
for each CONFIG also the datasets and the files of the base model that it names; all that in parts
of a bounded size, with install.sh:

    bash FOLDER/install.sh [WHERE]

which installs them offline, puts files where the config names them, and runs the checks of the
machine. key=value sets keys of the configs, such as dataset.source=FOLDER.
"""

from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    """Make a bundle."""
    parser = CommandLine(prog="erjepa bundle", description=__doc__)
    parser.add_argument("words", metavar="CONFIG | key=value", nargs="*")
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True)
    parser.add_argument("--max-part-size", metavar="SIZE", default="60MiB")
    parser.add_argument("--python", metavar="VERSION", default="3.12")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64")
    parser.add_argument(
        "--without", metavar="PACKAGE,...", default="", help="what the machine has"
    )
    asked = parser.parse_intermixed_args(arguments)
    with parser.errors(asked):
        from erjepa.bundle.make import make_bundle

        said = make_bundle(
            asked.output,
            [word for word in asked.words if "=" not in word],
            [word for word in asked.words if "=" in word],
            max_part_size=asked.max_part_size,
            python=asked.python,
            platform=asked.platform,
            without=list(filter(None, asked.without.split(","))),
        )
        print(said)
