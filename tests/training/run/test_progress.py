"""The progress of a run: counts, checkpoint names, stopping, and resuming."""

import pytest

from erjepa.configs import Stop
from erjepa.training.run.progress import RunProgress


def after(steps, stop=(), epochs=2):
    run = RunProgress(epochs, 3, Stop(**dict(stop)))
    for _ in range(steps):
        run.count(tokens=10, flops=100)
        run.advance(0.5)
    return run


@pytest.mark.parametrize(
    ("steps", "name", "epoch"),
    [
        (1, "epoch_0_step_1", 1 / 3),
        (3, "epoch_0", 1),
        (5, "epoch_1_step_2", 5 / 3),
        (6, "epoch_1", 2),
    ],
)
def test_names_and_counts(steps, name, epoch):
    run = after(steps)
    assert run.checkpoint_name() == name
    assert run.summary() == {
        "steps": steps,
        "epoch": pytest.approx(epoch),
        "total_flops": 100 * steps,
        "total_tokens": 10 * steps,
        "train_seconds": 0.5 * steps,
    }
    assert run.is_over() == (steps == 6)


def test_it_is_time_every_so_many_steps_and_at_ends():
    times = {
        every: [after(n).is_time(every) for n in range(1, 7)] for every in (None, 2)
    }
    assert times[None] == [False, False, True, False, False, True]
    assert times[2] == [False, True, True, True, False, True]
    assert after(4, {"tokens": 40}).is_time(None)


@pytest.mark.parametrize("stop", [{"steps": 4}, {"tokens": 31}, {"flops": 400}])
def test_the_first_limit_ends_the_run(stop):
    limits = {"steps": None, "flops": 10_000, **stop}
    assert [after(n, limits).is_over() for n in (3, 4)] == [False, True]


def test_validations_are_judged_by_accuracy_then_by_loss():
    run = after(0)
    measured = [(0.5, 1.0), (0.4, 0.1), (0.5, 1.0), (0.5, 0.9), (0.6, 2.0)]
    judged = [run.judge({"val_loss": b, "val_accuracy": a}) for a, b in measured]
    assert judged == [True, False, False, True, True]
    assert run.best == {"val_accuracy": [0.6, -2.0]}
    run = after(0)
    losses = [2.0, 1.0, float("nan"), 1.0, 0.5]
    judged = [run.judge({"val_loss": loss}) for loss in losses]
    assert judged == [True, True, False, False, True]


def test_patience_counts_validations_in_a_row_that_found_nothing_better():
    run = after(1, {"patience": 2})
    found = []
    for loss in (3.0, 3.0, 2.0, 2.5, 2.1):
        run.judge({"val_loss": loss})
        found.append((run.stale, run.is_over()))
    assert found == [(0, False), (1, False), (0, False), (1, False), (2, True)]
    other = after(0, {"patience": 2})
    other.load_state_dict(run.state_dict())
    assert other.is_over()
    later = after(0, {"patience": 3})
    later.load_state_dict(run.state_dict())
    assert not later.is_over()


@pytest.mark.parametrize(
    ("steps", "stop", "expected"),
    [
        (0, {}, 6),
        (2, {"steps": 4}, 4),
        (0, {"steps": 4, "tokens": 10}, 4),
        (2, {"tokens": 35}, 4),
        (2, {"flops": 300, "steps": 5}, 3),
        (2, {"flops": 10_000}, 6),
        (4, {"tokens": 35}, 4),
        (4, {"tokens": 25}, 4),
        (2, {"patience": 1}, 6),
    ],
)
def test_the_length_of_a_run_is_expected_from_its_limits(steps, stop, expected):
    assert after(steps, stop).expected_steps() == expected


def test_a_run_goes_on_from_its_state():
    run, other = after(4), after(0)
    run.best, run.stale = {"val_loss": -1.0}, 3
    other.load_state_dict({**run.state_dict(), "optimizer": None})
    assert vars(other) == vars(run)
