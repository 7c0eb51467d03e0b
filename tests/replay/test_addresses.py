"""Sparse addresses equal the dense projection with all but the top-k entries set to zero."""

import pytest
import torch

from erjepa.replay import addresses as addresses_module
from erjepa.replay.addresses import DenseAddressTable, SparseAddressTable
from erjepa.replay.state import DenseAddresses, SparseAddresses
from tests.harness.cases import DEVICES
from tests.reference.list_memory import ListMemory


def make(capacity=50, embed_dim=8, address_dim=64, top_k=5, seed=1, device="cpu"):
    state = SparseAddresses(embed_dim, address_dim, top_k, seed)
    return SparseAddressTable(capacity, state, device)


def make_dense(capacity=9, embed_dim=8, device="cpu"):
    return DenseAddressTable(capacity, DenseAddresses(embed_dim), device)


def embeddings(count, embed_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, embed_dim, generator=generator)


def as_dense(addresses, address_dim):
    dense = torch.zeros(
        len(addresses.values), address_dim, device=addresses.values.device
    )
    return dense.scatter(1, addresses.indices, addresses.values)


def reference(table):
    return ListMemory(
        1,
        on_revisit="refresh",
        score_update_rate=0.1,
        projection=table.projection.cpu(),
        top_k=table.top_k,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_encode_equals_the_dense_projection(device):
    table, z = make(device=device), embeddings(20)
    expected = torch.stack([reference(table).address(row) for row in z])
    addresses = table.encode(z)
    assert (addresses.indices.diff(dim=1) > 0).all()
    torch.testing.assert_close(as_dense(addresses, 64).cpu(), expected)


def test_encode_by_hand():
    table = make(embed_dim=1, address_dim=5, top_k=2)
    table.projection = torch.tensor([[1.0], [-3.0], [4.0], [2.0], [-4.0]])
    addresses = table.encode(torch.tensor([[2.0], [-0.5]]))
    assert addresses.indices.tolist() == [[2, 4], [2, 4]]
    half = 0.5**0.5
    torch.testing.assert_close(
        addresses.values, torch.tensor([[half, -half], [-half, half]])
    )


def test_equal_magnitudes_keep_the_lower_index():
    table = make(embed_dim=1, address_dim=6, top_k=3)
    table.projection = torch.tensor([[1.0], [-2.0], [2.0], [3.0], [2.0], [-2.0]])
    assert table.encode(torch.ones(1, 1)).indices.tolist() == [[1, 2, 3]]


def test_zero_embedding_is_similar_to_nothing():
    table = make()
    addresses = table.encode(torch.zeros(1, 8))
    assert addresses.values.tolist() == [[0.0] * 5]
    table.put(torch.tensor([0]), addresses)
    assert table.similarity(table.encode(embeddings(2)), 1).tolist() == [[0]] * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_entries", [1, 35, 1 << 18])
def test_similarity_equals_dense_cosines(monkeypatch, chunk_entries, device):
    monkeypatch.setitem(addresses_module._CHUNK_ENTRIES, device, chunk_entries)
    table = make(device=device)
    stored = table.encode(embeddings(23))
    slots = torch.randperm(23, generator=torch.Generator().manual_seed(2)).to(device)
    table.put(slots, stored)
    sources = table.encode(embeddings(4, seed=9))
    dense = torch.empty(23, 64, device=device)
    dense[slots] = as_dense(stored, 64)
    expected = as_dense(sources, 64).double() @ dense.double().T
    cosines = table.similarity(sources, 20)
    assert cosines.dtype == torch.float32
    torch.testing.assert_close(
        cosines, expected[:, :20].float(), atol=1e-6, rtol=0, check_device=False
    )


def test_projection_depends_on_the_seed_alone():
    first = make(seed=1, embed_dim=64, address_dim=512).projection
    torch.manual_seed(99)
    assert torch.equal(first, make(seed=1, embed_dim=64, address_dim=512).projection)
    assert not torch.equal(
        first, make(seed=2, embed_dim=64, address_dim=512).projection
    )
    assert first.shape == (512, 64)
    # Variance 1/H: 32768 draws put the estimate within 4 % of it at five sigma.
    assert first.var().item() * 64 == pytest.approx(1, abs=0.04)
    assert abs(first.mean().item()) < 5 / (64 * 32768) ** 0.5


def test_wide_addresses_keep_their_indices():
    table = make(capacity=1, embed_dim=1, address_dim=40_000, top_k=2)
    table.projection[:] = 0
    table.projection[[32_767, 39_999]] = torch.tensor([[1.0], [2.0]])
    addresses = table.encode(torch.ones(1, 1))
    table.put(torch.tensor([0]), addresses)
    assert addresses.indices.tolist() == [[32_767, 39_999]]
    assert table.similarity(addresses, 1).item() == pytest.approx(1)


def test_a_slot_costs_six_bytes_per_entry():
    columns = make(capacity=7, address_dim=32_767, top_k=5).columns.values()
    assert sum(column.nbytes for column in columns) == 7 * 5 * 6


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_codes_are_float32_without_gradient_whatever_the_dtypes_around(kind):
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        table = make() if kind == "sparse" else make_dense()
        z = embeddings(3).to(torch.bfloat16)
        expected = table.encode(z.float())
        with torch.autocast("cpu", torch.bfloat16):
            addresses = table.encode(z.requires_grad_())
            table.put(torch.arange(3), addresses)
            cosines = table.similarity(addresses, 3)
    finally:
        torch.set_default_dtype(previous)
    assert not addresses.values.requires_grad
    assert addresses.values.dtype == cosines.dtype == torch.float32
    torch.testing.assert_close(addresses.values, expected.values, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines.diag(), torch.ones(3), atol=1e-6, rtol=0)


def test_dense_similarity_is_the_cosine():
    table, z, sources = (
        make_dense(),
        embeddings(5),
        embeddings(2),
    )
    table.put(torch.arange(5), table.encode(z))
    expected = torch.cosine_similarity(sources[:, None], z[None], dim=2)
    torch.testing.assert_close(table.similarity(table.encode(sources), 5), expected)
    assert table.encode(torch.zeros(1, 8)).values.tolist() == [[0.0] * 8]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_entries", [20, 1 << 18])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_equal_addresses_have_equal_cosines(monkeypatch, kind, chunk_entries, device):
    """Whatever their slots, and however many they are: ties go to the lower slot."""
    monkeypatch.setitem(addresses_module._CHUNK_ENTRIES, device, chunk_entries)
    for embed_dim in (4, 100):
        if kind == "sparse":
            table = make(embed_dim=embed_dim, device=device)
        else:
            table = make_dense(50, embed_dim, device)
        for row in range(6):
            z = embeddings(6, embed_dim, seed=5)[[row]]
            table.put(torch.arange(9), table.encode(z.expand(9, -1)))
            for count in range(1, 10):
                cosines = table.similarity(table.encode(z), count)
                assert cosines.shape == (1, count)
                assert cosines.unique().numel() == 1


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_refuses_embeddings_that_are_not_finite(kind, bad):
    table = make() if kind == "sparse" else make_dense()
    z = embeddings(2)
    z[1, 3] = bad
    with pytest.raises(ValueError, match="source embeddings must be finite"):
        table.encode(z)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"address_dim": 65}, "replay.address_dim is 65, but .* written with 64"),
        ({"top_k": 4}, "replay.address_top_k is 4, but .* written with 5"),
        ({"embed_dim": 7}, "embed_dim is 7, but .* written with 8"),
    ],
)
def test_refuses_the_state_of_another_projection(other, message):
    with pytest.raises(ValueError, match=message):
        make(**other).restore(make().state)


def test_refuses_dense_addresses_of_another_size():
    state = make_dense().state
    with pytest.raises(ValueError, match="embed_dim is 7, but .* written with 8"):
        make_dense(embed_dim=7).restore(state)


def test_takes_over_the_projection_with_the_addresses():
    first, second = make(seed=1), make(seed=2)
    sources = embeddings(5)
    first.put(torch.arange(5), first.encode(sources))
    second.restore(first.state)
    assert second.state == first.state
    cosines = first.similarity(second.encode(sources), 5)
    torch.testing.assert_close(cosines.diagonal(), torch.ones(5))
