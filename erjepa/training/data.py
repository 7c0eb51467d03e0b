"""The pairs a run trains on, those it holds out, and their order."""

from functools import partial

import torch
from torch.utils.data import DataLoader
from torchtune import utils

from erjepa.datasets import PairedDataset, StepSampler, hold_out
from erjepa.packing import PairCollator

log = utils.get_logger("INFO")


def fitting_pairs(
    dataset: PairedDataset,
    collator: PairCollator,
    *,
    max_seq_len: int,
    skip_too_long: bool,
) -> list[int]:
    """The pairs that fit ``max_seq_len`` with their views.

    Args:
        dataset (PairedDataset): all pairs.
        collator (PairCollator): what lays them out.
        max_seq_len (int): most tokens of a pair.
        skip_too_long (bool): leave out those that do not fit, and say how many.

    Returns:
        list[int]: their places in the dataset.

    Raises:
        ValueError: naming the longest, if one does not fit and is not to be skipped, or if
            none fits.
    """
    lengths = [collator.length(pair) for pair in dataset]
    fitting = [i for i, length in enumerate(lengths) if length <= max_seq_len]
    if skipped := len(lengths) - len(fitting):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        message = (
            f"{skipped} of {len(lengths)} pairs do not fit max_seq_len={max_seq_len}; the "
            f"longest, {dataset.where(longest)}, takes {lengths[longest]} tokens with its "
            "views"
        )
        if not skip_too_long:
            raise ValueError(
                f"{message}. Raise max_seq_len, or set skip_too_long=True."
            )
        utils.log_rank_zero(log, f"Skipping pairs: {message}.")
    if not fitting:
        raise ValueError(f"no pair fits max_seq_len={max_seq_len}")
    return fitting


def split_pairs(
    dataset: PairedDataset, fitting: list[int], *, size: int | None, seed: int
) -> tuple[list[int], list[int]]:
    """Of the pairs that fit: those to train on, and those of ``validation``.

    Args:
        dataset (PairedDataset): all pairs.
        fitting (list[int]): places of the pairs that fit.
        size (int | None): ``validation.size``.
        seed (int): ``validation.seed``.

    Returns:
        tuple[list[int], list[int]]: their places in the dataset.

    Raises:
        ValueError: if none is left to train on, or to validate on.
    """
    if size is None:
        return fitting, []
    # Of the whole dataset, so that it does not depend on the views, hence the method.
    split = hold_out(dataset, size, seed)
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
            f"validation.size={size} of {len(fitting)} pairs that fit max_seq_len: "
            f"{len(train)} are left to train on, {len(held_out)} to validate on"
        )
    return train, held_out


def step_loader(
    dataset: PairedDataset,
    ids: list[int],
    sampler: StepSampler,
    collator: PairCollator,
    *,
    num_batches: int,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader:
    """A loader that yields the packed micro-batches of this rank, step by step.

    Args:
        dataset (PairedDataset): all pairs.
        ids (list[int]): places of those to train on.
        sampler (StepSampler): which of ``ids`` a step has.
        collator (PairCollator): what packs them.
        num_batches (int): micro-batches of a step.
        num_workers (int): processes that pack.
        pin_memory (bool): for copies to a device.

    Returns:
        DataLoader: yields ``list[PackedBatch]``.
    """
    return DataLoader(
        # A list, which processes that are spawned can be given too.
        [dataset[i] for i in ids],
        batch_sampler=sampler,
        collate_fn=partial(collator.split, num_batches=num_batches),
        num_workers=num_workers,
        pin_memory=pin_memory,
        # Else every new iterator would draw from the state that LoRA dropout uses.
        generator=torch.Generator(),
    )
