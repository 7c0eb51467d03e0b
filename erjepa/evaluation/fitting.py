"""Checks that the pairs of an evaluation fit the model, before any is answered."""

import sys

from erjepa.evaluation.examples import Examples
from erjepa.packing import PairCollator
from erjepa.training.run.data import above


def require_fit(
    examples: Examples, num_positions: int, collator: PairCollator | None = None
) -> None:
    """Check that prompts and, if targets are read, whole pairs fit.

    Args:
        num_positions: the model's.
        collator: packs whole pairs; ``None``: targets are not read, so only prompts must fit.

    Raises:
        ValueError: naming a pair that does not fit.
    """
    dataset, ids = examples.dataset, list(examples.ids)
    lengths = dataset.pairs.lengths[ids, :2].sum(axis=1)  # source and bridge
    longest = int(lengths.argmax())
    if lengths[longest] > num_positions:
        raise ValueError(
            f"{dataset.where(ids[longest])}: the prompt has {lengths[longest]} tokens, but the "
            f"model has {num_positions} positions; shorten it, or leave the pair out"
        )
    if collator is None:
        return
    row = collator.row_length or sys.maxsize
    for limit, measure, advice in (
        (num_positions, collator.depth, "the model has {} positions; leave it out"),
        (row, collator.length, "a row has {}; raise row_length and max_seq_len"),
    ):
        sizes = above(limit, measure, dataset.pairs)
        if found := [i for i in ids if i in sizes]:
            raise ValueError(
                f"{dataset.where(found[0])}: the pair takes {sizes[found[0]]} tokens with its "
                f"target and views, but {advice.format(limit)}"
            )
