"""The memory equals the reference after every operation of random histories."""

import tracemalloc
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from erjepa.replay import EpisodicMemory, EpisodicReplay, ReplaySettings
from erjepa.replay.addresses import SparseAddressTable
from erjepa.replay.state import SparseAddresses
from tests.harness.histories import (
    assert_same,
    histories,
    make_memory,
    make_reference,
    make_segments,
    play,
    pool_addresses,
    quick,
)
from tests.harness.memories import bytes_per_slot

modes = st.sampled_from(["keep", "refresh", "append"])
kinds = st.sampled_from(["sparse", "dense"])


def write(memory, *pairs):
    """Writes (example, score) pairs as one batch."""
    ids, scores = zip(*pairs, strict=True)
    segments = [make_segments(example, row) for row, example in enumerate(ids)]
    addresses = pool_addresses(memory, [0] * len(ids))
    memory.write(torch.tensor(ids), segments, addresses, torch.tensor(scores))


@quick
@given(histories, st.integers(1, 6), modes, kinds)
def test_history_equals_list_memory(history, capacity, on_revisit, address):
    memory = make_memory(capacity, on_revisit=on_revisit, address=address)
    reference = make_reference(memory)
    for operation in history:
        play(operation, memory, reference)
        assert_same(memory, reference)


@quick
@given(histories, histories, st.integers(1, 6), modes, kinds)
def test_state_and_tensors_continue_a_history(
    before, after, capacity, on_revisit, address
):
    memory = make_memory(capacity, on_revisit=on_revisit, address=address)
    reference = make_reference(memory)
    for operation in before:
        play(operation, memory, reference)
    state, tensors = memory.state, load(save(memory.tensors()))
    resumed = make_memory(capacity, on_revisit=on_revisit, address=address)
    play(("write", [(7, 1, 1.0), (6, 2, 2.0)]), resumed)  # replaced by loading
    resumed.restore(state, tensors)
    assert_same(resumed, reference)
    for operation in after:
        play(operation, resumed, reference)
    assert_same(resumed, reference)


def test_evicts_the_lowest_score_per_use():
    memory = make_memory(3)
    write(memory, (10, 0.9), (11, 0.5), (12, 0.6))
    memory.refresh([0, 0], torch.tensor([0.9, 0.9]))  # slot 0: 0.9 / 3 = 0.3 < 0.5
    write(memory, (13, 0.7))
    assert memory.example_ids.tolist() == [13, 11, 12]
    assert memory.replay_counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "on_revisit, ids, counts, score",
    [
        ("keep", [10], [1], 0.9),
        ("refresh", [10], [1], 0.3),
        ("append", [10, 10], [1, 0], 0.3),
    ],
)
def test_revisit(on_revisit, ids, counts, score):
    memory = make_memory(4, on_revisit=on_revisit)
    write(memory, (10, 0.9))
    memory.refresh([0], torch.tensor([0.9]))
    write(memory, (10, 0.3))
    assert memory.example_ids.tolist() == ids
    assert memory.replay_counts.tolist() == counts
    assert memory.scores[-1].item() == pytest.approx(score)


def test_keep_leaves_the_slot_as_inserted():
    memory = make_memory(2, on_revisit="keep")
    play(("write", [(10, 0, 0.9), (11, 1, 0.8), (11, 2, 0.1)]), memory)
    before = {name: t.clone() for name, t in memory.tensors().items()}
    play(("write", [(11, 3, 0.2), (10, 4, 0.3)]), memory)  # other addresses and tokens
    after = memory.tensors()
    assert torch.equal(after["scores"], torch.tensor([0.9, 0.8]))
    for name in ("address_values", "tokens"):
        assert torch.equal(after[name], before[name])
    # What another write of the batch evicted is new again: 12 takes the slot of 11, and 11,
    # stronger than neither, takes it back.
    write(memory, (12, 0.7), (11, 0.6))
    assert memory.example_ids.tolist() == [10, 11]
    assert memory.scores.tolist() == torch.tensor([0.9, 0.6]).tolist()


def test_refresh_compounds_once_per_occurrence():
    memory = make_memory(2)
    write(memory, (10, 1.0), (11, 2.0))
    memory.refresh([1, 0, 1], torch.tensor([0.0, 0.0, 4.0]))
    # eta = 1/4: slot 1 goes 2 -> 1.5 -> 1.125 + 1
    assert memory.scores.tolist() == [0.75, 2.125]
    assert memory.replay_counts.tolist() == [1, 2]


def test_a_larger_memory_takes_over_a_smaller_one():
    small, large = make_memory(2), make_memory(3)
    write(small, (10, 0.5), (11, 0.6))
    large.restore(small.state, small.tensors())
    write(large, (12, 0.1))
    assert large.example_ids.tolist() == [10, 11, 12]


def test_tensors_are_of_used_slots_only():
    memory = make_memory(100_000)
    write(memory, (10, 0.5))
    assert len(save(memory.tensors())) < 1000


def test_a_million_slots_of_a_hundred_tokens_fit_two_gib():
    # Addresses of a model of width 2048 with the default S = 4 H and K = S / 32.
    table = SparseAddressTable(50, SparseAddresses(1, 8192, 256, seed=0), "cpu")
    memory = EpisodicMemory(50, table)
    addresses = table.encode(torch.ones(50, 1))
    tokens = list(range(50))
    memory.write(torch.arange(50), [(tokens, tokens)] * 50, addresses, torch.ones(50))
    # 6 a kept entry, 4 a token; 24 for id, score, count and two lengths; 41 for the object
    # that holds the tokens and the pointer to it.
    assert bytes_per_slot(memory) == 6 * 256 + 4 * 100 + 24 + 41
    assert bytes_per_slot(memory) * 10**6 < 2 * 2**30


def test_a_batch_of_writes_into_a_large_full_memory():
    capacity, batch = 100_000, 64
    memory = make_memory(capacity)
    generator = torch.Generator().manual_seed(0)
    addresses = pool_addresses(memory, [0])
    scores = torch.randint(50, 9000, (capacity,), generator=generator) / 100
    tensors = {
        "example_ids": torch.arange(capacity),
        "scores": scores,
        "replay_counts": torch.randint(0, 4, (capacity,), generator=generator).int(),
        "tokens": torch.arange(capacity, dtype=torch.int32),
        "lengths": torch.ones(capacity, 1, dtype=torch.int32),
        "address_values": addresses.values.expand(capacity, -1),
        "address_indices": addresses.indices.expand(capacity, -1),
    }
    memory.load(tensors)

    ids = torch.arange(capacity, capacity + batch)
    ids[::8] = torch.randint(capacity, (8,), generator=generator)  # revisits
    scores = torch.randint(0, 80, (batch,), generator=generator) / 100
    expected_ids, expected_scores = memory.example_ids.clone(), memory.scores.clone()
    counts = memory.replay_counts.clone()
    for example, score in zip(ids, scores, strict=True):
        held = (expected_ids == example).nonzero()
        slot = (expected_scores / (1 + counts)).argmin()
        slot = held[0, 0] if held.numel() else slot
        expected_ids[slot], expected_scores[slot] = example, score
        counts[slot] = counts[slot] if held.numel() else 0

    segments = [[[int(example)]] for example in ids]
    addresses = pool_addresses(memory, [1] * batch)
    tracemalloc.start()
    memory.write(ids, segments, addresses, scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(memory.example_ids, expected_ids)
    assert torch.equal(memory.scores, expected_scores)
    assert torch.equal(memory.replay_counts, counts)
    # A Python object per slot would take megabytes.
    assert peak < 200_000


class LargeOperations(TorchDispatchMode):
    """Collects the names of the operations on tensors of at least ``size`` entries."""

    def __init__(self, size):
        super().__init__()
        self.size, self.names = size, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, out)) if isinstance(t, torch.Tensor)]
        if any(t.numel() >= self.size for t in tensors):
            # A view of a few entries is none.
            self.names += [func.overloadpacket.__name__] * (not func.is_view)
        return out


@pytest.mark.parametrize("is_inherited", [False, True])
@pytest.mark.parametrize(
    "name", ["score", "reservoir", "balanced", "surprise", "stratified"]
)
def test_a_step_reads_all_slots_a_few_times_whatever_its_pairs(name, is_inherited):
    """And neither compares them with every pair nor sorts them, except to stratify."""
    size, step = 2000, iter(range(9))
    settings = ReplaySettings(
        capacity=size, retention=name, selection="uniform", address="none"
    )
    replay = EpisodicReplay(settings, embed_dim=4, seed=0)

    def operations(pairs):
        ids = torch.arange(pairs) + size * next(step)
        segments = [([int(i)], [int(i) % 7]) for i in ids]
        with LargeOperations(size) as large:
            replay.draw(ids, segments, None, 4)
            replay.write(ids, segments, None, torch.rand(pairs))
        return Counter(large.names)

    operations(size)
    if is_inherited:
        replay.memory.inherit(replay.memory.example_ids - (9 << 32), size)
    operations(8)
    few, many = operations(8), operations(200)
    assert not few.keys() & {"isin", "_unique2"}
    assert "sort" not in few or name == "stratified"
    for operation in ("copy_", "index_put_"):  # into single slots
        few.pop(operation, None), many.pop(operation, None)
    assert few == many


def write_args(memory, **changes):
    args = {
        "example_ids": torch.tensor([1, 2]),
        "segments": [([1], [2]), ([3], [4])],
        "addresses": pool_addresses(memory, [0, 1]),
        "scores": torch.tensor([0.5, 0.5]),
    }
    return args | changes


def test_a_refused_write_leaves_the_memory_as_it_was():
    memory = make_memory(4)
    with pytest.raises(ValueError, match="errors must be finite"):
        memory.write(**write_args(memory, scores=torch.tensor([0.5, torch.nan])))
    assert len(memory) == 0
    memory.write(**write_args(memory))
    assert len(memory) == 2


def test_a_refused_refresh():
    memory = make_memory(4)
    write(memory, (10, 0.5))
    with pytest.raises(ValueError, match="errors must be finite"):
        memory.refresh([0], torch.tensor([torch.inf]))
    assert memory.replay_counts.tolist() == [0]


def test_an_empty_batch_changes_nothing():
    memory = make_memory(4)
    memory.write(
        torch.tensor([]).long(), [], pool_addresses(memory, []), torch.tensor([])
    )
    memory.refresh([], torch.tensor([]))
    assert len(memory) == 0 and memory.segments([]) == []


@pytest.mark.parametrize(
    "ours, message",
    [
        ({"on_revisit": "append"}, "replay.on_revisit must be the .* 'refresh'"),
        (
            {"address": "dense"},
            "replay.address is dense, but the memory was written with sparse",
        ),
    ],
)
def test_refuses_a_state_of_other_settings(ours, message):
    source = make_memory(2)
    write(source, (10, 0.5))
    target = make_memory(2, **ours)
    with pytest.raises(ValueError, match=message):
        target.restore(source.state, source.tensors())
    assert len(target) == 0
