"""The learning rate over a run, against transformers'."""

import pytest
import torch
from transformers import get_linear_schedule_with_warmup as theirs

from erjepa.configs import load
from erjepa.training.lr_schedule import get_linear_schedule_with_warmup


def rates(build, steps, **kwargs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = build(optimizer, **kwargs)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("warmup", [0, 3])
def test_falls_to_zero_as_in_transformers(warmup):
    lengths = {"num_training_steps": 8, "num_warmup_steps": warmup}
    assert rates(get_linear_schedule_with_warmup, 10, **lengths) == pytest.approx(
        rates(theirs, 10, **lengths)
    )


def test_a_final_factor_of_one_is_constant():
    kwargs = {"num_training_steps": 6, "num_warmup_steps": 2, "final_factor": 1.0}
    found = rates(get_linear_schedule_with_warmup, 8, **kwargs)
    assert found == [0.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_ends_at_the_final_factor():
    kwargs = {"num_training_steps": 5, "final_factor": 0.2}
    found = rates(get_linear_schedule_with_warmup, 7, **kwargs)
    assert found == pytest.approx([0.5, 0.42, 0.34, 0.26, 0.18, 0.1, 0.1])


def test_falls_to_where_the_run_stops():
    """As if all epochs had as many steps; where that is estimated, the end counts."""
    kwargs = {"num_training_steps": 99, "num_warmup_steps": 2, "until": "stop"}
    known = rates(
        get_linear_schedule_with_warmup, 7, expected_steps=lambda: 6, **kwargs
    )
    assert known == rates(theirs, 7, num_training_steps=6, num_warmup_steps=2)
    estimates = iter([99, 12, 9, 7, 6])
    kwargs |= {"num_warmup_steps": 0, "final_factor": 0.2}
    found = rates(
        get_linear_schedule_with_warmup,
        4,
        expected_steps=lambda: next(estimates),
        **kwargs,
    )
    factors = [1, 1 - 0.8 / 12, 1 - 0.8 * 2 / 9, 1 - 0.8 * 3 / 7]
    assert found == pytest.approx([0.5 * factor for factor in factors])


@pytest.mark.parametrize(
    "bad", ["final_factor=-0.1", "final_factor=1.5", "num_warmup_steps=-1"]
)
def test_bad_values(bad):
    key, _, value = bad.partition("=")
    with pytest.raises(ValueError, match=f"lr_scheduler.{key}: .*got {value}"):
        load("tiny_synth", [f"lr_scheduler.{bad}"])


def test_a_line_to_the_end_of_the_run_needs_its_steps():
    with pytest.raises(ValueError, match="needs expected_steps"):
        rates(get_linear_schedule_with_warmup, 1, num_training_steps=5, until="stop")
