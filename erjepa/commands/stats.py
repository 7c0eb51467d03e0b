"""Count the tokens of a config's pairs, for choosing row_length and max_seq_len.

CONFIG is a path or the name of a packaged config. Its base model must be there, but its weights
are not loaded. For plain SFT, which trains without views, add replay.weight=0
loss.jepa_weight=0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erjepa.utils.command_line import CommandLine

if TYPE_CHECKING:
    from erjepa.configs import Config

SIZES = (128, 256, 512, 1024)


def main(arguments: Sequence[str]) -> None:
    parser = CommandLine(prog="erjepa stats", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_overrides()
    args = parser.parse_intermixed_args(arguments)
    with parser.errors(args):
        from erjepa.configs import load

        lengths = pair_lengths(load(args.config, args.overrides))
        for name, value in token_statistics(lengths).items():
            print(f"{name:<22}{value:>10}")


def pair_lengths(cfg: "Config") -> list[int]:
    """Return the tokens of each pair of a config with its views, in a row of its own."""
    from dataclasses import replace

    import torch

    from erjepa.configs import require_files
    from erjepa.training.run.prepared import PreparedRun

    cfg = require_files(replace(cfg, seed=cfg.seed or 0))
    run = PreparedRun(cfg, torch.device("cpu"))
    return [run.collators.new.length(pair) for pair in run.dataset.pairs]


def token_statistics(lengths: Sequence[int]) -> dict[str, str]:
    """Return statistics of the lengths of pairs, in tokens, formatted, by name.

    A percentile is the smallest length that holds this fraction of the pairs. ``fit N`` is the
    fraction that N tokens hold, ``row_length for P%`` the smallest multiple of 128 that holds P%.
    """
    import numpy as np

    tokens = np.asarray(lengths)

    def holding(share: float) -> int:
        return int(np.quantile(tokens, share, method="inverted_cdf"))

    shares = {"median": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    rows = {"99.9%": 0.999, "100%": 1.0}
    return {
        "pairs": f"{len(tokens)}",
        "mean": f"{tokens.mean():.1f}",
        **{name: f"{holding(share)}" for name, share in shares.items()},
        **{f"fit {size}": f"{(tokens <= size).mean():.2%}" for size in SIZES},
        **{
            f"row_length for {name}": f"{-(-holding(share) // 128) * 128}"
            for name, share in rows.items()
        },
    }
