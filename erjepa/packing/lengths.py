"""Length statistics of pairs, for choosing ``row_length`` and ``max_seq_len``."""

from collections.abc import Sequence
from typing import Any

from erjepa.configs import Config
from erjepa.datasets import Pair, build_dataset
from erjepa.packing import BLOCK, PairCollator, layout_of

SIZES = (128, 256, 512, 1024)


def token_statistics(dataset: Sequence[Pair], collator: PairCollator) -> dict[str, Any]:
    """Return statistics of pair lengths in tokens; each pair with its views takes its own row.

    A percentile is the smallest length that holds this fraction of the pairs. ``fits`` maps sizes
    to the fraction that they hold, ``row_length`` fractions to the smallest multiple of 128.

    Raises:
        ValueError: if there are no pairs.
    """
    lengths = sorted(collator.length(dataset[i]) for i in range(len(dataset)))
    if not lengths:
        raise ValueError("the dataset has no pairs")

    def holding(per_mille: int) -> int:
        return lengths[-(-len(lengths) * per_mille // 1000) - 1]

    def row_length(per_mille: int) -> int:
        return -(-holding(per_mille) // BLOCK) * BLOCK

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


def measure_config(cfg: Config) -> dict[str, Any]:
    """Return :func:`token_statistics` of the training pairs of a config."""
    dataset = build_dataset(cfg.dataset, cfg.tokenizer.build())
    is_sft = cfg.loss.get("jepa_weight") == 0 and cfg.replay.weight == 0
    collator = PairCollator(
        **(layout_of(cfg) | ({"views": "none"} if is_sft else {})),
        # Lengths do not depend on the ids of predictor tokens.
        predictor_ids=[0] * (0 if is_sft else cfg.num_predictor_tokens),
    )
    return token_statistics(dataset.pairs, collator)


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
