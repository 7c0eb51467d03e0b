"""Area under a curve of accuracy."""

from collections.abc import Sequence

import numpy as np
from scipy import integrate


def normalized_auc(budgets: Sequence[float], values: Sequence[float]) -> float:
    """Area under ``values`` over ``budgets``, divided by the width of their range.

    By the trapezoid rule, which takes values to change linearly from one budget to the next;
    the range below the first budget counts for nothing. In the unit of ``values``.

    Raises:
        ValueError: if there are fewer than two budgets, or they do not increase.
    """
    if not len(budgets) == len(values) > 1 or np.any(np.diff(budgets) <= 0):
        raise ValueError(
            f"expected increasing budgets, two or more, and a value each; got {budgets} "
            f"and {values}"
        )
    return float(integrate.trapezoid(values, budgets) / (budgets[-1] - budgets[0]))
