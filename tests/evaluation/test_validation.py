"""Checks of the keys of validation."""

import pytest

from erjepa.evaluation.validation import check_validation


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"size": 0}, "validation.size must be .* at least 1, got 0"),
        ({"size": 0.1}, "validation.size must be a whole number .* got 0.1"),
        ({"size": True}, "validation.size must be a whole number .* got True"),
        ({"size": 9, "seed": -1}, "validation.seed must be .* at least 0, got -1"),
        ({"size": 9, "seed": None}, "validation.seed must be .* got None"),
        ({"size": 9, "generate": -1}, "validation.generate must be .* got -1"),
        ({"size": 9, "generate": None}, "validation.generate must be .* got None"),
        (
            {"size": 9, "generate": 10},
            "validation.generate=10 is more than validation.size=9",
        ),
        (
            {"size": 9, "eval_every_n_steps": 0},
            "eval_every_n_steps must be .* at least 1, got 0",
        ),
        (
            {"size": 9, "keep_best": "yes"},
            "keep_best must be True or False, got 'yes'",
        ),
        ({"generate": 3}, "validation.generate=3 needs .*set validation.size"),
        ({"keep_best": True}, "keep_best=True needs .*set validation.size"),
        ({"eval_every_n_steps": 5}, "eval_every_n_steps=5 needs .*validation.size"),
    ],
)
def test_wrong_settings_name_their_key(settings, message):
    with pytest.raises(ValueError, match=message):
        check_validation(**settings)


def test_right_settings():
    check_validation()
    check_validation(size=9, generate=9, eval_every_n_steps=1, keep_best=True)
