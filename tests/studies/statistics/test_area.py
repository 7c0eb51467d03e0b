"""Areas, against hand-worked values."""

import pytest

from erjepa.studies.statistics.area import normalized_auc


def test_normalized_auc():
    assert normalized_auc([1, 2, 5], [0.4, 0.4, 0.4]) == pytest.approx(0.4)
    # (0.5 * 1 + 0.75 * 3) / 4
    assert normalized_auc([1, 2, 5], [0.25, 0.75, 0.75]) == pytest.approx(0.6875)
    for budgets, values in (([1], [1]), ([1, 2], [1]), ([2, 1], [1, 1])):
        with pytest.raises(ValueError, match="budgets"):
            normalized_auc(budgets, values)
