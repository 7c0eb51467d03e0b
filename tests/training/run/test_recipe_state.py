"""The state that a run resumes besides weights and memory, and which keys may change it."""

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from erjepa.configs import Stop
from erjepa.training.lr_schedule import get_linear_schedule_with_warmup
from erjepa.training.run import recipe_state
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.recipe_state import RecipeState


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(recipe_state, "gather_objects", lambda own: [own])


def linear(optimizer):
    return get_linear_schedule_with_warmup(optimizer, num_training_steps=10)


def halving(optimizer):
    return StepLR(optimizer, step_size=1, gamma=0.5)


class Run:
    """A linear model in training."""

    def __init__(self, lr=0.1, weight_decay=0.01, schedule=linear, kind="AdamW"):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)
        optimizer = getattr(torch.optim, kind)
        self.optimizer = optimizer(
            self.model.parameters(), lr=lr, weight_decay=weight_decay
        )
        self.schedule = schedule(self.optimizer)
        self.progress = RunProgress(2, 5, Stop())
        self.state = RecipeState(
            *(self.model, self.optimizer, self.schedule, self.progress),
            torch.device("cpu"),
        )

    def train(self, steps):
        for _ in range(steps):
            self.model(torch.rand(4, 3)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.progress.count(tokens=10, flops=100)
            self.progress.advance(0.5)
        return self

    @property
    def rate(self):
        (group,) = self.optimizer.param_groups
        assert self.schedule.get_last_lr() == [group["lr"]]
        return group["lr"]

    def resume(self, saved, changed=()):
        """Continue another run, whose weights are loaded elsewhere."""
        self.model.load_state_dict(saved.model.state_dict())
        self.state.load_state_dict(deepcopy(saved.state.state_dict()), changed)
        return self


@pytest.mark.parametrize("schedule", [linear, halving])
def test_a_resumed_run_is_the_run_that_did_not_stop(schedule):
    run = Run(schedule=schedule).train(3)
    resumed = Run(schedule=schedule, weight_decay=0.5).resume(run)
    random = torch.get_rng_state()
    run.train(4)
    torch.set_rng_state(random)  # what state_dict held, and load_state_dict put back
    resumed.train(4)
    for name, weight in run.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight)
    assert vars(resumed.progress) == vars(run.progress)
    assert resumed.rate == run.rate


def test_the_random_state_is_that_of_the_checkpoint():
    run = Run().train(1)
    saved = run.state.state_dict()
    expected = torch.rand(5)
    torch.manual_seed(9)
    run.state.load_state_dict(saved)
    assert torch.equal(torch.rand(5), expected)


def test_on_another_number_of_ranks_the_random_state_stays(monkeypatch):
    run = Run().train(1)
    saved = run.state.state_dict()
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    torch.manual_seed(9)
    expected = torch.rand(5)
    torch.manual_seed(9)
    run.state.load_state_dict(saved)
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("schedule", [linear, halving])
def test_a_changed_rate_is_that_of_this_run_where_the_schedule_is(schedule):
    run = Run(schedule=schedule, lr=0.1).train(4)
    resumed = Run(schedule=schedule, lr=0.02, weight_decay=0.5)
    resumed.resume(run, ["optimizer.lr"])
    assert resumed.rate == pytest.approx(run.rate / 5)
    (group,) = resumed.optimizer.param_groups
    assert group["weight_decay"] == 0.01  # which was not to change
    run.schedule.step()
    resumed.schedule.step()
    assert resumed.rate == pytest.approx(run.rate / 5)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.1), 1e-5),
        (lambda optimizer: CosineAnnealingLR(optimizer, T_max=8), 0.05),
        (
            lambda optimizer: get_linear_schedule_with_warmup(
                optimizer, num_training_steps=16
            ),
            0.075,
        ),
    ],
)
def test_settings_of_the_schedule_are_those_of_this_run(schedule, rate):
    """As if it had had them from the start."""
    resumed = Run(schedule=schedule).resume(Run(schedule=halving).train(4))
    assert resumed.rate == pytest.approx(rate)


def test_another_changed_key_leaves_rate_and_moments():
    run = Run().train(4)
    resumed = Run(weight_decay=0.5).resume(run, ["optimizer.weight_decay"])
    assert resumed.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert resumed.rate == run.rate
    moments, expected = (
        [state["exp_avg"] for state in found.optimizer.state.values()]
        for found in (resumed, run)
    )
    assert all(map(torch.equal, moments, expected)) and len(expected) == 2


def test_another_optimizer_starts_anew_at_its_rate():
    run = Run().train(4)
    resumed = Run(lr=0.02, weight_decay=0.5, kind="SGD")
    resumed.resume(run, ["optimizer._component_"])
    assert not resumed.optimizer.state
    assert resumed.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert resumed.rate == pytest.approx(run.rate / 5)
    assert resumed.progress.steps == 4
