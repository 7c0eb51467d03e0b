"""Which pairs share a row."""

from collections.abc import Sequence

# Attention to so many slots costs about what all else does that is computed for a slot, on a
# CPU and in small models.
_ATTENTION = 4096


def level(
    lengths: Sequence[int], row_length: int, at_least: int = 1
) -> list[list[int]]:
    """Deal items into as few rows as this gives: longest first, each into the emptiest row.

    Rows come out about equally full. Where they are trimmed to the fullest one this wastes
    less than best fit, which leaves a last row nearly empty; it takes a row more than best
    fit where that fits tightly.

    Args:
        lengths (Sequence[int]): lengths of the items, each at most ``row_length``.
        row_length (int): most that a row holds.
        at_least (int): fewest rows.

    Returns:
        list[list[int]]: the items of each row; empty rows where there are no items.
    """
    longest_first = sorted(range(len(lengths)), key=lambda item: -lengths[item])
    num_rows = max(-(-sum(lengths) // row_length), at_least)
    while True:
        rows: list[list[int]] = [[] for _ in range(num_rows)]
        used = [0] * num_rows
        for item in longest_first:
            emptiest = used.index(min(used))
            rows[emptiest].append(item)
            used[emptiest] += lengths[item]
        if max(used) <= row_length:
            return rows
        num_rows += 1


def tight(
    lengths: Sequence[int], row_length: int, at_least: int = 1
) -> list[list[int]]:
    """Deal items as :func:`level` does, into up to twice as many rows if that costs less.

    What counts are the slots of rows trimmed to the fullest one, and attention, which is to
    all slots of a row: 16 like items fill 4 rows evenly, but not 3; two rows of 100 slots
    take half the attention of one of 200.

    Args:
        lengths (Sequence[int]): lengths of the items, each at most ``row_length``.
        row_length (int): most that a row holds.
        at_least (int): fewest rows.

    Returns:
        list[list[int]]: the items of each row.
    """
    fewest = len(level(lengths, row_length, at_least))
    choices = (level(lengths, row_length, n) for n in range(fewest, 2 * fewest + 1))

    def cost(rows: list[list[int]]) -> int:
        length = fullest(lengths, rows)
        return len(rows) * length * (_ATTENTION + length)

    return min(choices, key=cost)


def fullest(lengths: Sequence[int], rows: Sequence[Sequence[int]]) -> int:
    """Length of the fullest row."""
    return max(sum(lengths[item] for item in row) for row in rows)


def few_sizes(size: int) -> int:
    """``size`` rounded up to one of few: 1 to 8, then 10, 12, 14, 16, 20, 24, 28, 32, 40 ...

    At most a quarter larger. A compiled kernel is built anew for each size it meets.
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step
