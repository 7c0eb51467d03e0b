"""Checks that the pairs of an evaluation fit the model, before any is answered."""

from erjepa.evaluation.examples import Examples
from erjepa.packing import PairCollator
from erjepa.training.run.data import above


def require_fit(
    examples: Examples, num_positions: int, collator: PairCollator | None = None
) -> None:
    """Check that prompts and, if targets are read, whole pairs fit.

    Args:
        num_positions: the model's.
        collator: packs the pairs whose targets are read; ``None``: of none.

    Raises:
        ValueError: naming a pair that does not fit.
    """
    pairs, ids, where = (
        examples.dataset.pairs,
        list(examples.ids),
        examples.dataset.where,
    )
    lengths = pairs.lengths[ids, :2].sum(axis=1)  # source and bridge
    longest = int(lengths.argmax())
    if lengths[longest] > num_positions:
        raise ValueError(
            f"{where(ids[longest])}: the prompt has {lengths[longest]} tokens, but the model has "
            f"{num_positions} positions; shorten it, or leave the pair out"
        )
    if collator is None:
        return
    deep = above(num_positions, collator.depth, pairs)
    long = (
        above(collator.row_length, collator.length, pairs)
        if collator.row_length
        else {}
    )
    for sizes, limit in (
        (deep, f"the model has {num_positions} positions; leave it out"),
        (long, f"a row has {collator.row_length}; raise row_length and max_seq_len"),
    ):
        if found := [i for i in ids if i in sizes]:
            raise ValueError(
                f"{where(found[0])}: the pair takes {sizes[found[0]]} tokens with its target and "
                f"views, but {limit}"
            )
