"""Selections equal brute force on random histories, and the paper's rules on small examples."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from erjepa.replay import selection
from erjepa.replay.addresses import top_k_ascending, top_k_descending
from erjepa.replay.registry import SELECTIONS, Selection
from erjepa.replay.selection import content, fill_to, hard, mixed, uniform
from tests.harness.cases import DEVICES
from tests.harness.histories import (
    POOL,
    histories,
    make_memory,
    make_reference,
    memory_of,
    play,
    pool_addresses,
    quick,
    request_of,
    select,
)

small_values = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, 2.0])


def round_robin(request):
    settings = replace(request.settings, neighbor_order="round_robin")
    return content(replace(request, settings=settings))


def mixed_of(mix):
    def policy(request):
        return mixed(replace(request, settings=replace(request.settings, mix=mix)))

    return policy


@quick
@given(
    history=histories,
    capacity=st.integers(1, 6),
    on_revisit=st.sampled_from(["keep", "refresh", "append"]),
    address=st.sampled_from(["sparse", "dense"]),
    sources=st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=4),
    current=st.lists(st.integers(0, 7), max_size=3),
    budget=st.integers(1, 8),
    neighbors=st.integers(1, 5),
    fill=st.booleans(),
    mix=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_selections_equal_brute_force(
    history,
    capacity,
    on_revisit,
    address,
    sources,
    current,
    budget,
    neighbors,
    fill,
    mix,
):
    memory = make_memory(capacity, on_revisit=on_revisit, address=address)
    reference = make_reference(memory)
    for operation in history:
        play(operation, memory, reference)
    settings = {"budget": budget, "neighbors": neighbors, "fill": fill}

    def run(policy, **own):
        given = settings | own
        return select(policy, memory, sources=sources, current=current, **given)

    for order in ("batch", "round_robin"):
        expected = reference.content(POOL[sources], current, order=order, **settings)
        assert run(content, neighbor_order=order) == expected
        expected = reference.mixed(
            POOL[sources],
            current,
            order=order,
            mix=mix,
            generator=torch.Generator().manual_seed(0),
            **settings,
        )
        assert run(mixed, neighbor_order=order, mix=mix) == expected
    assert run(hard) == reference.hard(current, budget=budget)
    eligible, drawn = reference.eligible(current), run(uniform)
    assert set(drawn) <= set(eligible)
    assert len(drawn) == (budget if eligible else 0)
    if len(eligible) >= budget:
        assert len(set(drawn)) == budget


def test_content_by_hand():
    # Pool row 0 is stored in slots 1 and 3, row 1 in 0 and 2: each source finds its own two,
    # lower slot first; the second source's come after the first source's.
    memory = memory_of((5, 1, 1.0), (6, 0, 1.0), (7, 1, 1.0), (8, 0, 1.0))
    assert select(content, memory, sources=[0, 1]) == [1, 3, 0, 2]
    assert select(content, memory, sources=[1, 0]) == [0, 2, 1, 3]
    assert select(content, memory, sources=[0, 0]) == [1, 3]
    assert select(content, memory, sources=[0, 1], budget=3) == [1, 3, 0]
    assert select(content, memory, sources=[0, 1], neighbors=1) == [1, 0]
    assert select(content, memory, sources=[0], neighbors=1, current=[6]) == [3]
    assert select(content, memory, sources=[0], budget=5, fill=True) == [1, 3, 1, 3, 1]
    assert select(content, memory, current=[5, 6, 7, 8], fill=True) == []


def test_round_robin_by_hand():
    # The slots of test_content_by_hand; the nearest of every source, then the second of each.
    memory = memory_of((5, 1, 1.0), (6, 0, 1.0), (7, 1, 1.0), (8, 0, 1.0))
    assert select(round_robin, memory, sources=[0, 1]) == [1, 0, 3, 2]
    assert select(round_robin, memory, sources=[1, 0]) == [0, 1, 2, 3]
    assert select(round_robin, memory, sources=[0, 0, 1], budget=3) == [1, 0, 3]
    assert select(round_robin, memory, sources=[0, 1], current=[6]) == [3, 0, 2]
    settings = {"sources": [0, 1], "neighbors": 1, "budget": 3}
    assert select(round_robin, memory, **settings) == [1, 0]
    assert select(round_robin, memory, **settings, fill=True) == [1, 0, 1]
    assert select(round_robin, memory, current=[5, 6, 7, 8], fill=True) == []


def test_mixed_by_hand():
    # The slots of test_content_by_hand. Half of four by content: 1 and 3, like the source.
    memory = memory_of((5, 1, 1.0), (6, 0, 1.0), (7, 1, 1.0), (8, 0, 1.0))
    half = mixed_of(0.5)
    draws = [select(half, memory, seed=s) for s in range(20)]
    assert all(slots[:2] == [1, 3] for slots in draws)
    assert {tuple(slots[2:]) for slots in draws} == {(0, 2), (2, 0)}
    # One of two by content, and any of the three others beside it.
    draws = [select(half, memory, budget=2, seed=s) for s in range(40)]
    assert {tuple(slots) for slots in draws} == {(1, 0), (1, 2), (1, 3)}
    # Half of three is one and a half: two are drawn.
    assert select(half, memory, budget=3, neighbors=4)[:1] == [1]
    assert len(set(select(half, memory, budget=3))) == 3
    # Of fifty, 0.29 are fourteen and a half, though not in binary.
    many = memory_of(*((i, 0, 1.0) for i in range(100)))
    picks = select(mixed_of(0.29), many, budget=50, neighbors=100)
    assert picks[:35] == select(content, many, budget=35, neighbors=100)
    assert picks[:36] != select(content, many, budget=36, neighbors=100)
    assert select(mixed_of(0.0), memory) == select(content, memory)
    assert sorted(select(mixed_of(1.0), memory)) == [0, 1, 2, 3]
    # Nothing is left to draw: shorter, unless it is to be filled.
    lone = {"current": [5, 7, 8], "budget": 3}
    assert select(half, memory, **lone) == [1]
    assert select(half, memory, **lone, fill=True) == [1, 1, 1]


@pytest.mark.slow
def test_mixed_draws_the_others_with_equal_probability():
    memory, draws = memory_of(*[(n, n % 6, 1.0) for n in range(12)]), 3000
    request, counts = request_of(memory, current=[4], mix=0.5), torch.zeros(12)
    for _ in range(draws):
        slots = mixed(request)
        assert slots[:2] == [0, 6] and len(set(slots)) == 4
        counts[slots] += 1
    others = [1, 2, 3, 5, 7, 8, 9, 10, 11]
    share = 2 / len(others)
    deviation = (draws * share * (1 - share)) ** 0.5
    assert counts[4] == 0
    assert (counts[others] - draws * share).abs().max() < 4 * deviation


def test_hard_by_hand():
    memory = memory_of((5, 0, 0.3), (6, 0, 2.0), (7, 0, 0.5), (8, 0, 2.0))
    assert select(hard, memory, budget=3) == [1, 3, 2]
    assert select(hard, memory, budget=3, current=[6]) == [3, 2, 0]
    assert select(hard, memory, budget=5, current=[6, 8]) == [2, 0, 2, 0, 2]
    assert select(hard, memory, current=[5, 6, 7, 8]) == []


@pytest.mark.parametrize("policy", [content, round_robin, uniform, hard, mixed_of(0.5)])
def test_an_empty_memory_gives_nothing(policy):
    assert select(policy, memory_of(), fill=True) == []


@pytest.mark.parametrize(
    "slots, budget, filled",
    [
        ([4, 1], 5, [4, 1, 4, 1, 4]),
        ([4, 1], 2, [4, 1]),
        ([4], 3, [4, 4, 4]),
        ([], 3, []),
    ],
)
def test_fill_repeats_in_order(slots, budget, filled):
    assert fill_to(slots, budget) == filled


@pytest.mark.parametrize("policy", [content, round_robin])
def test_cues_in_chunks_give_the_same_slots(policy, monkeypatch):
    memory = memory_of(*[(n, n % 6, 1.0) for n in range(40)])
    settings = {"sources": [3, 0, 5, 0, 1], "neighbors": 5, "budget": 22}
    whole = select(policy, memory, **settings)
    monkeypatch.setattr(selection, "_CHUNK_COSINES", 80)  # two sources at a time
    assert select(policy, memory, **settings) == whole
    assert len(whole) == 20


@pytest.mark.parametrize(
    "sources, compared",
    [
        ([0, 1, 2, 3, 4, 5, 0, 1], 4),  # two for each of four: full
        ([0, 0, 0, 0, 1, 2, 3, 4], 8),  # the first four find the same two slots
        ([0, 0, 0, 1], 4),
    ],
)
def test_compares_no_more_addresses_than_the_budget_can_need(
    monkeypatch, sources, compared
):
    memory = memory_of(*[(n, n % 6, 1.0) for n in range(40)])
    seen, similarity = [], memory.similarity
    monkeypatch.setattr(
        memory, "similarity", lambda c: seen.append(len(c.values)) or similarity(c)
    )
    slots = select(content, memory, sources=sources, budget=4, neighbors=2)
    expected = [*dict.fromkeys(n for s in sources for n in (s, s + 6))]
    assert slots == expected[:4]
    assert sum(seen) == compared and max(seen) == 4


def test_uniform_without_replacement_takes_each_slot_with_probability_r_over_n():
    memory, draws = memory_of(*[(n, 0, 1.0) for n in range(9)]), 3000
    request = request_of(memory, current=[4], budget=3)
    counts, pairs = torch.zeros(9), torch.zeros(9, 9)
    for _ in range(draws):
        slots = uniform(request)
        assert len(set(slots)) == 3
        counts[slots] += 1
        for a in slots:
            pairs[a, [b for b in slots if b != a]] += 1
    assert counts[4] == 0
    others = torch.arange(9) != 4
    share = 3 / 8
    deviation = (draws * share * (1 - share)) ** 0.5
    assert (counts[others] - draws * share).abs().max() < 4 * deviation
    # Sets, not only slots, are equally likely: every pair has 3/8 * 2/7.
    share = 3 / 8 * 2 / 7
    deviation = (draws * share * (1 - share)) ** 0.5
    upper = pairs[others][:, others].triu(1)
    assert (upper[upper > 0] - draws * share).abs().max() < 4 * deviation
    assert (upper > 0).sum() == 28


def test_uniform_takes_every_slot_once_when_the_budget_is_their_number():
    memory = memory_of(*[(n, 0, 1.0) for n in range(9)])
    drawn = [select(uniform, memory, budget=9, seed=s) for s in range(20)]
    assert all(sorted(slots) == list(range(9)) for slots in drawn)
    assert len(set(map(tuple, drawn))) > 1


def test_uniform_draws_with_replacement_below_the_budget():
    memory = memory_of((5, 0, 1.0), (6, 0, 1.0))
    drawn = torch.tensor([select(uniform, memory, seed=s) for s in range(1000)])
    assert drawn.shape == (1000, 4)
    # Independent draws: all 16 lists, each 62.5 times in 1000 (five sigma is 38).
    lists = (drawn * torch.tensor([8, 4, 2, 1])).sum(dim=1).bincount(minlength=16)
    assert (lists - 62.5).abs().max() < 38


@pytest.mark.parametrize("device", DEVICES)
@quick
@given(st.lists(st.lists(small_values, min_size=9, max_size=9), min_size=1, max_size=3))
def test_top_k_is_a_stable_sort(device, rows):
    values = torch.tensor(rows, device=device)
    for k in range(10):
        expected = [sorted(range(9), key=lambda n: (-r[n], n))[:k] for r in rows]  # noqa: B023
        assert top_k_descending(values, k).tolist() == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length, k", [(1000, 1), (1001, 3), (999, 40), (64, 64)])
def test_top_k_of_long_rows(length, k, device):
    generator = torch.Generator().manual_seed(length)
    values = torch.randint(9, (3, length), generator=generator).float()
    values[1, -2:] = 10.0  # in what is left over beside whole blocks
    expected = values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    values = values.to(device)
    assert torch.equal(top_k_descending(values, k).cpu(), expected)
    assert torch.equal(top_k_ascending(values, k).cpu(), expected.sort(dim=1).values)


def test_content_and_write_at_a_hundred_thousand_slots():
    capacity = 100_000
    memory = make_memory(capacity)
    rows = torch.arange(capacity) % 6
    addresses = pool_addresses(memory, rows.tolist())
    tensors = {
        "example_ids": torch.arange(capacity),
        "scores": torch.ones(capacity),
        "replay_counts": torch.zeros(capacity, dtype=torch.int32),
        "tokens": torch.zeros(0, dtype=torch.int32),
        "lengths": torch.zeros(capacity, 2, dtype=torch.int32),
        "address_values": addresses.values,
        "address_indices": addresses.indices,
    }
    memory.load(tensors)
    sources = [0, 5] * 32
    # Example 6 has the second copy of pool row 0, example 5 the first of row 5.
    assert select(content, memory, sources=sources, current=[5, 6]) == [0, 12, 11, 17]
    play(("write", [(capacity + n, 3, 0.5) for n in range(8)]), memory)
    # The first write takes the lowest of equal slots, the others the write before them.
    assert memory.example_ids[:2].tolist() == [capacity + 7, 1]
    assert select(content, memory, sources=[3], neighbors=3) == [0, 3, 9]


def test_selections_are_found_with_what_they_need():
    assert SELECTIONS.find("content").choose is content
    assert SELECTIONS.find("content").needs_addresses
    named = SELECTIONS.find("erjepa.replay.selection.uniform")
    assert named is SELECTIONS.find("uniform") and not named.needs_addresses
    assert not SELECTIONS.find("current_batch").of_memory
    assert SELECTIONS.find("erjepa.replay.selection.fill_to") == Selection(fill_to)


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "hardest",
            "must be one of content, uniform, .*, or the dotted path .*hardest",
        ),
        (None, "must be one of content, uniform, .*None"),
        (".hard", "must be one of content"),
        ("no_such_module.select", "cannot be imported .No module named"),
        ("erjepa.replay.selection.hardest", "cannot be imported .*no attribute"),
        ("erjepa.replay.selection.SELECTIONS", "is not a function"),
    ],
)
def test_unknown_selections(name, message):
    with pytest.raises(ValueError, match=f"replay.selection.*{message}"):
        SELECTIONS.find(name)
