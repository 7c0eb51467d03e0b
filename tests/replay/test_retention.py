"""Retention rules and the reserve equal brute force on random histories, singly and in batches."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from erjepa.replay import (
    EpisodicMemory,
    EpisodicReplay,
    ReplaySettings,
    retention,
)
from erjepa.replay.registry import RETENTIONS
from erjepa.replay.retention import drawn_numbers, retained
from tests.harness.histories import (
    RATE,
    assert_same,
    histories,
    make_memory,
    play,
    pool_addresses,
    quick,
    scores,
)
from tests.reference.list_memory import ListMemory

ORIGINS = [n << 32 for n in (0, 1, 2)]


def retaining(capacity, name, **settings):
    settings = {"on_revisit": "refresh", "score_update_rate": RATE} | settings
    table = make_memory(capacity).address_table
    memory = EpisodicMemory(
        capacity,
        table,
        retain=RETENTIONS.find(name),
        generator=torch.Generator().manual_seed(4),
        **settings,
    )
    reference = ListMemory(
        capacity,
        projection=table.projection,
        top_k=table.top_k,
        retention=name,
        generator=torch.Generator().manual_seed(4),
        **settings,
    )
    return memory, reference


def seen_of(memory):
    return memory.state.seen[0]


def spread(history):
    """The same history with examples of three origins."""
    return [
        (kind, [(ORIGINS[i % 3] + i, *rest) for i, *rest in items])
        if kind == "write"
        else (kind, items)
        for kind, items in history
    ]


@settings(quick, max_examples=150)
@given(
    before=histories,
    after=histories,
    capacity=st.integers(1, 6),
    on_revisit=st.sampled_from(["keep", "refresh", "append"]),
    name=st.sampled_from(["score", "reservoir", "balanced", "surprise", "stratified"]),
    reserve=st.sampled_from([0.0, 0.4, 0.9]),
)
def test_retention_equals_brute_force(
    before, after, capacity, on_revisit, name, reserve
):
    settings = {"reserved_slots": int(reserve * capacity), "on_revisit": on_revisit}
    memory, reference = retaining(capacity, name, **settings)
    for operation in spread(before):
        play(operation, memory, reference)
    memory.inherit(memory.example_ids - (3 << 32), seen_of(memory))
    reference.disown(3)
    assert bool((memory.example_ids < 0).all())
    for operation in spread(after):
        play(operation, memory, reference)
    assert_same(memory, reference)


def write(memory, *entries):
    ids, values = zip(*entries, strict=True)
    addresses = pool_addresses(memory, [0] * len(ids))
    segments = [([example % 100], [7]) for example in ids]
    memory.write(torch.tensor(ids), segments, addresses, torch.tensor(values))


def test_inherited_pairs_keep_their_reserve():
    memory, _ = retaining(4, "score", reserved_slots=2)
    write(memory, (0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4))
    memory.inherit(memory.example_ids - (1 << 32), seen_of(memory))
    # Two of four may be evicted; then the new pairs make room for each other.
    write(memory, (10, 0.5), (11, 0.6))
    assert memory.example_ids.tolist() == [10, 11, 2 - (1 << 32), 3 - (1 << 32)]
    write(memory, (12, 0.01))
    assert memory.example_ids.tolist() == [12, 11, 2 - (1 << 32), 3 - (1 << 32)]
    free, _ = retaining(4, "score")
    write(free, (0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4))
    free.inherit(free.example_ids - (1 << 32), seen_of(free))
    write(free, (10, 0.5), (11, 0.6), (12, 0.01))
    assert free.example_ids.tolist() == [10, 11, 12, 3 - (1 << 32)]


def test_a_reserve_is_a_fraction_of_the_slots_as_it_is_written():
    keys = {"reserve": 0.29, "selection": "uniform"}  # 28.999... as a float
    settings = ReplaySettings(capacity=100, address="none", **keys)
    memory = EpisodicReplay(settings, embed_dim=4, seed=0).memory

    def write(score):
        segments = [([1], [2])] * 100
        memory.write(torch.arange(100), segments, None, torch.full((100,), score))

    write(0.1)
    memory.inherit(memory.example_ids - (1 << 32), seen_of(memory))
    write(0.9)
    assert int((memory.example_ids < 0).sum()) == 29


def test_balanced_evens_out_origins():
    memory, _ = retaining(6, "balanced")
    write(memory, *[(i, 0.9) for i in range(6)])
    write(memory, *[((1 << 32) + i, 0.1) for i in range(9)])
    assert (memory.example_ids >> 32).tolist().count(0) == 3
    write(memory, *[((2 << 32) + i, 0.1) for i in range(9)])
    assert (memory.example_ids >> 32).bincount().tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["reservoir", "stratified"])
def test_every_pair_is_kept_with_the_same_probability(name):
    """As long as all targets are alike, or all differ."""
    counts, runs = torch.zeros(20), 400
    for seed in range(runs):
        memory = EpisodicMemory(
            5,
            None,
            retain=RETENTIONS.find(name),
            generator=torch.Generator().manual_seed(seed),
        )
        segments = [([n], [n * (seed % 2)]) for n in range(20)]
        memory.write(torch.arange(20), segments, None, torch.ones(20))
        counts[memory.example_ids] += 1
    deviation = (runs * 0.25 * 0.75) ** 0.5
    assert (counts - runs / 4).abs().max() < 4 * deviation


def test_stratified_evens_out_the_targets_of_each_origin():
    """Two origins have a target in common, and the smallest keeps all of its pairs."""
    given = Counter({(0, 7): 30, (0, 8): 20, (1, 7): 10, (1, 9): 2})
    labels = list(given.elements())
    ids = torch.tensor([(origin << 32) + n for n, (origin, _) in enumerate(labels)])
    segments = [([n], [target]) for n, (_, target) in enumerate(labels)]
    memory = EpisodicMemory(
        14,
        None,
        retain=RETENTIONS.find("stratified"),
        generator=torch.Generator().manual_seed(0),
    )
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    for part in shuffled.split(9):
        memory.write(
            ids[part], [segments[n] for n in part], None, torch.ones(len(part))
        )
    kept = [labels[n] for n in (memory.example_ids & 0xFFFF).tolist()]
    assert Counter(kept) == {(0, 7): 4, (0, 8): 4, (1, 7): 4, (1, 9): 2}


def test_later_epochs_offer_nothing_new_to_a_reservoir():
    memory, _ = retaining(4, "reservoir")
    write(memory, *[(i, 0.1) for i in range(9)])
    first = memory.example_ids.tolist()
    write(memory, *[(i, 0.1) for i in range(9)] * 9)
    assert (memory.example_ids.tolist(), seen_of(memory)) == (first, 9)
    write(memory, *[(i, 0.1) for i in range(30)])
    assert memory.example_ids.max() > 8 and seen_of(memory) == 30


@quick
@given(
    st.lists(
        st.tuples(scores, st.integers(0, 3), st.integers(-2, 1)), min_size=1, max_size=9
    ),
    st.integers(1, 9),
    st.sampled_from(["score", "balanced", "surprise"]),
)
def test_a_smaller_memory_keeps_what_evictions_would_leave(slots, capacity, name):
    left = []
    for n, (score, count, origin) in enumerate(slots):
        divisor = 1 if name == "surprise" else 1 + count
        left.append(((torch.tensor(score) / divisor).item(), n, origin))
    while len(left) > capacity:
        sizes = Counter(origin for *_, origin in left)
        largest = max(sizes, key=lambda origin: (sizes[origin], -origin))
        left.remove(min(s for s in left if name == "score" or s[2] == largest))
    values, counts, of_slot = map(torch.tensor, zip(*slots, strict=True))
    kept = retained(
        RETENTIONS.find(name),
        of_slot,
        values,
        counts,
        torch.ones(len(slots)),
        capacity,
    )
    assert kept.tolist() == [n for _, n, _ in left]


@quick
@given(
    st.lists(st.integers(-2, 2), min_size=1, max_size=9),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_a_smaller_stratified_memory_evens_out_targets(groups, capacity, random):
    numbers = random.sample(range(100), len(groups))
    left = list(zip(numbers, groups, range(len(groups)), strict=True))
    while len(left) > capacity:
        sizes = Counter(group for _, group, _ in left)
        largest = [slot for slot in left if sizes[slot[1]] == max(sizes.values())]
        left.remove(max(largest))
    ones = torch.ones(len(groups))
    drawn = torch.tensor(numbers).double()
    rule = RETENTIONS.find("stratified")
    kept = retained(rule, torch.tensor(groups), ones, ones, drawn, capacity)
    assert kept.tolist() == [n for *_, n in left]


def test_reservoirs_of_samples_of_different_sizes_merge_to_a_uniform_sample():
    # Four slots for 100 pairs, ten for 20: four of all 120 are to be kept.
    generator, counts, runs = torch.Generator().manual_seed(0), torch.zeros(14), 2000
    rule, ids, ones = RETENTIONS.find("reservoir"), torch.arange(14), torch.ones(14)
    for _ in range(runs):
        parts = [drawn_numbers(*size, generator) for size in ((4, 100), (10, 20))]
        kept = retained(rule, ids, ones, ones, torch.cat(parts), 4)
        assert len(kept.unique()) == 4 and bool((kept.diff() > 0).all())
        counts[kept] += 1
    of_first = counts[:4].sum() / runs
    assert of_first == pytest.approx(4 * 100 / 120, abs=0.07)
    for part, each in ((counts[:4], of_first / 4), (counts[4:], (4 - of_first) / 10)):
        assert (part / runs - each).abs().max() < 0.05
    assert retained(rule, ids, ones, ones, torch.rand(14), 14).tolist() == ids.tolist()


def test_slots_set_apart_are_beside_the_capacity():
    settings = ReplaySettings(
        capacity=4, retention="reservoir", address="none", selection="uniform"
    )
    replay = EpisodicReplay(settings, embed_dim=4, seed=0, reserved_slots=2)

    def write(*examples):
        ids = torch.tensor(examples)
        replay.write(ids, [([1], [2])] * len(ids), None, torch.ones(len(ids)))

    write(0, 1)
    replay.memory.inherit(replay.memory.example_ids - (1 << 32), 2)
    write(*range(50))
    ids = replay.memory.example_ids
    assert ids[:2].tolist() == [-(1 << 32), 1 - (1 << 32)]
    assert len(ids) == 6 and bool((ids[2:] >= 0).all()) and ids.max() > 3


def test_a_rule_is_told_what_has_been_offered(monkeypatch):
    told = []

    def spy(memory, example_id, candidates, *, seen, generator):
        told.append((seen, candidates.tolist()))
        return candidates.nonzero().flatten().tolist()[0]

    monkeypatch.setattr(retention, "spy", spy, raising=False)
    memory, _ = retaining(2, "erjepa.replay.retention.spy", reserved_slots=1)
    write(memory, (1, 0.1), (2, 0.2), (3, 0.3))
    memory.inherit(memory.example_ids - (1 << 32), seen_of(memory))
    write(memory, (1, 0.1), (2, 0.2))
    # Three in all, then four; then only the second since the reserve binds counts.
    assert told == [(3, [True, True]), (4, [True, True]), (2, [True, False])]


def test_a_rule_of_the_user_s_own(monkeypatch):
    named = RETENTIONS.find("erjepa.replay.retention.score")
    assert named is RETENTIONS.find("score") and named.evict is retention.score
    oldest = lambda memory, example_id, candidates, **_: 0  # noqa: E731
    monkeypatch.setattr(retention, "oldest", oldest, raising=False)
    memory, _ = retaining(2, "erjepa.replay.retention.oldest")
    write(memory, (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4))
    assert memory.example_ids.tolist() == [4, 2]
    nowhere = lambda *_, **__: 2  # noqa: E731
    monkeypatch.setattr(retention, "oldest", nowhere)
    memory, _ = retaining(2, "erjepa.replay.retention.oldest")
    with pytest.raises(ValueError, match="replay.retention must return None or a slot"):
        write(memory, (1, 0.1), (2, 0.2), (3, 0.3))
    with pytest.raises(ValueError, match="replay.retention.*cannot be imported"):
        RETENTIONS.find("erjepa.replay.retention.youngest")
