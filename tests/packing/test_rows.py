"""Which pairs share a row and a micro-batch, against the definitions."""

import random

import pytest
import torch

from erjepa.packing import PADDING, PairCollator, few_sizes, level, tight
from tests.models_for_tests import PREDICTOR_IDS, random_pairs


def test_longest_first_each_into_the_emptiest_row():
    lengths = [3, 6, 4, 5, 2]
    # 6 | 5; 4 joins 5; 3 joins 6; both hold 9, and 2 would make 11.
    assert level(lengths, row_length=11) == [[1, 0, 4], [3, 2]]
    # So three rows of at most 10: 6 | 5 | 4; 3 joins 4; 2 joins 5.
    assert level(lengths, row_length=10) == [[1], [3, 4], [2, 0]]
    assert level([], row_length=10) == [[]]
    assert level([4, 3], row_length=10, at_least=3) == [[0], [1], []]


@pytest.mark.parametrize("at_least", [1, 4])
def test_rows_hold_every_item_once_and_are_level(at_least):
    rng = random.Random(0)
    for _ in range(50):
        lengths = [rng.randint(1, 40) for _ in range(rng.randint(1, 60))]
        rows = level(lengths, 64, at_least)
        used = [sum(lengths[i] for i in row) for row in rows]
        assert sorted(sum(rows, [])) == list(range(len(lengths)))
        assert max(used) <= 64 and len(rows) >= at_least
        # A row that got its last item as the emptiest one is no fuller than any other by
        # more than that item.
        assert max(used) - min(used) <= max(lengths)


def test_more_rows_where_they_cost_less():
    assert tight([4, 4, 4, 4], row_length=13) == [[0], [1], [2], [3]]
    assert len(level([5] * 16, row_length=30)) == 3  # 6, 5 and 5 items: 90 slots
    assert [len(row) for row in tight([5] * 16, row_length=30)] == [4, 4, 4, 4]
    # As many slots, and half the attention; of 99 and 100 the attention is not worth one.
    assert tight([99, 99], row_length=200) == [[0], [1]]
    assert tight([100, 94], row_length=200) == [[0, 1]]
    assert tight([7, 7, 7], row_length=7) == level([7, 7, 7], row_length=7)
    assert tight([], row_length=7, at_least=2) == [[], []]
    assert len(tight([5] * 6, row_length=30, at_least=4)) == 6


def test_sizes_are_few_and_near():
    sizes = [few_sizes(size) for size in range(1, 65)]
    assert sizes[:13] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12, 12, 14]
    assert all(n <= size <= 1.25 * n for n, size in enumerate(sizes, start=1))
    assert len(set(sizes)) == 20


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("count", [0, 2, 17])
@pytest.mark.parametrize("trim", [True, False])
def test_micro_batches_hold_the_pairs_in_rows_of_one_shape(num_batches, count, trim):
    pairs = random_pairs(count)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=64, trim=trim)
    batches = collator.split(pairs, num_batches)
    assert len(batches) == num_batches
    num_rows = [len(batch.tokens) for batch in batches]
    assert max(num_rows) - min(num_rows) <= 1
    order = torch.cat([batch.order for batch in batches])
    ids = torch.cat([batch.example_ids for batch in batches])
    assert ids[order.argsort()].tolist() == [pair.example_id for pair in pairs]
    for batch in batches:
        real = (batch.document != PADDING).sum(dim=1)
        assert batch.num_tokens == real.sum()
        labels = [t for i in batch.order.tolist() for t in pairs[i].target]
        assert batch.labels.tolist() == labels
    rows = torch.cat([(b.document != PADDING).sum(dim=1) for b in batches])
    length = batches[0].tokens.shape[1]
    assert length == (max(rows.max().item(), 1) if trim else 64)


def test_no_micro_batch_is_empty_while_there_are_pairs():
    batches = PairCollator(row_length=512).split(random_pairs(5), 3)
    assert sorted(batch.num_pairs for batch in batches) == [1, 2, 2]


def test_packing_a_step_together_takes_fewer_rows_than_its_parts():
    pairs = random_pairs(32)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=128)
    together = collator.split(pairs, 4)
    apart = [collator(pairs[i : i + 8]) for i in range(0, 32, 8)]
    tokens = sum(batch.num_tokens for batch in together)
    assert tokens == sum(batch.num_tokens for batch in apart) == 786
    rows = [sum(len(batch.tokens) for batch in part) for part in (together, apart)]
    assert rows == [7, 8]
