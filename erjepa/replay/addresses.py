"""Addresses of the memory's slots: what a source embedding is stored and found by."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from erjepa.replay.checks import finite, same_settings
from erjepa.replay.codes import Codes
from erjepa.replay.top import top_set

# Entries of the address table that a similarity search reads at a time: what stays in the
# cache of a CPU, and on a GPU what takes few launches.
_CHUNK_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 24}


class SparseAddresses:
    """Frozen random projection with sparse Top-K: the paper's Phi and its address table.

    Phi(z) keeps the K entries of W z with the largest magnitude, sign and size included,
    and is zero elsewhere; W is [S, H] with entries from N(0, 1/H) (appendix "Content
    Replay"). Addresses are stored normalized, so that a dot product is the cosine.

    Args:
        capacity (int): number of slots M.
        embed_dim (int): size of a source embedding, H.
        address_dim (int): size of an address, S.
        top_k (int): entries kept per address, K.
        seed (int): seed of the projection. It is drawn on the CPU, so equal seeds give
            equal projections on every rank and device.
        device (torch.device | str): where projection and table live.

    Raises:
        ValueError: if ``top_k`` is larger than ``address_dim``.
    """

    def __init__(
        self,
        capacity: int,
        embed_dim: int,
        *,
        address_dim: int,
        top_k: int,
        seed: int,
        device: torch.device | str,
    ) -> None:
        if top_k > address_dim:
            raise ValueError(
                f"replay.address_top_k must be at most replay.address_dim "
                f"({address_dim}), got {top_k}; keep fewer entries or widen the address"
            )
        generator = torch.Generator("cpu").manual_seed(seed)
        projection = torch.randn(
            address_dim,
            embed_dim,
            generator=generator,
            dtype=torch.float32,
            device="cpu",
        )
        self.projection = (projection * embed_dim**-0.5).to(device)
        self.top_k = top_k
        self.seed = seed
        narrow = torch.int16 if address_dim <= 32767 else torch.int32
        self._indices = torch.empty(capacity, top_k, dtype=narrow, device=device)
        self._values = torch.empty(capacity, top_k, dtype=torch.float32, device=device)

    @torch.no_grad()
    def encode(self, embeddings: Tensor) -> Codes:
        """Normalized sparse addresses of source embeddings.

        Args:
            embeddings (Tensor): source embeddings z^u, any float dtype, shape [B, H].

        Returns:
            Codes: B codes; equal magnitudes are kept from the lower index on, and a
            zero embedding has zero values.

        Raises:
            ValueError: if an embedding is not finite.
        """
        cues = embeddings.to(self.projection.device, torch.float32)
        finite("source embeddings", cues)
        with torch.autocast(cues.device.type, enabled=False):
            projected = cues @ self.projection.T
        indices = top_set(projected.abs(), self.top_k)
        return Codes(F.normalize(projected.gather(1, indices), dim=1), indices)

    def put(self, slots: Tensor, code: Codes) -> None:
        """Stores ``code`` ([B] addresses) in the distinct ``slots`` [B]."""
        self._indices[slots] = code.indices.to(self._indices.dtype)
        self._values[slots] = code.values

    @torch.no_grad()
    def similarity(self, code: Codes, num_slots: int) -> Tensor:
        """Cosine of every cue with the first slots, at O(B N K).

        Args:
            code (Codes): B cues.
            num_slots (int): number of slots in use, N.

        Returns:
            Tensor: cosines in float32, shape [B, N].
        """
        num_cues = code.values.shape[0]
        # Row s of the table holds what each cue has at entry s: the dot products of one
        # slot are then a weighted sum of K rows, which is an embedding bag.
        table = self.projection.new_zeros(self.projection.shape[0], num_cues)
        table.scatter_(0, code.indices.T, code.values.T)
        out = table.new_empty(num_cues, num_slots)
        entries = _CHUNK_ENTRIES.get(table.device.type, _CHUNK_ENTRIES["cuda"])
        chunk = max(1, entries // max(self.top_k, num_cues))
        for start in range(0, num_slots, chunk):
            part = slice(start, min(start + chunk, num_slots))
            out[:, part] = F.embedding_bag(
                self._indices[part].int(),
                table,
                per_sample_weights=self._values[part],
                mode="sum",
            ).T
        return out

    def state_dict(self, num_slots: int) -> dict[str, Any]:
        """The first ``num_slots`` addresses; the seed stands for the projection."""
        return {
            "embed_dim": self.projection.shape[1],
            "address_dim": self.projection.shape[0],
            "address_top_k": self.top_k,
            "seed": self.seed,
            "indices": self._indices[:num_slots].to("cpu", copy=True),
            "values": self._values[:num_slots].to("cpu", copy=True),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores addresses that were made with the same projection.

        Raises:
            ValueError: if the seed or a dimension differs from the saved one.
        """
        same_settings(state, self.state_dict(0))
        num_slots = state["indices"].shape[0]
        self._indices[:num_slots] = state["indices"].to(self._indices.device)
        self._values[:num_slots] = state["values"].to(self._values.device)


class DenseAddresses:
    """Normalized source embeddings as addresses: the ablation of the sparse code.

    Args:
        capacity (int): number of slots M.
        embed_dim (int): size of a source embedding, H.
        device (torch.device | str): where the table lives.
    """

    def __init__(
        self, capacity: int, embed_dim: int, *, device: torch.device | str
    ) -> None:
        self._values = torch.empty(
            capacity, embed_dim, dtype=torch.float32, device=device
        )

    @torch.no_grad()
    def encode(self, embeddings: Tensor) -> Codes:
        """Unit vectors of source embeddings [B, H]; a zero embedding stays zero.

        Raises:
            ValueError: if an embedding is not finite.
        """
        cues = embeddings.to(self._values.device, torch.float32)
        finite("source embeddings", cues)
        return Codes(F.normalize(cues, dim=1))

    def put(self, slots: Tensor, code: Codes) -> None:
        """Stores ``code`` ([B] addresses) in the distinct ``slots`` [B]."""
        self._values[slots] = code.values

    @torch.no_grad()
    def similarity(self, code: Codes, num_slots: int) -> Tensor:
        """Cosine of every cue with the first slots, float32, shape [B, N]."""
        with torch.autocast(self._values.device.type, enabled=False):
            return code.values @ self._values[:num_slots].T

    def state_dict(self, num_slots: int) -> dict[str, Any]:
        """The first ``num_slots`` addresses."""
        return {
            "embed_dim": self._values.shape[1],
            "values": self._values[:num_slots].to("cpu", copy=True),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores addresses of embeddings of the same size.

        Raises:
            ValueError: if the saved addresses are sparse or of another size.
        """
        same_settings(state, self.state_dict(0))
        num_slots = state["values"].shape[0]
        self._values[:num_slots] = state["values"].to(self._values.device)
