"""Semantic tube prediction (STP, Huang et al. 2026): a path of hidden states kept straight.

Of the hidden states :math:`h_0, h_1, \\dots` of one path, two parts are compared: each is a sum of
steps, and a step from i to j is :math:`h_j - h_i`.

==========  =====================================================================================
spans       as published: for random :math:`s < r < t`, :math:`h_r - h_s` predicts
            :math:`h_t - h_r`
patches     as in the released code: what a random patch leaves of source and target predicts
            the patch; what lies between source and target content belongs to neither
==========  =====================================================================================

The released code leaves out what comes before the content of the source, too, unless its flag
``random_span_all`` is set, as it is here.
"""

from collections.abc import Sequence
from random import Random

Step = tuple[int, int]  # from one index of a path to a later one

# A patch that lies across what is between source and target is the sum of two steps, and what
# is left that of two more; one that does not leaves three.
STEPS = 3


def span_steps(length: int, random: Random) -> list[Step]:
    """The steps of a path of ``length`` tokens, 3 or more: three whose sum predicts, then three
    whose sum is predicted; those that are not needed go nowhere.
    """
    s, r, t = sorted(random.sample(range(length), 3))
    return [*_padded([(s, r)]), *_padded([(r, t)])]


def patch_steps(source: Step, target: Step, random: Random) -> list[Step]:
    """The same for a random patch of ``source`` and ``target``, all steps of either as one."""
    total = source[1] - source[0] + target[1] - target[0]
    first, last = 0, total
    while last - first == total:  # not all of it: nothing would be left
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
