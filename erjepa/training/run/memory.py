"""The memory of a run: what a step does with it, where it starts, how it is saved."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import utils

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.example_errors import ExampleErrors, Visit
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.checkpoints.stored_memory import StoredMemory, memory_folder
from erjepa.configs import Component, Components, Config
from erjepa.datasets import ConcatenatedPairs, Pair, Pairs, origin_labels
from erjepa.objective import PackedDecoder
from erjepa.packing import PairCollator
from erjepa.replay import EpisodicReplay, ReplayBatch, require_room
from erjepa.replay.addresses import Addresses
from erjepa.replay.episodic_memory import Segments
from erjepa.replay.retention import ORIGIN_BITS, origins
from erjepa.training.model.device import memory_of
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.data import fitting_pairs
from erjepa.training.run.inherited import InheritedMemories, open_on_all
from erjepa.training.run.origins import losses_by_origin, replayed_by_origin
from erjepa.training.step.passes import Passes, PassResult

log = utils.get_logger("INFO")

_EXAMPLE = (1 << ORIGIN_BITS) - 1


class Entries(NamedTuple):
    """What the memory keeps of the B new pairs of a step, besides their scores."""

    ids: Tensor  # under which it holds them, int64 [B]
    segments: Sequence[Segments]  # their tokens
    addresses: Addresses | None  # of their source embeddings, if it keeps addresses


class RunMemory:
    """The replay of a run, which knows where its examples are from.

    Args:
        dataset: all pairs of the run.
        model: may be on the meta device.
        collator: packs new pairs; without views slots have no addresses.
        earlier: memories of earlier runs to start with.

    Attributes:
        settings: the section ``replay``.
        replay: ``None`` if nothing is replayed.

    Raises:
        ValueError: if there is no room for it, or a pair of ``replay.init_from`` does not fit the
            run's rows.
    """

    def __init__(
        self,
        cfg: Config,
        dataset: Pairs,
        model: PackedDecoder,
        collator: PairCollator,
        texts: PairTexts,
        earlier: InheritedMemories | None,
        device: torch.device,
    ) -> None:
        self.settings = cfg.replay
        self._dataset = dataset
        self._model = model
        self._collator = collator
        self._texts = texts
        self._earlier = earlier
        self._device = device
        self._init_from = cfg.init_from
        self._batch_size = cfg.batch_size
        self._num_batches = cfg.gradient_accumulation_steps
        self._max_seq_len = cfg.max_seq_len
        self._origin_of = origin_of(dataset)
        self._names = [name_of(cfg.dataset)]
        if isinstance(dataset, ConcatenatedPairs):
            self._names = dataset.names
        self._inherited: list[str] = []
        self._errors = None
        if cfg.log_example_errors:
            self._errors = ExampleErrors(Path(cfg.output_dir))
        self.replay: EpisodicReplay | None = None
        if self.is_on:
            settings = self.settings
            if collator.views == "none":
                settings = replace(settings, address="none")
            require_room(settings, model.embed_dim, memory_of(device))
            self.replay = EpisodicReplay(
                settings, embed_dim=model.embed_dim, seed=cfg.drawn_seed, device=device
            )
        elif cfg.log_example_errors:
            raise ValueError(
                "log_example_errors=True logs what the memory takes in, and "
                "replay.weight=0 has none; set it to False"
            )
        if earlier is not None:
            fitting = partial(self._fitting_slots, skip_too_long=cfg.skip_too_long)
            earlier.choose(fitting, cfg.drawn_seed)

    @property
    def is_on(self) -> bool:
        """Whether the run replays."""
        return bool(self.settings.weight)

    @property
    def share(self) -> float:
        """Fraction of a step's pairs that are replayed; 0 where the budget adds them, or where
        only inherited pairs are drawn, and there are none.
        """
        return (self.settings.share or 0.0) if self.settings.can_draw else 0.0

    def _fitting_slots(self, stored: StoredMemory, *, skip_too_long: bool) -> Tensor:
        """The slots whose pairs fit this run's rows, ascending, int64."""

        def find() -> Tensor:
            stored.require_vocabulary(self._model.vocab_size)
            fitting = fitting_pairs(
                stored,
                self._collator,
                max_seq_len=self._max_seq_len,
                num_positions=self._model.num_positions,
                skip_too_long=skip_too_long,
            )
            return torch.tensor(fitting, dtype=torch.int64)

        return on_rank_zero(find)

    # ------------------------------------------------------------------ in a step

    def entries(self, example_ids: Tensor, source: Tensor | None = None) -> Entries:
        """What the memory keeps of pairs by their places in the dataset, int64 [B], and their
        source embeddings, [B, H]; without these they have no addresses.
        """
        assert self.replay is not None
        segments = [self._dataset[i].segments for i in example_ids.tolist()]
        addresses = None if source is None else self.replay.encode(source)
        return Entries(self.ids(example_ids), segments, addresses)

    def draw(
        self, entries: Entries, budget: int | None = None
    ) -> tuple[ReplayBatch, int]:
        """The pairs to replay beside new ones, never among them, and a checksum of the draw,
        see :meth:`EpisodicReplay.checksum`.
        """
        assert self.replay is not None
        draw = self.replay.draw(*entries, budget)
        return draw, self.replay.checksum(draw)

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
        """Refresh what step ``step`` (1-based) replayed, then store what was new in it; write
        their errors to a log if the config asks for it.
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

    def ids(self, example_ids: Tensor) -> Tensor:
        """The ids under which the memory holds examples, given by their places in the dataset,
        int64 [B]: origin << 32 | place, so the places themselves where there is one dataset.
        """
        if self._origin_of is None:
            return example_ids
        origin = self._origin_of.to(example_ids.device)[example_ids]
        return origin << ORIGIN_BITS | example_ids

    def where(self, example_id: int) -> str:
        """File and line of an example, by its place in the dataset or its id in the memory."""
        if example_id >= 0:
            return self._dataset.where(example_id & _EXAMPLE)
        origin = self._inherited[example_id >> ORIGIN_BITS]
        return f"{origin}[{example_id & _EXAMPLE}] of an earlier run"

    def metrics_by_origin(
        self, new: PassResult, replayed: PassResult | None
    ) -> dict[str, Any]:
        """What a step logs of each dataset, where the run or its memory has several."""
        labels = origin_labels([*self._names, *self._inherited])
        own, inherited = labels[: len(self._names)], labels[len(self._names) :]
        metrics: dict[str, Any] = {}
        if self._origin_of is not None:
            parts = self._origin_of[new.example_ids.cpu()]
            metrics.update(losses_by_origin(new, parts, own))
        if replayed is not None and len(labels) > 1:
            metrics.update(replayed_by_origin(replayed.example_ids, own, inherited))
        return metrics

    # ------------------------------------------------------------------ from a file

    def start(self, passes: Passes) -> None:
        """Start with the memories of ``replay.init_from``, whose pairs ``passes`` measures."""
        if self._errors is not None:
            self._errors.continue_after(0)
        if self._earlier is not None and self.replay is not None:
            self._inherit(self._earlier, self.replay, passes)
        for text in self._warnings():
            utils.log_rank_zero(log, text, logging.WARNING)

    def resume(self, checkpoint: Path, step: int) -> None:
        """Restore the memory of the run's own checkpoint, written after ``step``, if it has
        one.
        """
        if self._errors is not None:
            self._errors.continue_after(step)
        if self.replay is None or not (checkpoint / MEMORY).is_dir():
            return
        stored = open_on_all(checkpoint, "resume_from_checkpoint")
        self._fitting_slots(stored, skip_too_long=False)
        (ids,) = stored.read("example_ids")
        self._set_apart(self.replay, int((ids < 0).sum()))
        stored.load_into(self.replay)
        self._inherited = stored.about.origins[: stored.about.inherited]

    def _inherit(
        self, earlier: InheritedMemories, replay: EpisodicReplay, passes: Passes
    ) -> None:
        """Start with the memories of ``replay.init_from``.

        What they hold becomes inherited: counts and random state stay, and no example of this
        run is one of it.
        """
        self._set_apart(replay, len(earlier))
        earlier.load_into(replay)
        self._inherited = earlier.origins
        rescores = self.settings.init_scores == "recomputed" or earlier.has_other_scores
        are_kept = self.settings.init_addresses == "kept"
        if rescores or not are_kept:
            self._recompute(replay, passes, scores=rescores, addresses=not are_kept)

    def _set_apart(self, replay: EpisodicReplay, slots: int) -> None:
        """Where inherited pairs alone are drawn, new ones never take their place: the next run
        chooses among both.
        """
        if self._draws_from_all or not slots:
            return
        settings = replay.settings
        both = replace(settings, capacity=settings.capacity + slots)
        require_room(both, replay.embed_dim, memory_of(self._device))
        replay.add_reserved_slots(slots)

    def _recompute(
        self, replay: EpisodicReplay, passes: Passes, *, scores: bool, addresses: bool
    ) -> None:
        """Scores and addresses of all slots under the model as it is, a step's pairs at a
        time, as new pairs have them.
        """
        memory, model = replay.memory, self._model
        table = memory.address_table if addresses else None
        was_training = model.training
        model.eval()
        world_size, rank = dist.get_world_size(), dist.get_rank()
        step = self._batch_size * self._num_batches * world_size
        for start in range(0, len(memory), step):
            slots = range(start, min(start + step, len(memory)))
            pairs = [
                Pair(slot, *cut)
                for slot, cut in zip(slots, memory.segments(slots), strict=True)
            ]
            batches = self._collator.split(pairs[rank::world_size], self._num_batches)
            found = passes.measure(batches, passes.totals(batches))
            at = torch.arange(slots.start, slots.stop, device=memory.device)
            if scores:
                memory.scores[at] = found.scores(self.settings.score)
            if table is not None:
                table.put(at, table.encode(found.source))
        model.train(was_training)

    def _warnings(self) -> Iterator[str]:
        """Warnings of settings by which a run forgets what earlier ones taught."""
        settings = self.settings
        if self._earlier is None:
            start = self._init_from or next(iter(settings.start_from), None)
            if start and on_rank_zero(lambda: memory_folder(Path(start)) is not None):
                yield f"{start} has a memory, and this run replays none of it: " + (
                    f"continue_from={start} carries it on with the weights."
                    if self.is_on
                    else "replay.weight=0."
                )
            return
        replay = self.replay
        assert replay is not None  # who has a memory replays
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

    # ------------------------------------------------------------------ in words

    def summary(self, pairs: int) -> str:
        """What a step of so many pairs replays."""
        settings = self.settings
        if not self.is_on:
            return "none"
        stored = f"up to {settings.capacity:,} pairs are stored"
        if not settings.can_draw:
            return f"none, as no earlier run is continued; {stored} for later runs"
        return f"{self._drawn(pairs)} pairs a step, by {settings.selection}; {stored}"

    def carried(self, pairs: int) -> list[str]:
        """The inherited pairs, by the dataset they are from, and how many of them a step of
        so many pairs replays; empty without any.
        """
        if self.replay is None or not self._inherited:
            return []
        ids = origins(self.replay.memory.example_ids)
        counts = Counter(ids[ids < 0].tolist())
        of_each = (f"{n:,} of {self._inherited[at]}" for at, n in counts.items())
        later = ", fewer as new ones are stored" * self._draws_from_all
        return [
            f"{', '.join(of_each)} in memory",
            f"{self._drawn(pairs)} of them replayed a step{later}",
        ]

    @property
    def _draws_from_all(self) -> bool:
        return self.settings.draw_from == "all"

    def _drawn(self, pairs: int) -> str:
        if self.share:
            return f"{self.share * pairs:g}"
        return f"up to {self.settings.budget or pairs}"

    # -------------------------------------------------------------------- to a file

    def write(self, checkpoint: Path) -> None:
        """Write the memory into a checkpoint that is being made, if there is one."""
        if self.replay is None:
            return
        if self._errors is not None:
            self._errors.flush()
        folder = checkpoint / MEMORY
        write_memory(
            folder,
            self.replay,
            {
                "tokenizer": self._texts.fingerprint,
                "origins": [*self._inherited, *self._names],
                "inherited": len(self._inherited),
                "replay": asdict(self.settings),
            },
        )
        write_texts(folder, self.replay.memory, self._texts, self.where)


def _visits(
    step: int, ids: Sequence[int], result: PassResult, *, are_replayed: bool = False
) -> list[Visit]:
    lm = result.scores("lm").tolist()
    jepa = result.jepa.tolist() or [math.nan] * len(ids)
    return [
        Visit(step, example, are_replayed, *errors)
        for example, *errors in zip(ids, lm, jepa, strict=True)
    ]


def origin_of(dataset: Pairs) -> Tensor | None:
    """Of several datasets the number of the one that each example is from, int64, [N]."""
    if not isinstance(dataset, ConcatenatedPairs):
        return None
    return torch.tensor([dataset.origin(i) for i in range(len(dataset))])


def name_of(dataset: Components) -> str:
    """What a dataset of a config goes by: its file, or its builder with what tells it from others."""
    if not isinstance(dataset, Component):
        return "several datasets"
    if source := dataset.get("source"):
        return str(source)
    values = [
        f"{key}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in dataset.arguments.items()
        if isinstance(value, (str, int, list))
    ]
    return f"{dataset.name}({', '.join(values)})"
