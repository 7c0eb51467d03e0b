"""The pairs of a run: those to train on, those held out, and those of memories that fit."""

from array import array
from collections import Counter
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torchtune import utils

from erjepa.checkpoints.stored_memory import StoredMemory
from erjepa.configs import Config, weights_of
from erjepa.datasets import Mixture, Pair, PairedDataset, TokenizedPairs
from erjepa.datasets.split import text_of
from erjepa.packing import PairCollator
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.prepared import PreparedRun
from erjepa.utils.escape import counted

log = utils.get_logger("INFO")

_COARSE = 16  # tokens; lengths are rounded up to a multiple of it


def fitting_pairs(
    run: PreparedRun,
    located: PairedDataset | StoredMemory,
    collator: PairCollator,
    *,
    skip_too_long: bool,
) -> list[int]:
    """Return the indices of the pairs that fit a run's ``max_seq_len`` with their views.

    Args:
        located: pairs with their source.
        skip_too_long: leave out the pairs that do not fit and log their number.

    Raises:
        ValueError: naming the longest pair, if a pair does not fit and is not to be skipped, if
            none fits, or if a pair that fits has a path beyond the model's positions.
    """
    pairs, max_seq_len = located.pairs, run.cfg.max_seq_len
    too_long = above(max_seq_len, collator.length, pairs)
    fitting = [i for i in range(len(pairs)) if i not in too_long]
    if too_long:
        longest = max(too_long, key=too_long.__getitem__)
        message = (
            f"{len(too_long)} of {len(pairs)} pairs do not fit max_seq_len={max_seq_len}; "
            f"the longest, {located.where(longest)}, takes {too_long[longest]} tokens with "
            "its views"
        )
        if not (skip_too_long and fitting):
            advice = ", or set skip_too_long=True" if fitting else ""
            raise ValueError(f"{message}. Raise max_seq_len{advice}.")
        utils.log_rank_zero(log, f"Skipping pairs: {message}.")
    num_positions = run.model.num_positions
    too_deep = above(num_positions, collator.depth, pairs)
    if deep := too_deep.keys() - too_long:
        deepest = max(sorted(deep), key=too_deep.__getitem__)
        raise ValueError(
            f"max_seq_len={max_seq_len}: {located.where(deepest)} has a sequence of "
            f"{too_deep[deepest]} tokens, but the model has {num_positions} positions. Set it "
            f"to {num_positions} and skip_too_long=True."
        )
    return fitting


def fitting_slots(
    run: PreparedRun, stored: StoredMemory, *, skip_too_long: bool
) -> Tensor:
    """Return the slots of a memory whose pairs fit a run's rows, ascending, int64.

    All ranks call it together. Errors as in :func:`fitting_pairs`.
    """

    def find() -> Tensor:
        stored.require_vocabulary(run.model.vocab_size)
        collator = run.collators.new
        fitting = fitting_pairs(run, stored, collator, skip_too_long=skip_too_long)
        return torch.tensor(fitting, dtype=torch.int64)

    return on_rank_zero(find)


def slots_to_inherit(run: PreparedRun, stored: StoredMemory) -> Tensor:
    """Return the slots whose pairs fit a run's rows and are no copies of those that it holds out,
    ascending, int64. All ranks call it together.
    """
    slots = fitting_slots(run, stored, skip_too_long=run.cfg.skip_too_long)
    if (split := run.split) is None:
        return slots

    def find() -> Tensor:
        held_out = {text_of(run.dataset.pairs[i]) for i in split.held_out}
        pairs = stored.pairs
        is_new = [text_of(pairs[s]) not in held_out for s in slots.tolist()]
        if copies := len(slots) - sum(is_new):
            log.info(
                f"{stored.folder}: left out {counted(copies, 'pair')}, held out for validation."
            )
        return slots[torch.tensor(is_new, dtype=torch.bool)]

    return on_rank_zero(find)


def above(
    limit: int, measure: Callable[[Pair], int], pairs: TokenizedPairs
) -> dict[int, int]:
    """Return the measures of pairs that exceed ``limit``, by index of the pair.

    Measuring every pair is slow. So lengths of segments are rounded up, and one pair of these
    lengths, which shares no tokens between its views, bounds all pairs that are rounded to it.
    Only pairs whose bound exceeds the limit are measured.
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


def split_pairs(run: PreparedRun, fitting: list[int]) -> tuple[list[int], list[int]]:
    """Split the fitting pairs of a run. Return the indices to train on and those to validate on.

    Raises:
        ValueError: if no pair is left to train on, or to validate on.
    """
    if (split := run.split) is None:
        return fitting, []
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
            f"validation.size={run.cfg.validation.size} of {len(fitting)} pairs that fit max_seq_len: "
            f"{len(train)} are left to train on, {len(held_out)} to validate on"
        )
    return train, held_out


def mixture_of(cfg: Config, dataset: PairedDataset, train: list[int]) -> Mixture | None:
    """Return the mixture that deals pairs, by their index in ``train``, into epochs; ``None``
    unless ``dataset`` is a list with weights. ``train`` is ascending.

    Raises:
        ValueError: if an epoch would have no pair of one of the datasets.
    """
    weights = weights_of(cfg.dataset)
    if weights is None:
        return None
    counts = Counter(dataset.origin(i) for i in train)
    sizes = [counts[part] for part in range(len(weights))]
    mixture = Mixture(sizes, weights, cfg.drawn_seed)
    of_each = ", ".join(
        f"{count} of {name}, which has {size}"
        for count, name, size in zip(mixture.counts, dataset.names, sizes, strict=True)
    )
    utils.log_rank_zero(log, f"An epoch has {len(train)} pairs: {of_each}.")
    return mixture
