"""The memories of earlier runs that a run starts with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.configs import Config
from erjepa.replay import EpisodicReplay, ReplaySettings
from erjepa.replay.registry import RETENTIONS
from erjepa.replay.retention import (
    EXAMPLE_MASK,
    ORIGIN_BITS,
    drawn_numbers,
    marks,
    origins,
    origins_and_targets,
    retained,
)
from erjepa.replay.segments import Segments
from erjepa.training.model.distributed import on_each_rank, on_rank_zero
from erjepa.training.run.data import slots_to_inherit
from erjepa.training.run.prepared import PreparedRun

KEY = "replay.init_from"


@dataclass
class _Part:
    """A memory, and what the run takes from it."""

    stored: StoredMemory
    places: Tensor  # of its datasets in the run's list of inherited ones, int64
    slots: Tensor  # that fit the run, ascending, int64
    key: str  # by which the user named it


class InheritedMemories:
    """The memories of ``replay.init_from``, of which a run keeps what its capacity allows.

    There are none if the run does not replay, or if it resumes, so that ``starts`` is empty.
    Datasets of the same name in two memories are one origin. A pair that is in several memories is
    taken from the first. Different pairs of the same number in such datasets get different ids.

    Args:
        tokenizer: fingerprint of the run's tokenizer; ``None``: it is not known, nor compared.
        starts: the checkpoints of the memories, by the paths in ``replay.init_from``.

    Attributes:
        runs: the paths of the memories.
        origins: names of the datasets that the pairs are from.

    Raises:
        FileNotFoundError: if a run or checkpoint holds no memory.
        ValueError: if a memory is damaged or of another tokenizer, or its scores are to be kept but
            are of another ``replay.score``.
    """

    def __init__(
        self, cfg: Config, tokenizer: str | None, starts: Mapping[str, Path]
    ) -> None:
        settings = self._settings = cfg.replay
        self.runs = settings.start_from if starts and settings.weight else []
        self._parts: list[_Part] = []
        # Places in origins, by name and how many of that name its memory lists before it.
        places: dict[tuple[str, int], int] = {}
        for path in self.runs:
            key = "continue_from" if path == cfg.continue_from else KEY
            stored = open_on_all(starts[path], key)
            _require_alike(stored, settings, tokenizer, key)
            names = stored.about.origins
            keys = [(name, names[:i].count(name)) for i, name in enumerate(names)]
            own = torch.tensor([places.setdefault(name, len(places)) for name in keys])
            self._parts.append(_Part(stored, own, torch.arange(len(stored)), key))
        self.origins = [name for name, _ in places]

    @property
    def folders(self) -> list[Path]:
        """The folders of the memories."""
        return [part.stored.folder for part in self._parts]

    @property
    def replay_settings(self) -> dict[str, dict[str, Any]]:
        """The sections ``replay`` of the earlier runs, by the paths in ``replay.init_from``."""
        sections = (part.stored.replay_settings for part in self._parts)
        return dict(zip(self.runs, sections, strict=True))

    def __len__(self) -> int:
        """Number of slots that the run keeps."""
        return min(self._settings.capacity, self._num_fitting)

    @property
    def _num_fitting(self) -> int:
        return sum(len(part.slots) for part in self._parts)

    @property
    def left_out(self) -> int:
        """Number of pairs that fit the run's rows, but not its capacity."""
        return self._num_fitting - len(self)

    @property
    def is_cut_by_scores(self) -> bool:
        """Whether it depends on the scores which pairs the capacity leaves out."""
        rule = RETENTIONS.find(self._settings.retention)
        return self.left_out > 0 and not rule.at_random

    @property
    def has_other_scores(self) -> bool:
        """Whether a memory has scores of another ``replay.score`` than the run's."""
        wanted = self._settings.score
        return any(part.stored.about.replay.score != wanted for part in self._parts)

    @property
    def has_addresses(self) -> bool:
        return all(part.stored.has_addresses for part in self._parts)

    def fit(self, run: PreparedRun) -> None:
        """Leave out the slots that do not fit the run's rows, and pairs of an earlier memory."""
        held: set[tuple] = set()
        for part in self._parts:
            part.slots = slots_to_inherit(run, part.stored)
            if len(self._parts) > 1:
                keys = _keys(part)
                is_new = torch.tensor([k not in held for k in keys], dtype=torch.bool)
                part.slots = part.slots[is_new]
                held.update(keys)

    def segments(self) -> Iterator[Segments]:
        """Yield the tokens of the fitting pairs, memory by memory."""
        for part in self._parts:
            pairs = part.stored.pairs
            yield from (pairs[slot].segments for slot in part.slots.tolist())

    def _chosen(
        self, seed: int, new_scores: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose which of the fitting slots the run keeps; arguments are those of
        :meth:`load_into`. Return the example ids of all fitting slots in the run, whether each is
        kept, and their scores.
        """
        # Differs between the runs of a chain, so that each of them draws anew.
        seen = sum(part.stored.about.state.memory.seen[0] for part in self._parts)
        generator = torch.Generator().manual_seed(seed + seen)
        columns = []
        ids = torch.empty(0, dtype=torch.int64)
        for part in self._parts:
            stored_ids, old_scores, counts = (
                part.stored.tensors[name][part.slots]
                for name in ("example_ids", "scores", "replay_counts")
            )
            ids = torch.cat([ids, _renumbered(self._ids(part, stored_ids), ids)])
            drawn = _drawn(part.stored, generator)[part.slots]
            columns.append((old_scores, counts, drawn))
        scores, counts, drawn = map(torch.cat, zip(*columns, strict=True))
        if new_scores is not None:
            scores = new_scores
        rule, groups = RETENTIONS.find(self._settings.retention), origins(ids)
        if rule.by_target:
            # By the numbers that the pairs keep in this run, of which the largest stay.
            state = self._parts[0].stored.tensors["generator"]
            of_pairs = marks(self.segments(), generator.set_state(state).initial_seed())
            groups, drawn = origins_and_targets(ids, of_pairs), -of_pairs[:, 1]
        kept = retained(rule, groups, scores, counts, drawn, self._settings.capacity)
        is_kept = torch.zeros(len(ids), dtype=torch.bool)
        is_kept[kept] = True
        return ids, is_kept, scores

    def _ids(self, part: _Part, example_ids: Tensor) -> Tensor:
        """Convert the example ids of a memory to those of this run."""
        inherited = part.stored.about.inherited
        origin = part.places[inherited + (example_ids >> ORIGIN_BITS)]
        return (origin - len(self.origins)) << ORIGIN_BITS | example_ids & EXAMPLE_MASK

    def load_into(
        self, replay: EpisodicReplay, seed: int, new_scores: Tensor | None = None
    ) -> dict[int, str]:
        """Load the slots that the run keeps into an empty memory, with their scores and replay
        counts, the random state of the first memory and, if ``replay.init_addresses=kept``, their
        addresses.

        Args:
            seed: seed of random retention rules.
            new_scores: replace the scores of the fitting slots, float32, memory by memory.

        Returns:
            File and line of the loaded pairs by their ids, as far as the memories have them.

        Raises:
            ValueError: if addresses are to be kept that the run cannot use.
        """
        memory, first = replay.memory, self._parts[0].stored
        are_kept = self._settings.init_addresses == "kept"
        seen, found = 0, dict[int, str]()
        all_ids, is_kept, scores = self._chosen(seed, new_scores)
        sizes = [len(part.slots) for part in self._parts]
        replay.generator.set_state(first.tensors["generator"])
        for part, part_ids, is_own in zip(
            self._parts, all_ids.split(sizes), is_kept.split(sizes), strict=True
        ):
            stored, slots, ids = part.stored, part.slots[is_own], part_ids[is_own]
            state, tensors = stored.about.state.memory, stored.part(slots)
            if not are_kept:
                tensors = {k: v for k, v in tensors.items() if "address" not in k}
            elif memory.address_table is not None:
                try:
                    memory.address_table.restore(state.addresses)
                except ValueError as error:
                    raise ValueError(
                        f"{part.key}: {stored.folder}: {error}, or set "
                        "replay.init_addresses=recomputed"
                    ) from None
                if state.addresses != first.about.state.memory.addresses:
                    raise ValueError(
                        f"{part.key}: the addresses in {stored.folder} are of another projection "
                        f"than those in {first.folder}; set replay.init_addresses=recomputed"
                    )
            memory.load(tensors, at=len(memory))
            places = stored.places()
            found.update(
                (example_id, places[slot])
                for example_id, slot in zip(ids.tolist(), slots.tolist(), strict=True)
                if slot in places
            )
            seen += max(stored.seen_with_only(part.slots)[0], len(part.slots))
        memory.scores.copy_(scores[is_kept])
        memory.inherit(all_ids[is_kept], seen)
        return found


def _require_alike(
    stored: StoredMemory, settings: ReplaySettings, tokenizer: str | None, key: str
) -> None:
    """Check that a run can start with a memory, which the user named by ``key``.

    Raises:
        ValueError: if the memory is of another tokenizer, or its scores are to be kept but are of
            another ``replay.score``.
    """
    if tokenizer not in (None, stored.about.tokenizer):
        raise ValueError(
            f"{key}: the memory in {stored.folder} holds tokens of another tokenizer, "
            "or of another chat template; start from a run of the same model family, with its "
            "tokenizer.path, or without its memory: set init_from alone"
        )
    wanted, score = settings.score, stored.about.replay.score
    if score != wanted and settings.init_scores == "kept":
        raise ValueError(
            f"replay.init_scores=kept: the memory in {stored.folder} has scores by "
            f"replay.score={score}, this run by {wanted}; set "
            "replay.init_scores=recomputed"
        )


def open_on_all(path: Path, key: str) -> StoredMemory:
    """Open a memory on every rank; rank 0 checks it for all."""
    return open_memory(path, key, once=on_rank_zero, on_each=on_each_rank)


def _keys(part: _Part) -> list[tuple]:
    """Return the dataset's name and the tokens of each fitting pair of a memory."""
    stored, slots = part.stored, part.slots.tolist()
    ids, pairs = stored.tensors["example_ids"], stored.pairs
    return [
        (
            stored.dataset_name(int(ids[slot])),
            *(s.tobytes() for s in pairs[slot].segments),
        )
        for slot in slots
    ]


def _renumbered(ids: Tensor, held: Tensor) -> Tensor:
    """Give the ids that are among ``held`` the next free numbers of their origins."""
    ids = ids.clone()
    is_held = torch.isin(ids, held)
    origins = ids >> ORIGIN_BITS
    for origin in origins[is_held].unique():
        others = torch.cat([held, ids])
        free = others[others >> ORIGIN_BITS == origin].max() + 1
        renamed = is_held & (origins == origin)
        ids[renamed] = free + torch.arange(int(renamed.sum()))
    return ids


def _drawn(stored: StoredMemory, generator: torch.Generator) -> Tensor:
    """Return ``drawn_numbers`` of a memory: inherited slots are one sample, the others another."""
    seen, before = stored.about.state.memory.seen
    is_inherited = stored.tensors["example_ids"] < 0
    drawn = torch.empty(len(stored), dtype=torch.float64)
    for part, offered in ((is_inherited, before), (~is_inherited, seen - before)):
        drawn[part] = drawn_numbers(int(part.sum()), offered, generator)
    return drawn
