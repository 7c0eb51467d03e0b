"""Count the tokens of a config's pairs, for choosing row_length and max_seq_len.

CONFIG is a path or the name of a packaged config. Its tokenizer and dataset are loaded, its
weights are not. For plain SFT, which trains without views, add replay.weight=0
loss.jepa_weight=0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from erjepa.utils.command_line import CommandLine

if TYPE_CHECKING:
    from erjepa.configs import Config

SIZES = (128, 256, 512, 1024)


def main(arguments: Sequence[str]) -> None:
    """Print the statistics of a config."""
    parser = CommandLine(prog="erjepa stats", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    with parser.errors(asked):
        from erjepa.configs import load

        lengths = pair_lengths(load(asked.config, asked.overrides))
        print(table(token_statistics(lengths)), end="")


def pair_lengths(cfg: "Config") -> list[int]:
    """Return the tokens of each pair of a config with its views, in a row of its own."""
    from dataclasses import replace

    import torch

    from erjepa.training.run.prepared import PreparedRun

    run = PreparedRun(replace(cfg, seed=cfg.seed or 0), torch.device("cpu"))
    return [run.collators.new.length(pair) for pair in run.dataset.pairs]


def token_statistics(lengths: Sequence[int]) -> dict[str, Any]:
    """Return statistics of the lengths of pairs, in tokens.

    A percentile is the smallest length that holds this fraction of the pairs. ``fits`` maps sizes
    to the fraction that they hold, ``row_length`` fractions to the smallest multiple of 128.

    Raises:
        ValueError: if there are no pairs.
    """
    if not lengths:
        raise ValueError("the dataset has no pairs")
    lengths = sorted(lengths)

    def holding(per_mille: int) -> int:
        return lengths[-(-len(lengths) * per_mille // 1000) - 1]

    def row_length(per_mille: int) -> int:
        return -(-holding(per_mille) // 128) * 128

    return {
        "pairs": len(lengths),
        "mean": sum(lengths) / len(lengths),
        "median": holding(500),
        "p95": holding(950),
        "p99": holding(990),
        "max": lengths[-1],
        "fits": {
            size: sum(length <= size for length in lengths) / len(lengths)
            for size in SIZES
        },
        "row_length": {"99.9%": row_length(999), "100%": row_length(1000)},
    }


def table(statistics: dict[str, Any]) -> str:
    """Format the statistics as lines of text."""
    rows = [("pairs", str(statistics["pairs"])), ("mean", f"{statistics['mean']:.1f}")]
    names = ("median", "p95", "p99", "max")
    rows += [(name, str(statistics[name])) for name in names]
    rows += [(f"fit {size}", f"{fit:.2%}") for size, fit in statistics["fits"].items()]
    rows += [
        (f"row_length for {share}", str(length))
        for share, length in statistics["row_length"].items()
    ]
    return "".join(f"{name:<22}{value:>10}\n" for name, value in rows)
