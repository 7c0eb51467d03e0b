"""Sparse addresses equal the dense projection with everything but Top-K set to zero."""

import pytest
import torch

from erjepa.replay import DenseAddresses, SparseAddresses
from erjepa.replay import addresses as addresses_module
from tests.reference.list_memory import ListMemory

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def make(capacity=50, embed_dim=8, address_dim=64, top_k=5, seed=1, device="cpu"):
    return SparseAddresses(
        capacity,
        embed_dim,
        address_dim=address_dim,
        top_k=top_k,
        seed=seed,
        device=device,
    )


def embeddings(count, embed_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, embed_dim, generator=generator)


def as_dense(codes, address_dim):
    dense = torch.zeros(len(codes.values), address_dim, device=codes.values.device)
    return dense.scatter(1, codes.indices, codes.values)


def reference(addresses):
    return ListMemory(
        1,
        on_revisit="refresh",
        score_update_rate=0.1,
        projection=addresses.projection.cpu(),
        top_k=addresses.top_k,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_encode_equals_the_dense_projection(device):
    addresses, z = make(device=device), embeddings(20)
    expected = torch.stack([reference(addresses).address(row) for row in z])
    codes = addresses.encode(z)
    assert (codes.indices.diff(dim=1) > 0).all()
    torch.testing.assert_close(as_dense(codes, 64).cpu(), expected)


def test_encode_by_hand():
    addresses = make(embed_dim=1, address_dim=5, top_k=2)
    addresses.projection = torch.tensor([[1.0], [-3.0], [4.0], [2.0], [-4.0]])
    codes = addresses.encode(torch.tensor([[2.0], [-0.5]]))
    assert codes.indices.tolist() == [[2, 4], [2, 4]]
    half = 0.5**0.5
    torch.testing.assert_close(
        codes.values, torch.tensor([[half, -half], [-half, half]])
    )


def test_equal_magnitudes_keep_the_lower_index():
    addresses = make(embed_dim=1, address_dim=6, top_k=3)
    addresses.projection = torch.tensor([[1.0], [-2.0], [2.0], [3.0], [2.0], [-2.0]])
    assert addresses.encode(torch.ones(1, 1)).indices.tolist() == [[1, 2, 3]]


def test_zero_embedding_is_similar_to_nothing():
    addresses = make()
    codes = addresses.encode(torch.zeros(1, 8))
    assert codes.values.tolist() == [[0.0] * 5]
    addresses.put(torch.tensor([0]), codes)
    assert (
        addresses.similarity(addresses.encode(embeddings(2)), 1).tolist() == [[0]] * 2
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_entries", [1, 35, 1 << 18])
def test_similarity_equals_dense_cosines(monkeypatch, chunk_entries, device):
    monkeypatch.setitem(addresses_module._CHUNK_ENTRIES, device, chunk_entries)
    addresses = make(device=device)
    stored = addresses.encode(embeddings(23))
    slots = torch.randperm(23, generator=torch.Generator().manual_seed(2)).to(device)
    addresses.put(slots, stored)
    cues = addresses.encode(embeddings(4, seed=9))
    dense = torch.empty(23, 64, device=device)
    dense[slots] = as_dense(stored, 64)
    expected = as_dense(cues, 64).double() @ dense.double().T
    cosines = addresses.similarity(cues, 20)
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
    addresses = make(capacity=1, embed_dim=1, address_dim=40_000, top_k=2)
    addresses.projection[:] = 0
    addresses.projection[[32_767, 39_999]] = torch.tensor([[1.0], [2.0]])
    codes = addresses.encode(torch.ones(1, 1))
    addresses.put(torch.tensor([0]), codes)
    assert codes.indices.tolist() == [[32_767, 39_999]]
    assert addresses.similarity(codes, 1).item() == pytest.approx(1)


def test_a_slot_costs_six_bytes_per_entry():
    state = make(capacity=7, address_dim=32_767, top_k=5).state_dict(7)
    stored = state["indices"].nbytes + state["values"].nbytes
    assert stored == 7 * 5 * 6


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_codes_are_float32_without_gradient_whatever_the_dtypes_around(kind):
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        addresses = make() if kind == "sparse" else DenseAddresses(9, 8, device="cpu")
        z = embeddings(3).to(torch.bfloat16)
        expected = addresses.encode(z.float())
        with torch.autocast("cpu", torch.bfloat16):
            codes = addresses.encode(z.requires_grad_())
            addresses.put(torch.arange(3), codes)
            cosines = addresses.similarity(codes, 3)
    finally:
        torch.set_default_dtype(previous)
    assert not codes.values.requires_grad
    assert codes.values.dtype == cosines.dtype == torch.float32
    torch.testing.assert_close(codes.values, expected.values, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines.diag(), torch.ones(3), atol=1e-6, rtol=0)


def test_dense_similarity_is_the_cosine():
    addresses, z, cues = (
        DenseAddresses(9, 8, device="cpu"),
        embeddings(5),
        embeddings(2),
    )
    addresses.put(torch.arange(5), addresses.encode(z))
    expected = torch.cosine_similarity(cues[:, None], z[None], dim=2)
    torch.testing.assert_close(
        addresses.similarity(addresses.encode(cues), 5), expected
    )
    assert addresses.encode(torch.zeros(1, 8)).values.tolist() == [[0.0] * 8]


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_refuses_embeddings_that_are_not_finite(kind, bad):
    addresses = make() if kind == "sparse" else DenseAddresses(9, 8, device="cpu")
    z = embeddings(2)
    z[1, 3] = bad
    with pytest.raises(ValueError, match="source embeddings must be finite"):
        addresses.encode(z)


def test_refuses_more_entries_than_the_address_has():
    with pytest.raises(ValueError, match=r"replay.address_top_k must be at .* \(64\)"):
        make(top_k=65)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"seed": 2}, "seed is 2, but .* written with 1"),
        ({"address_dim": 65}, "replay.address_dim is 65, but .* written with 64"),
        ({"top_k": 4}, "replay.address_top_k is 4, but .* written with 5"),
        ({"embed_dim": 7}, "embed_dim is 7, but .* written with 8"),
    ],
)
def test_refuses_the_state_of_another_projection(other, message):
    with pytest.raises(ValueError, match=message):
        make(**other).load_state_dict(make().state_dict(0))


def test_refuses_dense_addresses_of_another_size():
    state = DenseAddresses(9, 8, device="cpu").state_dict(0)
    with pytest.raises(ValueError, match="embed_dim is 7, but .* written with 8"):
        DenseAddresses(9, 7, device="cpu").load_state_dict(state)
