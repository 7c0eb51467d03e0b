"""For a checkpoint of another model, the error names the first of each kind of difference."""

import pytest
import torch

from erjepa.training.model.build import require_same_model

MODEL = {"a": torch.empty(2, 3), "b": torch.empty(4), "c": torch.empty(5)}


def test_the_same_model():
    require_same_model(
        MODEL, {name: torch.ones_like(MODEL[name]) for name in MODEL}, ""
    )


def test_all_differences_in_one_message():
    weights = {"y": torch.empty(1), "a": torch.empty(3, 2), "c": torch.empty(6)}
    with pytest.raises(ValueError) as error:
        require_same_model(MODEL, {**weights, "z": torch.empty(1)}, "/base")
    assert str(error.value).startswith(
        "/base holds another model than the config's: it lacks b (1 such); it has y (2 "
        "such); of another shape, a is [3, 2], not [2, 3] (2 such). Name"
    )
