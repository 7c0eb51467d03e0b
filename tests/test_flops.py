"""Operations counted from the structure = operations that torch counts as it runs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from erjepa.flops import StepFlops
from erjepa.forward import PackedDecoder
from erjepa.packing import PairCollator
from tests.models_for_tests import random_pairs, small_decoder


@pytest.mark.parametrize("num_pairs", [1, 5])
def test_linear_layers_and_head_by_torchs_count(num_pairs):
    """Rows of one pair each and no padding, so torch runs what is counted."""
    decoder = small_decoder()
    model = PackedDecoder(decoder, num_predictor_tokens=1)
    pair = random_pairs(1)[0]
    batch = PairCollator(predictor_ids=[94])([pair] * num_pairs)
    with FlopCounterMode(display=False) as counter:
        output = model(batch)
        sum(part.sum() for part in output).backward()
    counts = counter.get_flop_counts()["Global"]
    linear = sum(n for op, n in counts.items() if op is torch.ops.aten.mm)
    attention = StepFlops(decoder)._per_attended * batch.attention_area
    assert StepFlops(decoder)(batch) - attention == linear


def test_attention_by_hand():
    decoder = small_decoder()
    batch = PairCollator(views="none")(random_pairs(1))
    length = batch.num_tokens
    assert batch.attention_area == length * (length + 1) // 2
    # Two products of 32 multiply-adds a pair, thrice (forward, two gradients), in 2 layers.
    assert StepFlops(decoder)._per_attended == 2 * 2 * 32 * 3 * 2
