"""Addresses of source embeddings: encoding, storage and similarity search."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from erjepa.replay.state import AddressState, DenseAddresses, SparseAddresses

# Table entries that a similarity search reads per chunk: few enough for the cache of a CPU,
# enough to need few kernel launches on a GPU.
_CHUNK_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 24}


def _chunks(num_slots: int, entries: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of the slots, as many slots as a chunk has of ``entries`` entries each."""
    of_chunk = _CHUNK_ENTRIES.get(device.type, _CHUNK_ENTRIES["cuda"])
    size = max(1, of_chunk // entries)
    for start in range(0, num_slots, size):
        yield slice(start, min(start + size, num_slots))


class Addresses(NamedTuple):
    """Normalized addresses of B source embeddings.

    Args:
        values: float32; dense addresses, [B, H], or the kept entries of sparse ones, [B, K].
        indices: ascending indices of the kept entries, int64, [B, K]; ``None``: dense.
    """

    values: Tensor
    indices: Tensor | None = None

    def rows(self, rows: Tensor | slice) -> "Addresses":
        indices = None if self.indices is None else self.indices[rows]
        return Addresses(self.values[rows], indices)


class SparseAddressTable:
    """Frozen random projection with sparse Top-K: the paper's Phi and its address table.

    Phi(z) keeps the K entries (``top_k``) of W z with the largest magnitude, signs included, and
    is zero elsewhere; W is [S, H] (``address_dim``, ``embed_dim``) with entries from N(0, 1/H)
    (appendix "Content Replay"). W is drawn from ``seed`` on the CPU, so every rank has the same.
    The table holds M addresses (``capacity``), normalized, so that a dot product is a cosine.

    Attributes:
        state: how the addresses are computed.
        columns: the addresses of all slots, by their names in a memory file.
    """

    def __init__(
        self, capacity: int, state: SparseAddresses, device: torch.device | str
    ) -> None:
        self.state = state
        self.top_k = state.address_top_k
        self.projection = _projection(state).to(device)
        self.columns = _empty(capacity, state, device)
        self._values, self._indices = self.columns.values()

    @torch.no_grad()
    def encode(self, embeddings: Tensor) -> Addresses:
        """Return normalized sparse addresses of source embeddings z^u [B, H], any float dtype.

        Ties in magnitude go to the lower index. A zero embedding has zero values; nan or inf
        raises a ValueError.
        """
        embeddings = embeddings.to(self.projection.device, torch.float32)
        require_finite("source embeddings", embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            projected = embeddings @ self.projection.T
        indices = top_k_ascending(projected.abs(), self.top_k)
        return Addresses(F.normalize(projected.gather(1, indices), dim=1), indices)

    def put(self, slots: Tensor, addresses: Addresses) -> None:
        """Store B addresses in B distinct ``slots`` [B]."""
        assert addresses.indices is not None  # None only for dense addresses
        self._indices[slots] = addresses.indices.to(self._indices.dtype)
        self._values[slots] = addresses.values

    @torch.no_grad()
    def similarity(self, addresses: Addresses, num_slots: int) -> Tensor:
        """Return cosines of B addresses with the first N slots, float32, [B, N], in O(B N K)."""
        batch = addresses.values.shape[0]
        # Row s of ``dense`` holds entry s of every address. The dot products of one slot are then
        # a weighted sum of K rows, which an embedding bag computes.
        dense = self.projection.new_zeros(self.projection.shape[0], batch)
        assert addresses.indices is not None
        dense.scatter_(0, addresses.indices.T, addresses.values.T)
        out = dense.new_empty(batch, num_slots)
        for part in _chunks(num_slots, max(self.top_k, batch), dense.device):
            out[:, part] = F.embedding_bag(
                self._indices[part].int(),
                dense,
                per_sample_weights=self._values[part],
                mode="sum",
            ).T
        return out

    def restore(self, state: AddressState) -> None:
        """Take over the projection of other addresses; dimensions must match."""
        _require_same_settings(state, self.state)
        if state != self.state:
            assert isinstance(state, SparseAddresses)
            self.state = state
            self.projection.copy_(_projection(state))


class DenseAddressTable:
    """Normalized source embeddings as addresses: the ablation of sparse addressing."""

    def __init__(
        self, capacity: int, state: DenseAddresses, device: torch.device | str
    ) -> None:
        self.state = state
        self.columns = _empty(capacity, state, device)
        (self._values,) = self.columns.values()

    @torch.no_grad()
    def encode(self, embeddings: Tensor) -> Addresses:
        """Return unit vectors of source embeddings [B, H]; zero stays zero, nan or inf raises."""
        embeddings = embeddings.to(self._values.device, torch.float32)
        require_finite("source embeddings", embeddings)
        return Addresses(F.normalize(embeddings, dim=1))

    def put(self, slots: Tensor, addresses: Addresses) -> None:
        self._values[slots] = addresses.values

    @torch.no_grad()
    def similarity(self, addresses: Addresses, num_slots: int) -> Tensor:
        """Return cosines of B addresses with the first N slots, float32, [B, N].

        Computed in float64, because slots with equal addresses must tie: the rounding of a
        float32 product depends on the position of a row in the matrix.
        """
        values = addresses.values
        out = values.new_empty(len(values), num_slots)
        with torch.autocast(values.device.type, enabled=False):
            for part in _chunks(num_slots, values.shape[1], values.device):
                out[:, part] = values.double() @ self._values[part].double().T
        return out

    def restore(self, state: AddressState) -> None:
        """Check that other addresses are dense, too, and of the same dimension."""
        _require_same_settings(state, self.state)


AddressTable = SparseAddressTable | DenseAddressTable


def build_table(
    capacity: int, state: AddressState, device: torch.device | str
) -> AddressTable | None:
    """Build an empty table; ``None`` if slots have no addresses."""
    if isinstance(state, SparseAddresses):
        return SparseAddressTable(capacity, state, device)
    if isinstance(state, DenseAddresses):
        return DenseAddressTable(capacity, state, device)
    return None


def _empty(
    capacity: int, state: AddressState, device: torch.device | str
) -> dict[str, Tensor]:
    """Return empty columns of all slots."""
    return {
        name: torch.empty(capacity, width, dtype=dtype, device=device)
        for name, (dtype, width) in state.columns.items()
    }


def _projection(state: SparseAddresses) -> Tensor:
    """W: float32, [S, H]."""
    drawn = torch.randn(
        state.address_dim,
        state.embed_dim,
        generator=torch.Generator("cpu").manual_seed(state.seed),
        dtype=torch.float32,
        device="cpu",
    )
    return drawn * state.embed_dim**-0.5


def require_finite(name: str, values: Tensor) -> None:
    """Raise a ValueError if any of ``values`` is nan or inf."""
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got nan or inf; the model diverged before they "
            f"reached the replay memory"
        )


def _require_same_settings(saved: AddressState, ours: AddressState) -> None:
    """Raise a ValueError unless two states are of the same kind and differ in the seed only."""
    if type(saved) is not type(ours):
        kinds = {SparseAddresses: "sparse", DenseAddresses: "dense"}
        theirs, own = (kinds.get(type(state), "none") for state in (saved, ours))
        raise ValueError(
            f"replay.address is {own}, but the memory was written with {theirs} (none: nothing "
            "read them); keep the settings of the run that wrote it"
        )
    for key, value in asdict(ours).items():
        if key != "seed" and getattr(saved, key) != value:
            name = f"replay.{key}" if key.startswith("address") else key
            raise ValueError(
                f"{name} is {value}, but the memory was written with "
                f"{getattr(saved, key)}; keep the settings of the run that wrote it"
            )


def top_k_descending(values: Tensor, k: int) -> Tensor:
    """Return indices of the k largest values in each row of [B, N], descending, int64 [B, k].

    Ties go to the lower index, which ``torch.topk`` does not guarantee, so that all ranks with
    the same values select the same slots.
    """
    indices = top_k_ascending(values, k)
    # The indices ascend, and a stable sort keeps that order among equal values.
    order = values.gather(1, indices).sort(dim=1, descending=True, stable=True).indices
    return indices.gather(1, order)


def top_k_ascending(values: Tensor, k: int) -> Tensor:
    """Return the same indices as ``top_k_descending``, in ascending order.

    A long row is read once, for the maximum of each block. Only the k blocks with the largest
    maxima (ties to the lower block) are searched: these maxima precede all values of the others.
    """
    length = values.shape[1]
    block = math.isqrt(length // k) if k else 1
    if block == 1:
        return _top_k_ascending(values, k)
    whole = length - length % block
    maxima = values[:, :whole].unflatten(1, (-1, block)).amax(dim=2)
    starts = _top_k_ascending(maxima, k) * block
    columns = torch.arange(length, device=values.device)
    inside = (starts[:, :, None] + columns[:block]).flatten(1)
    rest = columns[whole:].expand(len(values), -1)
    candidates = torch.cat([inside, rest], dim=1)
    return candidates.gather(1, _top_k_ascending(values.gather(1, candidates), k))


def _top_k_ascending(values: Tensor, k: int) -> Tensor:
    """``top_k_ascending`` without blocks: values above the k-th largest, then the first ties."""
    if k == 0:
        return torch.empty(values.shape[0], 0, dtype=torch.int64, device=values.device)
    threshold = values.topk(k, dim=1).values[:, -1:]
    above = values > threshold
    equal = values == threshold
    room = k - above.sum(dim=1, keepdim=True)
    taken = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
    # nonzero() goes row by row, so the indices within a row ascend.
    return taken.nonzero()[:, 1].view(-1, k)
