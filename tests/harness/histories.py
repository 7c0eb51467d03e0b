"""Random histories of a memory, applied to the fast memory and to the reference."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

from erjepa.replay import EpisodicMemory, ReplaySettings
from erjepa.replay.addresses import build_table
from erjepa.replay.selection import Request
from erjepa.replay.state import DenseAddresses, SparseAddresses
from tests.reference.list_memory import ListMemory

quick = settings(deadline=None, derandomize=True, max_examples=75)

EMBED_DIM, ADDRESS_DIM, TOP_K, RATE = 4, 24, 6, 0.25
# Few embeddings, so that addresses repeat and cosines tie; the zero vector among them.
POOL = torch.cat(
    [
        torch.randn(6, EMBED_DIM, generator=torch.Generator().manual_seed(5)),
        torch.zeros(1, EMBED_DIM),
    ]
)

# Few scores, so that priorities tie: 0.5 / 1 = 1 / 2, and 0.3 / 3 is inexact.
scores = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 1.0, 2.0])
pairs = st.tuples(st.integers(0, 7), st.integers(0, len(POOL) - 1), scores)
writes = st.tuples(st.just("write"), st.lists(pairs, min_size=1, max_size=8))
refreshes = st.tuples(
    st.just("refresh"), st.lists(st.tuples(st.integers(0, 5), scores), max_size=6)
)
histories = st.lists(st.one_of(writes, refreshes), min_size=1, max_size=8)


def make_memory(capacity, *, on_revisit="refresh", address="sparse", device="cpu"):
    addresses = DenseAddresses(EMBED_DIM)
    if address == "sparse":
        addresses = SparseAddresses(EMBED_DIM, ADDRESS_DIM, TOP_K, seed=3)
    return EpisodicMemory(
        capacity,
        build_table(capacity, addresses, device),
        on_revisit=on_revisit,
        score_update_rate=RATE,
        device=device,
    )


def make_reference(memory):
    return ListMemory(
        memory.capacity,
        on_revisit=memory.on_revisit,
        score_update_rate=memory.score_update_rate,
        projection=getattr(memory.address_table, "projection", None),
        top_k=getattr(memory.address_table, "top_k", None),
    )


def make_segments(example, row):
    """Tokens that identify their write; lengths vary and may be 0."""
    return [example & 0xFFFF, row] * (example % 3), [100 + row]


def pool_addresses(memory, rows):
    """Addresses of pool embeddings, encoded in one call, so that equal rows stay bitwise equal."""
    return memory.address_table.encode(POOL).rows(torch.tensor(rows, dtype=torch.int64))


def play(operation, memory, reference=None):
    kind, items = operation
    if kind == "refresh":
        items = [(n % len(memory), error) for n, error in items if len(memory)]
        slots, errors = [n for n, _ in items], [error for _, error in items]
        memory.refresh(slots, torch.tensor(errors))
        if reference:
            reference.refresh(slots, errors)
        return
    ids, rows, values = map(list, zip(*items, strict=True))
    segments = [make_segments(example, row) for row, example in enumerate(ids)]
    memory.write(
        torch.tensor(ids), segments, pool_addresses(memory, rows), torch.tensor(values)
    )
    if reference:
        reference.write(ids, segments, [POOL[row] for row in rows], values)


def assert_same(memory, reference):
    slots = reference.slots
    assert memory.example_ids.tolist() == [m["example"] for m in slots]
    assert memory.replay_counts.tolist() == [m["count"] for m in slots]
    assert memory.scores.tolist() == [m["score"].item() for m in slots]
    stored = memory.segments(range(len(memory)))
    assert [[list(part) for part in r] for r in stored] == [
        m["segments"] for m in slots
    ]
    if slots:
        expected = torch.stack([m["address"] for m in slots])
        sources = torch.stack([reference.address(z) for z in POOL])
        cosines = memory.similarity(memory.address_table.encode(POOL))
        torch.testing.assert_close(cosines, sources @ expected.T, atol=1e-6, rtol=0)


def request_of(memory, *, sources=(0,), current=(), budget=4, seed=0, **settings):
    return Request(
        memory,
        pool_addresses(memory, list(sources)),
        memory.eligible(torch.tensor(current, dtype=torch.int64)),
        budget,
        ReplaySettings(**{"neighbors": 2} | settings),
        torch.Generator().manual_seed(seed),
    )


def select(policy, memory, **given):
    """The slots that a selection returns, given the arguments of :func:`request_of`."""
    return policy(request_of(memory, **given))


def memory_of(*pairs, address="sparse"):
    """A memory of (example, pool row, score) entries, one per slot."""
    memory = make_memory(max(1, len(pairs)), on_revisit="append", address=address)
    if pairs:
        play(("write", list(pairs)), memory)
    return memory
