"""Which pairs are held out, and that training never sees them."""

import random

import pytest
import torch

from erjepa.datasets import hold_out, nl_rx_dataset
from tests.harness.data import REAL_DATA
from tests.harness.models import random_pairs


def text(pair):
    return list(pair.source), list(pair.target)


def test_every_pair_is_in_one_part():
    pairs = random_pairs(50)
    split = hold_out(pairs, 12, seed=3)
    assert len(split.held_out) == 12 and split.copies == 0
    assert sorted([*split.train, *split.held_out]) == list(range(50))
    assert split.train == sorted(split.train)


def test_the_draw_follows_its_seed_alone():
    pairs = random_pairs(50)
    torch.manual_seed(1)
    random.seed(1)
    first = hold_out(pairs, 12, seed=3)
    torch.manual_seed(2)
    random.seed(2)
    assert hold_out(pairs, 12, seed=3) == first
    assert hold_out(pairs, 12, seed=4) != first
    # A smaller split is the beginning of a larger one.
    assert hold_out(pairs, 5, seed=3).held_out == first.held_out[:5]


@pytest.mark.parametrize("size, count", [(0.05, 1), (0.3, 3), (0.31, 4)])
def test_a_fraction_is_rounded_up(size, count):
    pairs = random_pairs(10)
    assert hold_out(pairs, size) == hold_out(pairs, count)
    with pytest.raises(ValueError, match="validation.size=0.95: it must be below"):
        hold_out(pairs, 0.95)


def test_copies_of_held_out_pairs_leave_training():
    pairs = random_pairs(30)
    # 30 and 31 copy pair 0; the others share one side with it only.
    zero = pairs[0]
    pairs += [zero._replace(example_id=i) for i in (30, 31)]
    pairs.append(pairs[1]._replace(example_id=32, source=zero.source))
    pairs.append(pairs[1]._replace(example_id=33, target=zero.target))
    seeds = [s for s in range(200) if 0 in hold_out(pairs, 3, seed=s).held_out]
    assert seeds
    for seed in seeds:
        split = hold_out(pairs, 3, seed=seed)
        copies = {30, 31} - set(split.held_out)
        assert split.copies == len(copies)
        assert set(split.train) == set(range(34)) - set(split.held_out) - copies


@pytest.mark.parametrize("size", [10, 11])
def test_some_pairs_are_left_to_train_on(size):
    with pytest.raises(ValueError, match=rf"validation.size={size}: .* pairs, 10, of"):
        hold_out(random_pairs(10), size)


def test_a_dataset_of_copies_cannot_be_split():
    pair = random_pairs(1)[0]
    with pytest.raises(
        ValueError, match="validation.size=2: every other pair is a copy"
    ):
        hold_out([pair._replace(example_id=i) for i in range(5)], 2)


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real datasets")
def test_synth_has_copies(tokenizer):
    dataset = nl_rx_dataset(tokenizer, source=str(REAL_DATA / "nl_rx"))
    split = hold_out(dataset, 1000)
    held_out = [text(dataset[i]) for i in split.held_out]
    assert len(dataset) == 8000 and len(split.held_out) == 1000
    assert len(split.train) == 7000 - split.copies and split.copies > 0
    assert not any(text(dataset[i]) in held_out for i in split.train[::10])
