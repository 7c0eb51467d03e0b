"""How long pairs are, which ``row_length`` and ``max_seq_len`` are chosen by."""

from collections.abc import Sequence
from typing import Any

from erjepa.configs import Config
from erjepa.datasets import Pair, build_dataset
from erjepa.packing import BLOCK, PairCollator, layout_of

SIZES = (128, 256, 512, 1024)


def token_statistics(dataset: Sequence[Pair], collator: PairCollator) -> dict[str, Any]:
    """Lengths of the pairs in tokens, each with its views in a separate row.

    A percentile is the least length that holds so many pairs; ``fits`` is the fraction of pairs
    that a size holds, ``row_length`` the smallest multiple of 128 that holds so many.

    Raises:
        ValueError: if there is no pair.
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
    """Statistics of the training pairs of a config, see :func:`token_statistics`."""
    dataset = build_dataset(cfg.dataset, cfg.tokenizer.build())
    is_sft = cfg.loss.get("jepa_weight") == 0 and cfg.replay.weight == 0
    collator = PairCollator(
        **(layout_of(cfg) | ({"views": "none"} if is_sft else {})),
        # Which ids the predictor tokens have does not change a length.
        predictor_ids=[0] * (0 if is_sft else cfg.num_predictor_tokens),
    )
    return token_statistics(dataset.pairs, collator)


def table(statistics: dict[str, Any]) -> str:
    """The statistics as lines of text."""
    rows = [("pairs", str(statistics["pairs"])), ("mean", f"{statistics['mean']:.1f}")]
    names = ("median", "p95", "p99", "max")
    rows += [(name, str(statistics[name])) for name in names]
    rows += [(f"fit {size}", f"{fit:.2%}") for size, fit in statistics["fits"].items()]
    rows += [
        (f"row_length for {share}", str(length))
        for share, length in statistics["row_length"].items()
    ]
    return "".join(f"{name:<22}{value:>10}\n" for name, value in rows)
