"""The pairs a run trains on, those it holds out, and their order."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler, Subset
from torchtune import utils
from torchtune.modules.transforms import Transform

from erjepa.configs import Config, Validation, weights_of
from erjepa.datasets import (
    ConcatenatedPairs,
    Mixture,
    Pair,
    Pairs,
    StepSampler,
    TokenizedPairs,
    hold_out,
    predictor_token_ids,
    require_turns,
)
from erjepa.packing import PackedBatch, PairCollator, Views, layout_of
from erjepa.replay import ReplaySettings
from erjepa.training.run.signals import leave_signals_to_parent

log = utils.get_logger("INFO")

_COARSE = 16  # tokens to which lengths are rounded up


class LocatedPairs(Protocol):
    """Pairs, and where each is from: a dataset, or a stored memory."""

    @property
    def pairs(self) -> TokenizedPairs: ...
    def where(self, index: int, /) -> str: ...


def fitting_pairs(
    located: LocatedPairs,
    collator: PairCollator,
    *,
    max_seq_len: int,
    num_positions: int,
    skip_too_long: bool,
) -> list[int]:
    """The pairs that fit ``max_seq_len`` with their views.

    Args:
        located: all pairs.
        collator: what lays them out.
        max_seq_len: most tokens of a pair.
        num_positions: of the model, most tokens of a path of a pair.
        skip_too_long: leave out those that do not fit, and say how many.

    Returns:
        Their places.

    Raises:
        ValueError: naming the longest, if one does not fit and is not to be skipped, or fits
            and has a path beyond the model's positions; or if none fits.
    """
    pairs = located.pairs
    too_long = _above(max_seq_len, collator.length, pairs)
    fitting = [i for i in range(len(pairs)) if i not in too_long]
    if too_long:
        longest = max(too_long, key=too_long.__getitem__)
        message = (
            f"{len(too_long)} of {len(pairs)} pairs do not fit max_seq_len={max_seq_len}; "
            f"the longest, {located.where(longest)}, takes {too_long[longest]} tokens with "
            "its views"
        )
        if not (skip_too_long and fitting):
            raise ValueError(
                f"{message}. Raise max_seq_len, or set skip_too_long=True."
            )
        utils.log_rank_zero(log, f"Skipping pairs: {message}.")
    too_deep = _above(num_positions, collator.depth, pairs)
    if deep := too_deep.keys() - too_long:
        deepest = max(sorted(deep), key=too_deep.__getitem__)
        raise ValueError(
            f"max_seq_len={max_seq_len}: {located.where(deepest)} has {too_deep[deepest]} "
            f"tokens on end, and the model positions for {num_positions}. Set it to "
            f"{num_positions} and skip_too_long=True."
        )
    return fitting


def _above(
    limit: int, measure: Callable[[Pair], int], pairs: TokenizedPairs
) -> dict[int, int]:
    """What the pairs measure that measure more than ``limit``, by their places.

    Laying out each of many pairs takes long. So it is done once for all whose segments are of
    about the same lengths: for one that is no shorter and shares nothing between its views,
    hence measures most.
    """

    @cache
    def most(lengths: tuple[int, ...]) -> int:
        segments = (array("i", [n]) * size for n, size in enumerate(lengths))
        return measure(Pair(0, *segments))

    rounded = map(tuple, (-(-pairs.lengths // _COARSE) * _COARSE).tolist())
    exact = {
        i: measure(pairs[i]) for i, shape in enumerate(rounded) if most(shape) > limit
    }
    return {i: value for i, value in exact.items() if value > limit}


def split_pairs(
    dataset: Pairs, fitting: list[int], validation: Validation
) -> tuple[list[int], list[int]]:
    """Of the pairs that fit: those to train on, and those of ``validation``.

    Args:
        dataset: all pairs.
        fitting: places of the pairs that fit.
        validation: how many are held out, and which.

    Returns:
        Their places in the dataset.

    Raises:
        ValueError: if none is left to train on, or to validate on.
    """
    if validation.size is None:
        return fitting, []
    # Of the whole dataset, so that it does not depend on the views, hence the method.
    split = hold_out(dataset.pairs, validation.size, validation.seed)
    fits = set(fitting)
    train, held_out = (
        [i for i in ids if i in fits] for ids in (split.train, split.held_out)
    )
    utils.log_rank_zero(
        log,
        f"Training on {len(train)} pairs, validating on {len(held_out)}; "
        f"{split.copies} copies of held-out pairs are left out.",
    )
    if not train or not held_out:
        raise ValueError(
            f"validation.size={validation.size} of {len(fitting)} pairs that fit max_seq_len: "
            f"{len(train)} are left to train on, {len(held_out)} to validate on"
        )
    return train, held_out


def mixture_of(cfg: Config, dataset: Pairs, train: list[int]) -> Mixture | None:
    """How often an epoch has the pairs of each dataset, where a list of them has weights.

    Args:
        dataset: all pairs.
        train: ascending places of those to train on.

    Returns:
        Of their places among ``train``; ``None`` without weights.

    Raises:
        ValueError: if an epoch would have none of a dataset.
    """
    weights = weights_of(cfg.dataset)
    if weights is None:
        return None
    assert isinstance(dataset, ConcatenatedPairs)
    counts = Counter(dataset.origin(i).part for i in train)
    sizes = [counts[part] for part in range(len(weights))]
    mixture = Mixture(sizes, weights, cfg.drawn_seed)
    of_each = ", ".join(
        f"{count} of {name}, which has {size}"
        for count, name, size in zip(mixture.counts, dataset.names, sizes, strict=True)
    )
    utils.log_rank_zero(log, f"An epoch has {len(train)} pairs: {of_each}.")
    return mixture


class TrainingPairs(NamedTuple):
    """What a rank trains on, and what is held out.

    Args:
        sampler: which pairs a step has.
        loader: yields the packed micro-batches of this rank, a step at a time,
            ``list[PackedBatch]``; with a share of replayed pairs all new pairs of the step,
            :class:`StepExamples`, which ``packer`` then packs with the replayed ones.
        held_out: places in the dataset of the pairs to validate on.
        packer: packs what a rank has of a step.
    """

    sampler: StepSampler
    loader: DataLoader[Pair]
    held_out: list[int]
    packer: "StepPacker"


class StepExamples(NamedTuple):
    """What a rank has of one step: examples by their place, or as pairs."""

    step: int
    examples: list


class NumberedSteps(Sampler[StepExamples]):
    """The steps of a sampler, each with how many steps of the run come before it."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[StepExamples]:
        for step, examples in enumerate(self._sampler, start=self._sampler.steps_done):
            yield StepExamples(step, examples)


class StepSubset(Subset):
    """Some pairs of a dataset, handed out by the step."""

    def __getitems__(self, step: StepExamples) -> StepExamples:  # type: ignore[override]
        return StepExamples(step.step, [self[i] for i in step.examples])


class StepPacker:
    """Packs what a rank has of a step, with views where the step has a JEPA loss.

    Args:
        collator: lays pairs out with their views.
        num_batches: micro-batches of a step.
        jepa_every: the first of so many steps has a JEPA loss.
    """

    def __init__(
        self, collator: PairCollator, num_batches: int, jepa_every: int
    ) -> None:
        self._collator = collator
        self._plain = collator.without_views()
        self._num_batches = num_batches
        self._jepa_every = jepa_every

    def has_jepa_loss(self, step: int) -> bool:
        """Whether a step of the run has the views that the objective has, if any."""
        return step % self._jepa_every == 0 or self._collator.views == "none"

    def __call__(self, step: StepExamples) -> list[PackedBatch]:
        collator = self._collator if self.has_jepa_loss(step.step) else self._plain
        return collator.split(step.examples, self._num_batches, step.step)


def training_pairs(
    cfg: Config,
    dataset: Pairs,
    collator: PairCollator,
    *,
    num_positions: int,
    jepa_every: int,
    pin_memory: bool,
    share: float = 0.0,
) -> TrainingPairs:
    """Keep the pairs that fit, hold some out, and deal the others into steps.

    Args:
        dataset: all pairs.
        collator: what packs them.
        jepa_every: the first of so many steps has views.
        pin_memory: for copies to a device.
        share: fraction of a step's pairs that are replayed ones.

    Returns:
        Those of this rank.
    """
    if cfg.train_on_turns == "all":
        require_turns(dataset)
    fitting = fitting_pairs(
        dataset,
        collator,
        max_seq_len=cfg.max_seq_len,
        num_positions=num_positions,
        skip_too_long=cfg.skip_too_long,
    )
    train, held_out = split_pairs(dataset, fitting, cfg.validation)
    sampler = StepSampler(
        len(train),
        batch_size=cfg.batch_size,
        gradient_accumulation_steps=cfg.gradient_accumulation_steps,
        world_size=dist.get_world_size(),
        rank=dist.get_rank(),
        seed=cfg.drawn_seed,
        shuffle=cfg.shuffle,
        mixture=mixture_of(cfg, dataset, train),
        share=share,
    )
    packer = StepPacker(collator, cfg.gradient_accumulation_steps, jepa_every)
    loader: DataLoader[Pair] = DataLoader(
        # Of the pairs alone, which processes that are spawned can be given too.
        StepSubset(cast(Dataset[Pair], dataset.pairs), train),
        batch_sampler=NumberedSteps(sampler),  # type: ignore[arg-type]
        collate_fn=_unpacked if share else packer,  # type: ignore[arg-type]
        num_workers=cfg.num_workers,
        worker_init_fn=leave_signals_to_parent,
        pin_memory=pin_memory and not share,
        # Else every new iterator would draw from the state that LoRA dropout uses.
        generator=torch.Generator(),
    )
    return TrainingPairs(sampler, loader, held_out, packer)


def _unpacked(step: StepExamples) -> StepExamples:
    return step


class RunViews(NamedTuple):
    """The layouts of a run's pairs: ``none`` where nothing reads the embeddings of the views.

    Args:
        new: of new pairs.
        replayed: of replayed pairs.
        num_predictor_tokens: k; 0 where no pair has a predictor.
    """

    new: Views
    replayed: Views
    num_predictor_tokens: int


def run_views(cfg: Config, jepa_weight: float, replay: ReplaySettings) -> RunViews:
    """The layouts of a run's pairs.

    Args:
        jepa_weight: :math:`\\lambda`.
        replay: what is replayed, which may score or select pairs by their embeddings.
    """
    scores = replay.score == "jepa"
    is_read = jepa_weight or (replay.weight and (scores or replay.needs_addresses))
    views: Views = cfg.views if is_read else "none"
    is_replayed = scores or (jepa_weight and replay.views)
    has_predictor = views in ("shared", "standalone")
    return RunViews(
        views,
        views if is_replayed else "none",
        cfg.num_predictor_tokens if has_predictor else 0,
    )


def pair_collators(
    cfg: Config,
    tokenizer: Transform,
    *,
    views: RunViews,
    vocab_size: int,
    trim: bool,
) -> tuple[PairCollator, PairCollator]:
    """What packs new pairs, and what packs replayed ones.

    Args:
        views: layouts of the pairs.
        trim: cut rows to their longest.

    Returns:
        Of new pairs, of replayed pairs.
    """
    predictor_ids = predictor_token_ids(
        tokenizer, views.num_predictor_tokens, vocab_size, cfg.predictor_tokens
    )
    new, replay = (
        PairCollator(
            **(layout_of(cfg) | {"views": layout}),
            seed=cfg.drawn_seed,
            predictor_ids=predictor_ids,
            pad_id=tokenizer.pad_id,
            row_length=cfg.row_length,
            train_on_input=cfg.train_on_input,
            train_on_turns=cfg.train_on_turns,
            trim=trim,
            train_end_of_turn=cfg.train_end_of_turn in ("all", path),
        )
        for path, layout in (("new", views.new), ("replay", views.replayed))
    )
    return new, replay
