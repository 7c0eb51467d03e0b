"""Steps do not depend on how they are divided into ranks and micro-batches."""

import pytest

from erjepa.datasets import StepSampler


def make_sampler(num_examples, batch_size, **given):
    alone = {"gradient_accumulation_steps": 1, "world_size": 1, "rank": 0, "seed": 0}
    return StepSampler(num_examples, batch_size=batch_size, **{**alone, **given})


def deal(world_size, batch_size, accumulation, *, epoch=0, step=0, seed=3):
    """Examples of every rank, step by step."""
    by_rank = []
    cut = {"gradient_accumulation_steps": accumulation, "world_size": world_size}
    for rank in range(world_size):
        sampler = make_sampler(22, batch_size, **cut, rank=rank, seed=seed)
        sampler.set_position(epoch, step)
        steps = list(sampler)
        assert len(steps) == len(sampler)
        assert all(len(ids) <= batch_size * accumulation for ids in steps)
        by_rank.append(steps)
    return by_rank


def interleave(parts):
    merged = []
    for i in range(max(map(len, parts))):
        merged.extend(part[i] for part in parts if i < len(part))
    return merged


@pytest.mark.parametrize("cut", [(1, 2, 4), (2, 4, 1), (2, 2, 2), (4, 1, 2), (8, 1, 1)])
def test_every_cut_has_the_same_steps_in_the_same_order(cut):
    ((*expected,),) = deal(1, 8, 1)
    assert [len(step) for step in expected] == [8, 8, 6]
    by_rank = deal(*cut)
    assert [interleave(parts) for parts in zip(*by_rank, strict=True)] == expected


def test_an_epoch_sees_every_example_once_in_an_order_of_its_own():
    orders = [sum(deal(1, 8, 1, epoch=epoch)[0], []) for epoch in range(3)]
    assert all(sorted(order) == list(range(22)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    # Near seeds must not share permutations.
    later = sum(deal(1, 8, 1, seed=4)[0], [])
    assert later not in orders


def test_starting_in_the_middle_of_an_epoch_continues_it():
    assert deal(2, 2, 2, epoch=1, step=1) == [
        steps[1:] for steps in deal(2, 2, 2, epoch=1)
    ]


def test_a_share_of_replayed_pairs_takes_the_place_of_new_ones():
    cut = {"gradient_accumulation_steps": 2, "world_size": 2, "rank": 1}
    sampler = make_sampler(50, 5, **cut, share=0.33)
    steps = list(sampler)
    replayed = [sampler.num_replayed(step) for step in range(len(steps))]
    assert replayed == [6, 7, 6, 7]  # 6.6 a step
    # Every rank has all of them.
    assert [len(step) for step in steps] == [14, 13, 14, 9]
    assert sorted(sum(steps, [])) == list(range(50))


@pytest.mark.parametrize(
    ("num_examples", "size", "share"),
    [(9, 4, 0.05), (1, 2, 0.25), (20, 16, 0.01), (53, 14, 0.01)],
)
def test_fractions_of_a_replayed_pair_carry_over_to_the_next_epoch(
    num_examples, size, share
):
    sampler = make_sampler(num_examples, size, seed=1, share=share)
    num_new = num_replayed = 0
    for epoch in range(20):
        sampler.set_position(epoch)
        steps = list(sampler)
        assert sorted(i for step in steps for i in step) == list(range(num_examples))
        for number, step in enumerate(steps):
            replayed = sampler.num_replayed(number)
            assert step and replayed >= 0 and len(step) + replayed <= size
            num_new, num_replayed = num_new + len(step), num_replayed + replayed
    assert num_replayed >= share * (num_new + num_replayed) - 1


def test_fractions_carry_over_to_the_next_epoch_if_epochs_are_cut_short():
    """Of 4 pairs in 10 steps, which a whole epoch has, the share is an even number."""
    sampler = make_sampler(38, 4, share=0.05, max_steps=4)
    assert sampler.steps_per_epoch == 4
    replayed = 0
    for epoch in range(20):
        sampler.set_position(epoch)
        steps = list(sampler)
        counts = [sampler.num_replayed(number) for number in range(len(steps))]
        assert [len(step) + n for step, n in zip(steps, counts, strict=True)] == [4] * 4
        replayed += sum(counts)
    assert replayed == 0.05 * 4 * 4 * 20


def test_a_share_leaves_room_for_new_pairs():
    with pytest.raises(ValueError, match="replay.share=0.6 leaves no room"):
        make_sampler(9, 2, share=0.6)
