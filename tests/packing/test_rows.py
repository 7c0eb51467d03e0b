"""The assignment of pairs to rows and micro-batches, checked against its definitions."""

import itertools
import random
from array import array

import pytest
import torch

from erjepa.datasets import Pair
from erjepa.packing import PairCollator, prefix_tree
from erjepa.packing.rows import (
    _ATTENTION,
    balanced,
    cheapest,
    fill,
    fullest,
    halved_length,
    round_up,
    share,
)
from tests.harness.models import PREDICTOR_IDS, VOCAB, random_pairs, random_paths
from tests.reference.slow_tree import slow_tree


def random_items(seed):
    """Items of one to three paths each, and how they share the nodes of all."""
    rng, paths = random.Random(seed), random_paths(seed)
    items = []
    while paths:
        items.append([paths.pop() for _ in range(min(len(paths), rng.randint(1, 3)))])
    tree = prefix_tree([path for item in items for path in item])
    nodes = iter(tree.paths)
    return items, share([[next(nodes) for _ in item] for item in items])


def apart(*sizes):
    """Sizes of the runs of items that share nothing."""
    return [
        [sum(sizes[a : b + 1]) for b in range(len(sizes))] for a in range(len(sizes))
    ]


@pytest.mark.parametrize("seed", range(25))
def test_runs_have_the_nodes_of_their_items_trees(seed):
    items, sharing = random_items(seed)
    every = slow_tree(path for item in items for path in item)
    sizes = sharing.sizes()
    for start in range(len(items)):
        for stop in range(start + 1, len(items) + 1):
            nodes = slow_tree(path for item in items[start:stop] for path in item)
            found = sharing.nodes(range(start, stop)).tolist()
            assert [every[node] for node in found] == nodes
            assert sizes[start][stop - 1] == len(nodes)
    assert sharing.nodes(range(0)).tolist() == []


def test_fill_takes_in_what_fits():
    assert fill(apart(3, 6, 4, 5, 2), 11) == [range(2), range(2, 5)]
    assert fill(apart(3, 6, 4, 5, 2), 10) == [range(2), range(2, 4), range(4, 5)]
    assert fill([], 10) == []


def cuts(n, num_rows):
    """Every way to cut n items into so many runs."""
    for stops in itertools.combinations(range(1, n), num_rows - 1):
        bounds = (0, *stops, n)
        yield [range(a, b) for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("seed", range(25))
def test_rows_are_few_level_and_cheap(seed):
    items, sharing = random_items(seed)
    sizes = sharing.sizes()[:7]
    sizes = [row[: len(sizes)] for row in sizes]
    n = len(sizes)
    longest = max(sizes[i][i] for i in range(n))
    for row_length in {longest, 2 * longest, sizes[0][-1]}:
        fits = {
            num_rows: min(fullest(sizes, rows) for rows in cuts(n, num_rows))
            for num_rows in range(1, n + 1)
        }
        fewest = min(r for r, length in fits.items() if length <= row_length)
        assert len(fill(sizes, row_length)) == fewest
        for num_rows in range(fewest, n + 1):
            rows = balanced(sizes, row_length, num_rows)
            assert [i for row in rows for i in row] == list(range(n))
            assert len(rows) == num_rows and all(rows)
            assert fullest(sizes, rows) == fits[num_rows]
        costs = {
            num_rows: num_rows * length * (_ATTENTION + length)
            for num_rows, length in fits.items()
            if fewest <= num_rows <= min(4 * fewest, fewest + 8)
        }
        rows = cheapest(sizes, row_length)
        length = fullest(sizes, rows)
        assert len(rows) * length * (_ATTENTION + length) == min(costs.values())


def test_rows_that_are_asked_for_are_there():
    assert balanced([], 10, 2) == [range(0), range(0)]
    assert [len(row) for row in balanced(apart(4, 3), 10, 3)] == [1, 0, 1]
    alike = [[5, 5, 5, 5]] * 4  # one row would hold them all
    assert [len(row) for row in balanced(alike, 10, 3)] == [1, 1, 2]
    assert len(cheapest(alike, 10)) == 1
    assert len(cheapest(apart(5, 5, 5, 5, 5, 5), 30, at_least=4)) == 6


def test_more_rows_where_they_cost_less():
    assert len(fill(apart(*[5] * 16), 30)) == 3  # 6, 6 and 4 items: 90 slots
    rows = cheapest(apart(*[5] * 16), 30)
    assert {len(row) for row in rows} == {16 // len(rows)}
    # As many slots and half the attention, which is not worth 20 slots of padding.
    assert len(cheapest(apart(99, 99), 200)) == 2
    assert len(cheapest(apart(100, 80), 200)) == 1
    # Nor 18 tokens that the two share.
    assert len(cheapest([[99, 180], [0, 99]], 200)) == 1
    assert len(cheapest([[99, 195], [0, 99]], 200)) == 2


def test_sizes_are_few_and_near():
    sizes = [round_up(size) for size in range(1, 65)]
    assert sizes[:13] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12, 12, 14]
    assert all(n <= size <= 1.25 * n for n, size in enumerate(sizes, start=1))
    assert len(set(sizes)) == 20


def test_lengths_are_few_whole_blocks():
    lengths = {halved_length(length, 2048) for length in range(1, 2049)}
    assert lengths == {128, 256, 512, 1024, 2048}
    assert halved_length(256, 2048) == 256 and halved_length(257, 2048) == 512
    assert halved_length(1, 384) == 384 and halved_length(1, 1536) == 384


@pytest.mark.parametrize("num_batches", [1, 3])
@pytest.mark.parametrize("count", [0, 2, 17])
@pytest.mark.parametrize("attention", ["dense", "flex"])
def test_micro_batches_hold_the_pairs_in_rows_of_one_shape(
    num_batches, count, attention
):
    pairs = random_pairs(count)
    collator = PairCollator(
        predictor_ids=PREDICTOR_IDS, pad_id=VOCAB, row_length=64, attention=attention
    )
    batches = collator.split(pairs, num_batches)
    assert len(batches) == num_batches
    num_rows = [len(batch.tokens) for batch in batches]
    assert max(num_rows) - min(num_rows) <= 1
    order = torch.cat([batch.order for batch in batches])
    ids = torch.cat([batch.example_ids for batch in batches])
    assert ids[order.argsort()].tolist() == [pair.example_id for pair in pairs]
    tokens = []
    for batch in batches:
        real = (batch.tokens != VOCAB).sum(dim=1)
        tokens += real.tolist()
        assert batch.num_tokens == real.sum()
        labels = [t for i in batch.order.tolist() for t in pairs[i].target]
        assert batch.labels.tolist() == labels
    length = batches[0].tokens.shape[1]
    assert length == (max(max(tokens), 1) if attention == "dense" else 64)


def test_a_lone_row_is_as_short_as_few_shapes_allow():
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=512)
    (one,) = collator.split(random_pairs(2), 1)
    assert one.tokens.shape == (1, 128)
    two = collator.split(random_pairs(2), 2)
    assert [batch.tokens.shape for batch in two] == [(1, 128)] * 2
    (more,) = collator.split(random_pairs(40), 1)
    assert more.tokens.shape[0] > 1 and more.tokens.shape[1] == 512


def test_no_micro_batch_is_empty_while_there_are_pairs():
    batches = PairCollator(row_length=512).split(random_pairs(5), 3)
    assert sorted(batch.num_pairs for batch in batches) == [1, 2, 2]


def test_pairs_that_share_most_lie_together():
    def pair(i, source, target):
        source, target = array("i", source), array("i", target)
        return Pair(i, source, array("i", [9]), target, source, target[:-1])

    schemas = [list(range(10 + 10 * s, 20 + 10 * s)) for s in range(3)]
    pairs = [pair(i, schemas[i % 3] + [i], [70, 71 + i, 80]) for i in range(9)]
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=64)
    batches = collator.split(pairs, 3)
    assert [batch.order.tolist() for batch in batches] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]
    # A schema of 10; source, header, target and predictors of 1 + 1 + 3 + 2 thrice; 70, and
    # thrice a token of its own.
    assert [batch.num_tokens for batch in batches] == [10 + 3 * 7 + 1 + 3] * 3


def test_packing_a_step_together_takes_fewer_tokens_than_its_parts():
    pairs = random_pairs(32)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=128)
    together = collator.split(pairs, 4)
    apart = [collator(pairs[i : i + 8]) for i in range(0, 32, 8)]
    tokens = [sum(batch.num_tokens for batch in part) for part in (together, apart)]
    assert tokens[0] < tokens[1] < sum(map(collator.length, pairs)) == 786
