"""Count the tokens of a config's pairs, for choosing row_length and max_seq_len.

CONFIG is a path or the name of a packaged config. Its tokenizer and dataset are loaded, its model
is not. For plain SFT, which trains without views, add replay.weight=0 loss.jepa_weight=0.
"""

from collections.abc import Sequence

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    """Print the statistics of a config."""
    parser = CommandLine(prog="erjepa stats", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    with parser.errors(asked):
        from erjepa.configs import load
        from erjepa.packing.lengths import measure_config, table

        cfg = load(asked.config, asked.overrides)
        print(table(measure_config(cfg)), end="")
