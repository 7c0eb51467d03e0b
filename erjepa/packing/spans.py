"""Semantic tube prediction (STP, Huang et al. 2026), which keeps a path of hidden states straight.

It compares two parts of one path with hidden states :math:`h_0, h_1, \\dots`. Each part is a sum of
steps, and a step from i to j is :math:`h_j - h_i`.

==========  =====================================================================================
spans       as published: for random :math:`s < r < t`, :math:`h_r - h_s` predicts
            :math:`h_t - h_r`
patches     as in the released code: the rest of source and target predicts a random patch of
            them; tokens between source and target content belong to neither
==========  =====================================================================================

The released code also leaves out the tokens before the source content, unless its flag
``random_span_all`` is set. Here they are included, as with that flag.
"""

from collections.abc import Sequence
from random import Random

Step = tuple[int, int]  # from one index of a path to a later one

# Maximum number of steps in a part. A patch across the gap between source and target has two
# steps and leaves two; any other patch has one and leaves up to three.
STEPS = 3


def span_steps(length: int, random: Random) -> list[Step]:
    """Draw steps of a path of ``length`` tokens, 3 or more: three whose sum predicts, then three
    whose sum is predicted. Unused ones are (0, 0).
    """
    s, r, t = sorted(random.sample(range(length), 3))
    return [*_padded([(s, r)]), *_padded([(r, t)])]


def patch_steps(source: Step, target: Step, random: Random) -> list[Step]:
    """Draw the same for a random patch of ``source`` and ``target``, each given as one step.

    Raises:
        ValueError: if they have fewer than two steps between their tokens.
    """
    total = source[1] - source[0] + target[1] - target[0]
    if total < 2:
        raise ValueError(
            "views=patches needs two steps between the tokens of source and target, and a "
            f"pair has {total}"
        )
    first, last = 0, total
    while last - first == total:  # a patch of everything would leave nothing
        first = random.randrange(total)
        last = random.randint(first + 1, total)
    return [
        *_padded([*_cut(0, first, source, target), *_cut(last, total, source, target)]),
        *_padded(_cut(first, last, source, target)),
    ]


def _cut(first: int, last: int, source: Step, target: Step) -> list[Step]:
    size = source[1] - source[0]
    parts = [
        (source[0] + min(first, size), source[0] + min(last, size)),
        (target[0] + max(first - size, 0), target[0] + max(last - size, 0)),
    ]
    return [(start, stop) for start, stop in parts if start < stop]


def _padded(steps: Sequence[Step]) -> list[Step]:
    return [*steps, *[(0, 0)] * (STEPS - len(steps))]
