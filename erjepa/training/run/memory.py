"""The memory of a run: built, carried on from an earlier run, saved and found again."""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import utils
from torchtune.modules.transforms import Transform

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.example_errors import ExampleErrors, Visit
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.checkpoints.stored_memory import StoredMemory, memory_folder
from erjepa.configs import Component, Components, Config
from erjepa.datasets import ConcatenatedPairs, Pair, Pairs, origin_labels
from erjepa.objective import PackedDecoder
from erjepa.packing import PairCollator
from erjepa.replay import (
    EpisodicReplay,
    ReplayBatch,
    require_memory,
)
from erjepa.replay.retention import ORIGIN_BITS, origins
from erjepa.training.model.device import memory_of
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.data import fitting_pairs
from erjepa.training.run.inherited import InheritedMemories, open_on_all
from erjepa.training.run.origins import losses_by_origin, replayed_by_origin
from erjepa.training.step.passes import Passes, PassResult

log = utils.get_logger("INFO")

_EXAMPLE = (1 << ORIGIN_BITS) - 1


class RunMemory:
    """Holds the replay of a run, and knows where its examples are from.

    Args:
        cfg: config of the run.
        tokenizer (Transform): of the model.
        resume: whether the run goes on from a checkpoint of its own.

    Attributes:
        settings (ReplaySettings): what is replayed, and what the memory keeps.
        replay (EpisodicReplay | None): after :meth:`build`; ``None`` without replay.

    Raises:
        FileNotFoundError: if ``replay.init_from`` holds no memory.
        ValueError: if that memory is not whole, or of another tokenizer.
    """

    def __init__(self, cfg: Config, tokenizer: Transform, *, resume: bool) -> None:
        self.settings = cfg.replay
        self._names = [name_of(cfg.dataset)]
        self._init_from = cfg.init_from
        self._batch_size = cfg.batch_size
        self._num_batches = cfg.gradient_accumulation_steps
        self._seed = cfg.drawn_seed
        self._max_seq_len = cfg.max_seq_len
        self._skip_too_long = cfg.skip_too_long
        self.replay: EpisodicReplay | None = None
        self._errors = None
        if cfg.log_example_errors:
            self._errors = ExampleErrors(Path(cfg.output_dir))
        self._inherited: list[str] = []
        self._earlier: InheritedMemories | None = None
        if not self.is_on:
            if self._errors is not None:
                raise ValueError(
                    "log_example_errors=True logs what the memory takes in, and "
                    "replay.weight=0 has none; set it to False"
                )
            return
        self._texts = PairTexts(tokenizer)
        if self.settings.start_from and not resume:
            self._earlier = InheritedMemories(self.settings, self._texts.fingerprint)

    @property
    def is_on(self) -> bool:
        """Whether the run replays."""
        return bool(self.settings.weight)

    @property
    def share(self) -> float:
        """Fraction of a step's pairs that are replayed; 0 where the budget adds them, or where
        only inherited pairs are drawn, and there are none.
        """
        has_any = self.settings.draw_from == "all" or self.settings.init_from
        return (self.settings.share or 0.0) if self.is_on and has_any else 0.0

    def build(
        self,
        dataset: Pairs,
        model: PackedDecoder,
        collator: PairCollator,
        *,
        has_views: bool,
        device: torch.device,
    ) -> EpisodicReplay | None:
        """An empty memory for the pairs of ``dataset``; ``None`` if nothing is replayed.

        Args:
            dataset (Pairs): all pairs of the run.
            model (PackedDecoder): the model, which may be on the meta device.
            collator (PairCollator): what packs new pairs.
            has_views (bool): whether new pairs have embeddings; without them slots have no
                addresses.
            device (torch.device): device of the run.

        Raises:
            ValueError: if there is no room for it, or a pair of ``replay.init_from`` does not
                fit the run's rows.
        """
        self._dataset = dataset
        self._model = model
        self._collator = collator
        self._device = device
        self._origin_of = origin_of(dataset)
        if isinstance(dataset, ConcatenatedPairs):
            self._names = dataset.names
        if self.is_on:
            settings = self.settings
            if not has_views:
                settings = replace(settings, address="none")
            embed_dim = model.decoder.tok_embeddings.embedding_dim
            require_memory(settings, embed_dim, memory_of(device))
            self.replay = EpisodicReplay(
                settings, embed_dim=embed_dim, seed=self._seed, device=device
            )
        if self._earlier is not None:
            fitting = partial(self._fitting_slots, skip_too_long=self._skip_too_long)
            self._earlier.choose(fitting, self._seed)
        return self.replay

    def _fitting_slots(self, stored: StoredMemory, *, skip_too_long: bool) -> Tensor:
        """The slots whose pairs this run can train on, ascending, int64.

        Raises:
            ValueError: naming the slot, if one does not fit and is not to be skipped.
        """
        decoder = self._model.decoder

        def find() -> Tensor:
            stored.require_vocabulary(decoder.tok_embeddings.num_embeddings)
            fitting = fitting_pairs(
                stored,
                self._collator,
                max_seq_len=self._max_seq_len,
                num_positions=decoder.max_seq_len,
                skip_too_long=skip_too_long,
            )
            return torch.tensor(fitting, dtype=torch.int64)

        return on_rank_zero(find)

    def ids(self, example_ids: Tensor) -> Tensor:
        """The ids under which the memory holds examples of the run's dataset.

        Args:
            example_ids (Tensor): places in the dataset, int64, [B].

        Returns:
            Tensor: origin << 32 | place, so the places themselves where there is one dataset.
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
        """What a step logs of each dataset, where the run or its memory has several.

        Args:
            new (PassResult): of the new pairs.
            replayed (PassResult | None): of the replayed pairs.

        Returns:
            dict[str, Any]: numbers and scalar tensors by the name they are logged under.
        """
        labels = origin_labels([*self._names, *self._inherited])
        own, inherited = labels[: len(self._names)], labels[len(self._names) :]
        metrics: dict[str, Any] = {}
        if self._origin_of is not None:
            parts = self._origin_of[new.example_ids.cpu()]
            metrics.update(losses_by_origin(new, parts, own))
        if replayed is not None and len(labels) > 1:
            metrics.update(replayed_by_origin(replayed.example_ids, own, inherited))
        return metrics

    def log_errors(
        self,
        step: int,
        new: PassResult,
        draw: ReplayBatch | None,
        replayed: PassResult | None,
    ) -> None:
        """Log the errors of a step's examples, if the config asks for it.

        Args:
            step (int): of the run, 1-based.
            new (PassResult): of the new pairs.
            draw (ReplayBatch | None): what was replayed, if anything.
            replayed (PassResult | None): of these.
        """
        if self._errors is None:
            return
        ids = self.ids(new.example_ids).tolist()
        parts = [(ids, new)]
        if draw is not None and replayed is not None:
            parts.append((draw.example_ids, replayed))
        for was_replayed, (examples, result) in enumerate(parts):
            jepa = result.jepa.tolist() or [math.nan] * len(examples)
            self._errors.log(
                [
                    Visit(step, example, bool(was_replayed), lm, jepa)
                    for example, lm, jepa in zip(
                        examples, result.scores("lm").tolist(), jepa, strict=True
                    )
                ]
            )

    # ------------------------------------------------------------------ from a file

    def start(self, passes: Passes) -> None:
        """Begin a run: with the memory of ``replay.init_from``, if there is one.

        Args:
            passes: what measures its pairs, under the model that the run starts from.
        """
        if self._errors is not None:
            self._errors.go_on_after(0)
        if self._earlier is not None and self.replay is not None:
            self._inherit(self._earlier, self.replay, passes)
        for text in self._forgets():
            utils.log_rank_zero(log, text, logging.WARNING)

    def go_on(self, checkpoint: Path, step: int) -> None:
        """Go on with the memory of the run's own checkpoint, if that holds one.

        Args:
            checkpoint (Path): to go on from.
            step (int): after which it was written.
        """
        if self._errors is not None:
            self._errors.go_on_after(step)
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
        require_memory(both, replay.embed_dim, memory_of(self._device))
        replay.set_apart(slots)

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

    def _forgets(self) -> Iterator[str]:
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
        if not self.can_draw:
            return f"none, without pairs of an earlier run; {stored}"
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
    def can_draw(self) -> bool:
        """Whether there can be pairs to replay; without, the run is SFT with a memory."""
        return self._draws_from_all or bool(self._inherited)

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


def origin_of(dataset: Pairs) -> Tensor | None:
    """Of several datasets the number of the one that each example is from, int64, [N]."""
    if not isinstance(dataset, ConcatenatedPairs):
        return None
    return torch.tensor([dataset.origin(i).part for i in range(len(dataset))])


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
