"""The episodic memory of a run: its use in a step, its initial content, and how it is saved."""

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import utils

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.example_errors import ExampleErrors
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.stored_memory import StoredMemory, memory_folder
from erjepa.datasets import Pair
from erjepa.datasets.split import text_of
from erjepa.replay import EpisodicReplay, ReplayBatch, require_room
from erjepa.replay.addresses import Addresses
from erjepa.replay.episodic_memory import Segments
from erjepa.replay.retention import EXAMPLE_MASK, ORIGIN_BITS, origins
from erjepa.training.model.device import memory_of
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.data import fitting_pairs
from erjepa.training.run.inherited import InheritedMemories, open_on_all
from erjepa.training.run.origins import Origins
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.step.passes import Passes, PassResult
from erjepa.utils.escape import counted

log = utils.get_logger("INFO")


class Entries(NamedTuple):
    """What the memory stores of the B new pairs of a step, except their scores."""

    ids: Tensor  # their ids in the memory, int64 [B]
    segments: Sequence[Segments]  # their tokens
    addresses: Addresses | None  # of their source embeddings; ``None``: no addresses


class RunMemory:
    """The episodic replay of a run, with the origins of its examples.

    Args:
        run: its model may be on the meta device. Without views, slots have no addresses.
        earlier: memories of earlier runs to start with.

    Attributes:
        settings: the section ``replay`` of the config.
        origins: the datasets of the run and of inherited pairs.
        replay: the memory and its selection; ``None`` if ``replay.weight=0``.
        can_draw: whether pairs can be replayed: ``settings.can_draw``, and if only inherited pairs
            are drawn, the run started with some.

    Raises:
        ValueError: if the memory does not fit the device, or a pair of ``replay.init_from`` does
            not fit the run's rows.
    """

    def __init__(
        self, run: PreparedRun, earlier: InheritedMemories | None = None
    ) -> None:
        cfg = self._cfg = run.cfg
        self.settings = cfg.replay
        self._prepared = run
        self._dataset, self._model = run.dataset, run.model
        self._collator = run.collators.new
        self._earlier = earlier
        self.origins = Origins(run.dataset)
        self._places: dict[int, str] = {}  # of inherited pairs, by their ids
        self._errors = None
        if cfg.log_example_errors:
            self._errors = ExampleErrors(Path(cfg.output_dir))
        self.replay: EpisodicReplay | None = None
        if self.is_on:
            kept = self.settings.init_addresses == "kept"
            lacks = earlier is not None and not earlier.has_addresses
            self.replay = self._empty(has_addresses=not (lacks and kept))
        elif cfg.log_example_errors:
            raise ValueError(
                "log_example_errors=True logs the pairs that the memory stores, and "
                "replay.weight=0 has none; set it to False"
            )
        if earlier is not None:
            earlier.fit(self._slots_to_inherit)
        self.can_draw = self.settings.can_draw and (
            self._draws_from_all or self._has_inherited()
        )

    def _has_inherited(self) -> bool:
        """Whether the run started with inherited pairs, which a resumed run finds recorded."""
        if self._earlier is not None:
            return len(self._earlier) > 0

        def is_recorded() -> bool:
            with contextlib.suppress(ValueError):  # damage is named when all files are
                if folder := memory_folder(Path(self._cfg.output_dir)):
                    return StoredMemory(folder).about.inherited > 0
            return True

        return on_rank_zero(is_recorded)

    def _empty(self, *, has_addresses: bool) -> EpisodicReplay:
        """Return an empty memory, with addresses if the selection needs them in any case."""
        settings, device = self.settings, self._prepared.device
        has_addresses |= settings.needs_addresses
        if self._collator.views == "none" or not has_addresses:
            settings = replace(settings, address="none")
        width = self._model.embed_dim
        require_room(settings, width, memory_of(device))
        return EpisodicReplay(
            settings, embed_dim=width, seed=self._cfg.drawn_seed, device=device
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

    def _fitting_slots(self, stored: StoredMemory, *, skip_too_long: bool) -> Tensor:
        """Return the slots whose pairs fit this run's rows, ascending, int64."""

        def find() -> Tensor:
            stored.require_vocabulary(self._model.vocab_size)
            fitting = fitting_pairs(
                self._prepared, stored, self._collator, skip_too_long=skip_too_long
            )
            return torch.tensor(fitting, dtype=torch.int64)

        return on_rank_zero(find)

    def _slots_to_inherit(self, stored: StoredMemory) -> Tensor:
        """Return the slots whose pairs fit this run's rows and are no copies of those that it holds
        out, ascending, int64.
        """
        slots = self._fitting_slots(stored, skip_too_long=self._cfg.skip_too_long)
        if (split := self._prepared.split) is None:
            return slots

        def find() -> Tensor:
            held_out = {text_of(self._dataset.pairs[i]) for i in split.held_out}
            is_new = [text_of(stored.pairs[s]) not in held_out for s in slots.tolist()]
            if copies := len(slots) - sum(is_new):
                log.info(
                    f"{stored.folder}: {counted(copies, 'pair')} that are held out for "
                    "validation are left out."
                )
            return slots[torch.tensor(is_new, dtype=torch.bool)]

        return on_rank_zero(find)

    # ------------------------------------------------------------------ in a step

    def entries(self, example_ids: Tensor, source: Tensor | None = None) -> Entries:
        """Return what the memory stores of pairs.

        Args:
            example_ids: indices in the dataset, int64 [B].
            source: source embeddings, [B, H]; ``None``: no addresses.
        """
        assert self.replay is not None
        segments = [self._dataset[i].segments for i in example_ids.tolist()]
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
            return self._dataset.where(example_id & EXAMPLE_MASK)
        origin = self.origins.inherited[example_id >> ORIGIN_BITS]
        return self._places.get(example_id, f"{origin}[{example_id & EXAMPLE_MASK}]")

    # ------------------------------------------------------------------ from a file

    def start(self, passes: Passes) -> None:
        """Start a new run, with the memories of ``replay.init_from`` if there are any."""
        if self._errors is not None:
            self._errors.continue_after(0)
        if self._earlier is not None and self.replay is not None:
            self._inherit(self._earlier, self.replay, passes)
        for text in self._warnings():
            utils.log_rank_zero(log, text, logging.WARNING)

    def resume(
        self,
        checkpoint: Path,
        step: int,
        offered: Callable[[], Tensor],
        passes: Passes,
        changed: Collection[str],
    ) -> None:
        """Restore the memory, if any, from this run's checkpoint, written after ``step``.

        Args:
            offered: returns the indices in the dataset of the pairs that were offered to the
                memory, int64; called if there is one.
            changed: dotted keys whose values the resumed run has changed.

        Raises:
            ValueError: if the run's pairs have changed, and the memory has pairs of the old ones.
        """
        if self._errors is not None:
            self._errors.continue_after(step)
        if self.replay is None or not (checkpoint / MEMORY).is_dir():
            return
        stored = open_on_all(checkpoint, "resume_from_checkpoint")
        if "dataset" in changed and (stored.tensors["example_ids"] >= 0).any():
            raise ValueError(
                f"resume_changes=[dataset]: the memory of {checkpoint} has pairs of the dataset "
                f"that the run had; train on the new one in a new output_dir, with "
                f"continue_from={checkpoint}"
            )
        self._fitting_slots(stored, skip_too_long=False)
        if not stored.has_addresses:
            self.replay = self._empty(has_addresses=False)
        about = stored.about
        capacity = about.replay.capacity or self.settings.capacity
        reserved = about.state.memory.capacity - capacity
        self._add_reserved_slots(self.replay, reserved)
        self.replay.restore(about.state, stored.tensors)
        self.replay.memory.mark_offered(self.origins.ids(offered()))
        self.origins.inherited = about.origins[: about.inherited]
        ids = stored.tensors["example_ids"].tolist()
        places = stored.places().items()
        self._places = {ids[slot]: where for slot, where in places if ids[slot] < 0}
        if about.replay.score != self.settings.score:
            self._recompute(self.replay, passes, scores=True, addresses=False)

    def _inherit(
        self, earlier: InheritedMemories, replay: EpisodicReplay, passes: Passes
    ) -> None:
        """Load the memories of ``replay.init_from``; their slots become inherited.

        Replay counts and random state are kept. No example of this run is taken for one of theirs.
        Scores that are recomputed decide which pairs stay.
        """
        rescores = self.settings.init_scores == "recomputed" or earlier.has_other_scores
        scores = None
        if rescores and earlier.is_cut_by_scores:
            of_step = self._measured(earlier.segments(), passes)
            measured = [result.scores(self.settings.score) for _, result in of_step]
            scores, rescores = torch.cat(measured).cpu(), False
        earlier.choose(self._cfg.drawn_seed, scores)
        self._add_reserved_slots(replay, len(earlier))
        earlier.load_into(replay)
        self.origins.inherited = earlier.origins if len(earlier) else []
        self._places = earlier.places
        are_kept = self.settings.init_addresses == "kept"
        if rescores or not are_kept:
            self._recompute(replay, passes, scores=rescores, addresses=not are_kept)

    def _add_reserved_slots(self, replay: EpisodicReplay, slots: int) -> None:
        """Add reserved slots for inherited pairs if only these are drawn, so that new pairs do not
        evict them; the next run chooses among both.
        """
        if self._draws_from_all or not slots:
            return
        settings = replay.settings
        both = replace(settings, capacity=settings.capacity + slots)
        require_room(both, replay.embed_dim, memory_of(self._prepared.device))
        replay.add_reserved_slots(slots)

    def _recompute(
        self, replay: EpisodicReplay, passes: Passes, *, scores: bool, addresses: bool
    ) -> None:
        """Recompute scores, addresses or both of all slots under the current model."""
        memory = replay.memory
        table = memory.address_table if addresses else None
        segments = (memory.segments([slot])[0] for slot in range(len(memory)))
        for slots, measured in self._measured(segments, passes):
            at = torch.tensor(slots, device=memory.device)
            if scores:
                memory.scores[at] = measured.scores(self.settings.score)
            if table is not None:
                table.put(at, table.encode(measured.source))

    def _measured(
        self, segments: Iterator[Segments], passes: Passes
    ) -> Iterator[tuple[range, PassResult]]:
        """Yield the numbers of as many pairs as a step has, and their result under the current
        model, without dropout.
        """
        model, was_training = self._model, self._model.training
        model.eval()
        world_size, rank = dist.get_world_size(), dist.get_rank()
        num_batches = self._cfg.gradient_accumulation_steps
        step = self._cfg.batch_size * num_batches * world_size
        numbered = (Pair(number, *cut) for number, cut in enumerate(segments))
        while pairs := list(islice(numbered, step)):
            batches = self._collator.split(pairs[rank::world_size], num_batches)
            measured = passes.measure(batches, passes.totals(batches))
            yield range(pairs[0].example_id, pairs[-1].example_id + 1), measured
        model.train(was_training)

    def _warnings(self) -> Iterator[str]:
        """Yield warnings about settings with which a run forgets what earlier runs learned."""
        settings = self.settings
        if self._earlier is None:
            start = self._cfg.init_from or next(iter(settings.start_from), None)
            if start and on_rank_zero(lambda: memory_folder(Path(start)) is not None):
                yield f"{start} has a memory, and this run replays none of it: " + (
                    f"continue_from={start} continues from its weights and its memory."
                    if self.is_on
                    else "replay.weight=0."
                )
            return
        replay = self.replay
        assert replay is not None  # set whenever there are earlier memories
        if not len(replay):
            yield (
                f"{', '.join(settings.start_from)}: the memory is empty, or all its pairs are left "
                "out, so no earlier pair is replayed; erjepa memory create makes a memory from a "
                "file"
            )
            return
        if settings.selection == "content" and self._draws_from_all:
            yield (
                "replay.selection=content recalls hardly any of the inherited pairs where the "
                "new ones are unlike them; uniform keeps what they taught "
                "(docs/choosing_the_weights.md)."
            )
        both = len(replay) + len(self._dataset)
        is_evicting = (
            settings.retention == "score"
            and not settings.reserve
            and self._draws_from_all
        )
        if is_evicting and both > settings.capacity:
            yield (
                f"replay.capacity={settings.capacity} is less than the {len(replay)} inherited "
                f"and {len(self._dataset)} new pairs, and replay.retention=score evicts those "
                "with the smallest errors, inherited ones first; replay.retention=balanced "
                "keeps as many of each."
            )

    # ------------------------------------------------------------------ summaries

    def summary(self, pairs: int) -> str:
        """Describe what a step of ``pairs`` new pairs replays."""
        settings = self.settings
        if not self.is_on:
            return "none"
        stored = f"up to {settings.capacity:,} pairs are stored"
        if not self.can_draw:
            return f"none, as no pair is inherited; {stored} for later runs"
        drawn = self._drawn(pairs)
        if not (self._draws_from_all or self._inherited_by_origin()):
            left = f"a step has {pairs - self.share * pairs:g} new pairs; " * bool(
                self.share
            )
            return f"none, as all inherited pairs have been deleted; {left}{stored}"
        noun = "pair" if drawn.split()[-1] == "1" else "pairs"
        return f"{drawn} {noun} a step, by {settings.selection}; {stored}"

    def carried(self, pairs: int) -> list[str]:
        """Describe the inherited pairs by dataset, and how many of them a step of ``pairs`` pairs
        replays; empty if there are none.
        """
        if self.replay is None:
            return []
        inherited = self.origins.inherited
        counts = self._inherited_by_origin()
        if not counts:
            return []
        of_each = (f"{n:,} of {inherited[at]}" for at, n in counts.items())
        later = ", fewer as new ones are stored" * self._draws_from_all
        left_out = 0 if self._earlier is None else self._earlier.left_out
        capacity = (
            f", {left_out:,} left out by replay.capacity={self.settings.capacity}"
        )
        return [
            f"{', '.join(of_each)} in memory{capacity * bool(left_out)}",
            f"{self._drawn(pairs)} of them replayed a step{later}",
        ]

    def _inherited_by_origin(self) -> Counter[int]:
        """Return the number of inherited pairs in the memory, by origin."""
        assert self.replay is not None
        ids = origins(self.replay.memory.example_ids)
        return Counter(ids[ids < 0].tolist())

    @property
    def _draws_from_all(self) -> bool:
        return self.settings.draw_from == "all"

    def _drawn(self, pairs: int) -> str:
        if self.share:
            return f"{self.share * pairs:g}"
        return f"up to {self.settings.budget or pairs}"

    # -------------------------------------------------------------------- to a file

    def write(self, checkpoint: Path) -> None:
        """Write the memory, if there is one, into the folder of a checkpoint."""
        if self.replay is None:
            return
        if self._errors is not None:
            self._errors.flush()
        folder = checkpoint / MEMORY
        write_memory(
            folder,
            self.replay,
            {
                "tokenizer": self._prepared.texts.fingerprint,
                "origins": [*self.origins.inherited, *self.origins.names],
                "inherited": len(self.origins.inherited),
                "replay": asdict(self.settings),
            },
        )
        write_texts(folder, self.replay.memory, self._prepared.texts, self.where)


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
