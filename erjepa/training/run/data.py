"""The pairs that a run trains on, those it holds out, and how they are laid out."""

from array import array
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

from torchtune import utils
from torchtune.modules.transforms import Transform

from erjepa.configs import Config, Validation, weights_of
from erjepa.datasets import (
    ConcatenatedPairs,
    Mixture,
    Pair,
    Pairs,
    TokenizedPairs,
    hold_out,
    predictor_token_ids,
)
from erjepa.packing import PairCollator, Views, layout_of
from erjepa.utils.escape import counted

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
    """Places of the pairs that fit ``max_seq_len`` with their views.

    Args:
        num_positions: of the model, most tokens of a path of a pair.
        skip_too_long: leave out those that do not fit, and log how many.

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
    """The measure of each pair for which it exceeds ``limit``, by place.

    Laying out each of many pairs takes long. So one pair is measured for all whose segments have
    about the same lengths: it is at least as long and shares nothing between its views, hence
    bounds the others.
    """

    @cache
    def upper_bound(lengths: tuple[int, ...]) -> int:
        segments = (array("i", [n]) * size for n, size in enumerate(lengths))
        return measure(Pair(0, *segments))

    rounded = map(tuple, (-(-pairs.lengths // _COARSE) * _COARSE).tolist())
    exact = {
        i: measure(pairs[i])
        for i, shape in enumerate(rounded)
        if upper_bound(shape) > limit
    }
    return {i: value for i, value in exact.items() if value > limit}


def split_pairs(
    dataset: Pairs, fitting: list[int], validation: Validation
) -> tuple[list[int], list[int]]:
    """Of the fitting pairs, places of those to train on and of those to validate on.

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
        f"Training on {counted(len(train), 'pair')}, validating on {len(held_out):,}; "
        f"{split.copies} copies of held-out pairs are left out.",
    )
    if not train or not held_out:
        raise ValueError(
            f"validation.size={validation.size} of {len(fitting)} pairs that fit max_seq_len: "
            f"{len(train)} are left to train on, {len(held_out)} to validate on"
        )
    return train, held_out


def mixture_of(cfg: Config, dataset: Pairs, train: list[int]) -> Mixture | None:
    """How often an epoch has the pairs of each dataset, by their places in ``train``, which
    ascends; ``None`` unless a list of datasets has weights.

    Raises:
        ValueError: if an epoch would have none of a dataset.
    """
    weights = weights_of(cfg.dataset)
    if weights is None:
        return None
    assert isinstance(dataset, ConcatenatedPairs)
    counts = Counter(dataset.origin(i) for i in train)
    sizes = [counts[part] for part in range(len(weights))]
    mixture = Mixture(sizes, weights, cfg.drawn_seed)
    of_each = ", ".join(
        f"{count} of {name}, which has {size}"
        for count, name, size in zip(mixture.counts, dataset.names, sizes, strict=True)
    )
    utils.log_rank_zero(log, f"An epoch has {len(train)} pairs: {of_each}.")
    return mixture


class RunViews(NamedTuple):
    """Layouts of new and of replayed pairs, ``none`` where nothing reads their embeddings, and
    the number of predictor tokens, k, 0 where no pair has a predictor.
    """

    new: Views
    replayed: Views
    num_predictor_tokens: int


def run_views(cfg: Config, jepa_weight: float) -> RunViews:
    """The layouts of a run's pairs, whose loss has the weight :math:`\\lambda`."""
    replay = cfg.replay
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


class PairCollators(NamedTuple):
    """What packs new pairs, and what packs replayed ones."""

    new: PairCollator
    replay: PairCollator


def pair_collators(
    cfg: Config,
    tokenizer: Transform,
    views: RunViews,
    vocab_size: int,
    *,
    trim: bool,
) -> PairCollators:
    """The collators of a run; ``trim`` cuts rows to their longest."""
    predictor_ids = predictor_token_ids(
        tokenizer, views.num_predictor_tokens, vocab_size, cfg.predictor_tokens
    )

    def collator(layout: Views, path: str) -> PairCollator:
        return PairCollator(
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

    return PairCollators(collator(views.new, "new"), collator(views.replayed, "replay"))
