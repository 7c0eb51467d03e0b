"""Epochs of a list of datasets with weights."""

from collections import Counter

import pytest

from erjepa.configs import load
from erjepa.datasets import Mixture, StepSampler, origin_labels
from erjepa.datasets.mixture import apportion
from tests.reference import slow_mixture

SIZES, WEIGHTS = [3, 20, 7], [2.0, 1.0, 1.0]


@pytest.mark.parametrize("total", [1, 7, 12])
@pytest.mark.parametrize(
    "weights", [[1, 1, 1], [5, 2, 1], [0.1, 0.2, 0.7], [1e-9, 1, 1]]
)
def test_shares_are_the_nearest_whole_numbers(total, weights):
    assert apportion(total, weights) == slow_mixture.apportion(total, weights)


def test_epochs_are_those_of_decks():
    mixture = Mixture(SIZES, WEIGHTS, seed=5)
    assert mixture.counts == [15, 8, 7]
    expected = slow_mixture.epochs(SIZES, mixture.counts, 5, num_epochs=6)
    assert [mixture.places(epoch) for epoch in range(6)] == expected
    assert expected[0] != expected[1]


def test_no_example_is_two_ahead_of_another_of_its_dataset():
    mixture, dealt = Mixture(SIZES, WEIGHTS, seed=1), Counter(range(30))
    for epoch in range(9):
        dealt.update(mixture.places(epoch))
        for part in (range(3), range(3, 23), range(23, 30)):
            times = [dealt[place] for place in part]
            assert max(times) - min(times) <= 1
    assert dealt.total() == 30 * 10


def sampler(mixture=None, *, seed=3, world_size=1, rank=0, accumulation=1):
    return StepSampler(
        30,
        batch_size=8 // world_size // accumulation,
        gradient_accumulation_steps=accumulation,
        world_size=world_size,
        rank=rank,
        seed=seed,
        mixture=mixture,
    )


def steps(of, epoch, step=0):
    of.set_position(epoch, step)
    return list(of)


def test_weights_like_the_sizes_are_the_concatenation():
    mixture = Mixture(SIZES, [size / 10 for size in SIZES], seed=3)
    for epoch in range(3):
        assert steps(sampler(mixture), epoch) == steps(sampler(), epoch)


def test_steps_are_the_same_however_they_are_cut_and_wherever_they_start():
    mixture = Mixture(SIZES, WEIGHTS, seed=3)
    expected = steps(sampler(mixture), 1)
    assert [len(step) for step in expected] == [8, 8, 8, 6]
    assert Counter(sum(expected, [])) == Counter(mixture.places(1))
    # Drawn, not one dataset after the other.
    assert sum(expected, []) != mixture.places(1)
    by_rank = [
        steps(sampler(mixture, world_size=2, rank=rank, accumulation=2), 1)
        for rank in range(2)
    ]
    for step, *cut in zip(expected, *by_rank, strict=True):
        assert [step[rank::2] for rank in range(2)] == cut
    assert steps(sampler(mixture), 1, step=2) == expected[2:]
    other = Mixture(SIZES, WEIGHTS, seed=4)
    assert other.places(0) != mixture.places(0)


@pytest.mark.parametrize(
    "sizes, weights, message",
    [
        ([9, 1], [1e-3, 1], r"dataset\[0\].weight=0.001 gives it none of the 10 pairs"),
        ([9, 0], [1, 1], r"no pair of dataset\[1\] is left to train on"),
    ],
)
def test_a_dataset_that_an_epoch_would_lack(sizes, weights, message):
    with pytest.raises(ValueError, match=message):
        Mixture(sizes, weights, seed=0)


def test_labels():
    names = ["data/my pairs.v2.jsonl", "https://a.b/c/my pairs.v2.csv", "org/name"]
    builders = ["spider_dataset", "nl_rx_dataset(split=train, name=synth)", "..."]
    assert origin_labels([*names, *builders, names[0]]) == [
        *("my_pairs_v2", "my_pairs_v2_2", "name", "spider", "nl_rx", "dataset"),
        "my_pairs_v2_3",
    ]


def listed(*weights, key="dataset"):
    parts = [
        "{_component_: erjepa.datasets.synthetic_nl_rx_dataset, size: 9"
        + ("}" if weight is None else f", weight: {weight}}}")
        for weight in weights
    ]
    return f"{key}=[{', '.join(parts)}]"


@pytest.mark.parametrize(
    "overrides, message",
    [
        ([listed(1, None)], r"dataset\[1\] has no weight, and another"),
        ([listed(1, 0)], r"dataset\[1\].weight: input should be greater than 0, got 0"),
        ([listed("many", 1)], r"dataset\[0\].weight: input should be a valid number"),
        ([listed(2, 1), "shuffle=False"], "shuffle=False keeps the order of the files"),
        ([listed(1, 1, key="eval_dataset")], r"eval_dataset\[0\].weight=1: evaluation"),
        (["dataset.weight=2"], r"unknown config key dataset.weight"),
    ],
)
def test_weights_that_make_no_sense(overrides, message):
    with pytest.raises(ValueError, match=message):
        load("tiny_synth", overrides)


def test_weights_are_read():
    cfg = load("tiny_synth", [listed(2, 0.5)])
    assert [part.weight for part in cfg.dataset] == [2, 0.5]
