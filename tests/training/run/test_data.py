"""Which pairs fit into a run's rows."""

import itertools
import random
from array import array
from types import SimpleNamespace

import pytest

from erjepa.datasets import Pair
from erjepa.packing import PairCollator
from erjepa.training.run.data import fitting_pairs
from tests.harness.data import tokenized_pairs


class Located:
    def __init__(self, segments):
        self.pairs = tokenized_pairs(segments)

    def where(self, index):
        return f"line {index}"


@pytest.mark.parametrize(
    "views, direction, position",
    list(
        itertools.product(
            ("shared", "standalone", "spans", "none"),
            ("source_to_target", "target_to_source", "both"),
            ("behind", "front"),
        )
    ),
)
def test_pairs_fit_as_if_each_were_laid_out(views, direction, position):
    """Most are judged by the lengths of their segments alone."""
    rng = random.Random(0)
    pairs = Located(
        [
            [
                array("i", rng.choices((7, 8), k=rng.randint(1, 6)))
                for _ in Pair._fields[1:]
            ]
            for _ in range(200)
        ]
    )
    collator = PairCollator(
        views=views,
        direction=direction,
        predictor_ids=[99, 98],
        predictor_position=position,
    )
    lengths = [collator.length(pair) for pair in pairs.pairs]

    def fitting(max_seq_len, num_positions=99):
        cfg = SimpleNamespace(max_seq_len=max_seq_len)
        model = SimpleNamespace(num_positions=num_positions)
        run = SimpleNamespace(cfg=cfg, model=model)
        return fitting_pairs(run, pairs, collator, skip_too_long=True)

    for most in range(min(lengths), max(lengths) + 1):
        expected = [i for i, length in enumerate(lengths) if length <= most]
        assert fitting(most) == expected
    with pytest.raises(
        ValueError, match="200 of 200 .* longest, line .* Raise max_seq"
    ):
        fitting(min(lengths) - 1)
    deepest = max(collator.depth(pair) for pair in pairs.pairs)
    with pytest.raises(ValueError, match=f"line .* has a sequence of {deepest} tok"):
        fitting(99, num_positions=deepest - 1)
