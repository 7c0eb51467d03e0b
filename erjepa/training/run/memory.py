"""The episodic memory of a run: its use in a step, its initial content, and how it is saved."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.example_errors import ExampleErrors
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.stored_memory import StoredMemory
from erjepa.replay import (
    EpisodicReplay,
    ReplayBatch,
    ReplaySettings,
    require_room,
    slot_bytes,
)
from erjepa.replay.addresses import Addresses
from erjepa.replay.retention import EXAMPLE_MASK, ORIGIN_BITS
from erjepa.replay.segments import Segments
from erjepa.training.model.device import memory_of
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.data import fitting_slots
from erjepa.training.run.inherited import InheritedMemories, open_on_all
from erjepa.training.run.origins import Origins
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.recomputed import measured, recompute
from erjepa.training.step.passes import Passes, PassResult

_TOKEN = 8  # approximate bytes of a stored token, as its id and as text


def memory_bytes(run: PreparedRun, inherited: int = 0) -> int:
    """Return the approximate bytes of a run's memory in a checkpoint, once it is full or holds all
    pairs of the run and ``inherited`` ones.
    """
    if not run.cfg.replay.weight:
        return 0
    settings, pairs = run.slot_settings, run.dataset.pairs
    slot, _ = slot_bytes(settings, run.model.embed_dim)
    slots = settings.capacity + reserved_slots(settings, inherited)
    if settings.on_revisit != "append":
        slots = min(slots, len(pairs) + inherited)
    tokens = pairs.lengths.sum() / len(pairs)
    return int(slots * (slot + _TOKEN * tokens))


def reserved_slots(settings: ReplaySettings, inherited: int) -> int:
    """Number of slots beside the capacity: those of inherited pairs, if only these are drawn."""
    return 0 if settings.draw_from == "all" else inherited


class Entries(NamedTuple):
    """What the memory stores of the B new pairs of a step, except their scores."""

    ids: Tensor  # their ids in the memory, int64 [B]
    segments: Sequence[Segments]  # their tokens
    addresses: Addresses | None  # of their source embeddings; ``None``: no addresses


class RunMemory:
    """The episodic replay of a run, with the origins of its examples.

    Args:
        run: its model may be on the meta device. Without views, slots have no addresses.
        earlier: memories of earlier runs to start with; none if it resumes.
        resumed: the checkpoint that the run resumes.

    Attributes:
        settings: the section ``replay`` of the config.
        earlier: memories of earlier runs that a new run starts with.
        origins: the datasets of the run and of inherited pairs.
        replay: the memory and its selection; ``None`` if ``replay.weight=0``.
        can_draw: whether pairs can be replayed: False if the weight is 0, or if only inherited pairs
            are drawn and the run started with none.

    Raises:
        ValueError: if the memory does not fit the device, or a pair of ``replay.init_from`` does
            not fit the run's rows; or if the checkpoint has no memory, as replay was off, and the
            run started with one.
    """

    def __init__(
        self,
        run: PreparedRun,
        earlier: InheritedMemories,
        resumed: Path | None,
    ) -> None:
        cfg, self._run = run.cfg, run
        self.settings = cfg.replay
        self.earlier = earlier
        self.origins = Origins(run.dataset)
        self._places: dict[int, str] = {}  # of inherited pairs, by their ids
        self._steps_without = 0  # steps of the run before it had a memory
        self._errors = None
        if cfg.log_example_errors:
            self._errors = ExampleErrors(Path(cfg.output_dir))
        self.replay: EpisodicReplay | None = None
        # Of the checkpoint, until it is loaded.
        self._stored = None if resumed is None else self._open(resumed)
        earlier.fit(run)
        if self._stored is None:
            inherited, has_inherited = len(earlier), len(earlier) > 0
            recomputes = self.settings.init_addresses == "recomputed"
            has_addresses = recomputes or earlier.has_addresses
        else:
            about = self._stored.about
            capacity = about.replay.capacity or self.settings.capacity
            inherited = about.state.memory.capacity - capacity
            has_inherited = about.inherited > 0  # even if these pairs were deleted
            has_addresses = self._stored.has_addresses
        if self.is_on:
            self.replay = self._empty(inherited, has_addresses=has_addresses)
        elif cfg.log_example_errors:
            raise ValueError(
                "log_example_errors=True logs the pairs that the memory stores, and "
                "replay.weight=0 has none; set it to False"
            )
        self.can_draw = self.is_on and (
            self.settings.draw_from == "all" or has_inherited
        )

    def _open(self, checkpoint: Path) -> StoredMemory | None:
        """Open the memory of a checkpoint of the run, if it has one and the run replays."""
        if not self.is_on:
            return None
        if (checkpoint / MEMORY).is_dir():
            return open_on_all(checkpoint, "resume_from_checkpoint")
        if starts := self.settings.start_from:
            raise ValueError(
                f"replay.weight was 0 until {checkpoint}, which therefore has no memory of "
                f"{', '.join(starts)}; start a new run, with init_from={checkpoint} "
                f"replay.init_from={starts[0]}"
            )
        return None

    def _empty(self, inherited: int, *, has_addresses: bool) -> EpisodicReplay:
        """Return an empty memory, with addresses if the selection needs them in any case.

        If only the ``inherited`` pairs are drawn, slots are reserved for them, so that new pairs do
        not evict them; the next run chooses among both.
        """
        settings, device = self._run.slot_settings, self._run.device
        if not (has_addresses or settings.needs_addresses):
            settings = replace(settings, address="none")
        width = self._run.model.embed_dim
        reserved = reserved_slots(settings, inherited)
        both = replace(settings, capacity=settings.capacity + reserved)
        require_room(both, width, memory_of(device))
        return EpisodicReplay(
            settings,
            embed_dim=width,
            seed=self._run.cfg.drawn_seed,
            device=device,
            reserved_slots=reserved,
        )

    @property
    def is_on(self) -> bool:
        return bool(self.settings.weight)

    @property
    def share(self) -> float:
        """Fraction of a step's pairs that are replayed; 0 if the budget adds them to the step, or
        if only inherited pairs may be drawn and there are none.
        """
        return (self.settings.share or 0.0) if self.can_draw else 0.0

    # ------------------------------------------------------------------ in a step

    def entries(self, example_ids: Tensor, source: Tensor | None = None) -> Entries:
        """Return what the memory stores of pairs.

        Args:
            example_ids: indices in the dataset, int64 [B].
            source: source embeddings, [B, H]; ``None``: no addresses.
        """
        assert self.replay is not None
        segments = [self._run.dataset[i].segments for i in example_ids.tolist()]
        addresses = None if source is None else self.replay.encode(source)
        return Entries(self.origins.ids(example_ids), segments, addresses)

    def draw(self, entries: Entries, budget: int | None = None) -> ReplayBatch:
        assert self.replay is not None
        return self.replay.draw(*entries, budget)

    @property
    def weight(self) -> float:
        """:math:`\\beta` of the next step."""
        assert self.replay is not None
        return self.replay.weight

    def update(
        self,
        step: int,
        entries: Entries,
        new: PassResult,
        draw: ReplayBatch | None,
        replayed: PassResult | None,
    ) -> None:
        """Refresh the replayed slots of step ``step`` (1-based), then store its new pairs. With
        ``log_example_errors``, also log the errors of both.
        """
        assert self.replay is not None
        score = self.settings.score
        if draw is not None and replayed is not None:
            self.replay.refresh(draw, replayed.scores(score))
            self.replay.adapt_weight(draw, new.token_loss, replayed.token_loss)
        self.replay.write(*entries, new.scores(score))
        if self._errors is not None:
            self._errors.log(_visits(step, entries.ids.tolist(), new))
            if draw is not None and replayed is not None:
                ids = draw.example_ids
                self._errors.log(_visits(step, ids, replayed, are_replayed=True))

    def where(self, example_id: int) -> str:
        """Return file and line of an example by its index in the dataset or id in the memory."""
        if example_id >= 0:
            return self._run.dataset.where(example_id & EXAMPLE_MASK)
        origin = self.origins.inherited[example_id >> ORIGIN_BITS]
        return self._places.get(example_id, f"{origin}[{example_id & EXAMPLE_MASK}]")

    # ------------------------------------------------------------------ from a file

    def load(
        self,
        step: int,
        offered: Callable[[int], Tensor],
        passes: Passes,
        changed: Collection[str] = (),
    ) -> None:
        """Load the memories of ``replay.init_from`` or that of the checkpoint, if there are any.

        Args:
            step: steps of the run so far.
            offered: returns the indices in the dataset of the pairs that were offered to the
                memory, int64, given the number of steps before there was one.
            changed: dotted keys whose values the resumed run has changed.

        Raises:
            ValueError: if the run's pairs have changed, and the memory has pairs of the old ones, or
                if the memory would shrink.
        """
        if (errors := self._errors) is not None:
            on_rank_zero(lambda: errors.continue_after(step))
        # Its files are closed: the run deletes the checkpoint later.
        stored, self._stored = self._stored, None
        if self.replay is None:
            return
        if self.earlier.runs:
            self._inherit(self.replay, passes)
        if stored is None:
            self._steps_without = step
            return
        checkpoint = stored.folder.parent
        if "dataset" in changed and (stored.tensors["example_ids"] >= 0).any():
            raise ValueError(
                f"resume_changes=[dataset]: the memory of {checkpoint} has pairs of the dataset "
                f"that the run had; train on the new one in a new output_dir, with "
                f"continue_from={checkpoint}"
            )
        fitting_slots(self._run, stored, skip_too_long=False)
        about = stored.about
        self.replay.restore(about.state, stored.tensors)
        self._steps_without = about.steps_without
        self.replay.memory.mark_offered(self.origins.ids(offered(self._steps_without)))
        self.origins.inherited = about.origins[: about.inherited]
        ids = stored.tensors["example_ids"].tolist()
        places = stored.places().items()
        self._places = {ids[slot]: where for slot, where in places if ids[slot] < 0}
        if about.replay.score != self.settings.score:
            recompute(self.replay, self._run, passes, scores=True, addresses=False)

    def _inherit(self, replay: EpisodicReplay, passes: Passes) -> None:
        """Load the memories of ``replay.init_from``; their slots become inherited.

        Replay counts and random state are kept. No example of this run is taken for one of theirs.
        Scores that are recomputed decide which pairs stay.
        """
        earlier = self.earlier
        rescores = self.settings.init_scores == "recomputed" or earlier.has_other_scores
        scores = None
        if rescores and earlier.is_cut_by_scores:
            of_step = measured(earlier.segments(), self._run, passes)
            parts = [result.scores(self.settings.score) for _, result in of_step]
            scores, rescores = torch.cat(parts).cpu(), False
        self._places = earlier.load_into(replay, self._run.cfg.drawn_seed, scores)
        self.origins.inherited = earlier.origins if len(earlier) else []
        addresses = self.settings.init_addresses == "recomputed"
        recompute(replay, self._run, passes, scores=rescores, addresses=addresses)

    # -------------------------------------------------------------------- to a file

    @property
    def most_bytes(self) -> int:
        """See :func:`memory_bytes`."""
        return memory_bytes(self._run, len(self.earlier))

    def write(self, checkpoint: Path) -> None:
        """Write the memory, if there is one, into the folder of a checkpoint."""
        if self.replay is None:
            return
        if self._errors is not None:
            self._errors.flush()
        folder = checkpoint / MEMORY
        about = {
            "tokenizer": self._run.texts.fingerprint,
            "origins": [*self.origins.inherited, *self.origins.names],
            "inherited": len(self.origins.inherited),
            "steps_without": self._steps_without,
            "replay": asdict(self.settings),
        }
        write_memory(folder, self.replay, about)
        write_texts(folder, self.replay.memory, self._run.texts, self.where)


def _visits(
    step: int, ids: Sequence[int], result: PassResult, *, are_replayed: bool = False
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": step,
            "example": ids,
            "replayed": int(are_replayed),
            "lm_loss": result.scores("lm").tolist(),
            "jepa_loss": result.jepa.tolist() or math.nan,
        }
    )
