"""Averaged weights follow their equation, on any number of ranks, after kills, in every checkpoint.

The average of a run equals a plain loop over the weights of its steps; a run on two ranks and a
killed and resumed run equal an uninterrupted one; the scored weights are the exported ones.
"""

import json

import pytest
import torch
from peft import PeftModel

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.manifest import damage
from erjepa.training.model.averaged import AveragedWeights
from tests.harness.runs import (
    FULL_BUILDER,
    adapter_of,
    at_start,
    evaluate,
    kill_at_step,
    predictions,
    small_config,
    tiny,
    train,
    train_and_kill,
    whole,
)
from tests.harness.transformers_models import from_pretrained, logits_of
from tests.reference.plain_average import plain_average

DECAY = 0.5  # reached at the eighth step
BUDGETS = [2e8]  # FLOPs, within the first epoch
SHORT = {"max_steps_per_epoch": 4, "checkpoint_at_flops": BUDGETS}


def config(base, data, output_dir, **overrides):
    settings = {"ema_decay": DECAY, "replay__selection": "uniform", **overrides}
    return small_config(base, data, output_dir, **settings)


def record_steps(monkeypatch):
    """The trained weights at the start and after each step, as they come."""
    steps, update, start = [], AveragedWeights.update, AveragedWeights.__init__

    def recorded(self):
        steps.append({name: whole(w).double() for name, w in self._weights.items()})

    def started(self, *arguments):
        start(self, *arguments)
        recorded(self)

    def updated(self):
        update(self)
        recorded(self)

    monkeypatch.setattr(AveragedWeights, "__init__", started)
    monkeypatch.setattr(AveragedWeights, "update", updated)
    return steps


@pytest.mark.parametrize(
    ("model", "dtypes"),
    [
        ("adapters", "fp32"),
        ("full", "bf16"),
        pytest.param("adapters", "bf16", marks=pytest.mark.slow),
        pytest.param("full", "fp32", marks=pytest.mark.slow),
    ],
)
def test_the_average_is_that_of_the_equation(
    base, data, tmp_path, monkeypatch, model, dtypes
):
    steps = record_steps(monkeypatch)
    settings = {"model": FULL_BUILDER} if model == "full" else {}
    settings |= {"dtype": dtypes, "trainable_dtype": dtypes, "stop__steps": 9}

    def found(recipe):
        return steps, recipe._averaged.gather()

    ((steps, averages),) = train(config(base, data, tmp_path, **settings), 1, found)
    assert len(steps) == 10
    assert any("predictor" in name for name in averages)
    for name, average in averages.items():
        weights = [step[name].flatten()[:40].tolist() for step in steps]
        expected = torch.tensor(plain_average(weights, DECAY), dtype=torch.float64)
        assert average.dtype == torch.float32
        torch.testing.assert_close(
            average.flatten()[:40].double(), expected, rtol=1e-5, atol=1e-7
        )
    assert any((steps[-1][name] != a).any() for name, a in averages.items())


@pytest.fixture(scope="module")
def unbroken(base, data, tmp_path_factory):
    """Two epochs of four steps on two ranks, with a budget in the first."""
    output_dir = tmp_path_factory.mktemp("unbroken")
    cfg = config(base, data, output_dir, **SHORT)
    averages, _ = train(cfg, 2, lambda recipe: recipe._averaged.gather())
    return output_dir, averages


def test_every_checkpoint_holds_them(unbroken):
    output_dir, averages = unbroken
    for name in ("flops_0", "epoch_0", "epoch_1"):
        path = output_dir / name
        last, averaged = adapter_of(path), adapter_of(path / "ema")
        assert last.keys() == averaged.keys()
        assert any(not torch.equal(last[k], averaged[k]) for k in last)
        progress = [checkpoint.load_progress(p) for p in (path, path / "ema")]
        assert progress[0] == progress[1]
        assert damage(path) is None and damage(path / "ema") is None
        listed = json.loads((path / "manifest.json").read_text())["files"]
        assert f"ema/{checkpoint.ADAPTER}" in listed and "ema/predictor.pt" in listed
    for key, value in adapter_of(output_dir / "epoch_1" / "ema").items():
        name = key if key == "predictor" else f"decoder.{key}"
        assert torch.equal(value, averages[name])


def test_they_change_nothing_else(base, data, tmp_path, unbroken):
    train(config(base, data, tmp_path, ema_decay="null", **SHORT), 2)
    assert not list(tmp_path.rglob("ema"))
    for name in ("flops_0", "epoch_0", "epoch_1"):
        mine, theirs = adapter_of(tmp_path / name), adapter_of(unbroken[0] / name)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.slow
def test_ranks_average_alike(base, data, tmp_path, unbroken):
    (one,) = train(
        config(base, data, tmp_path, batch_size=8, **SHORT),
        1,
        lambda recipe: recipe._averaged.gather(),
    )
    assert one.keys() == unbroken[1].keys()
    for name, average in unbroken[1].items():
        torch.testing.assert_close(one[name], average, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.slow
def test_killed_and_resumed(base, data, tmp_path, unbroken, ranks):
    train_and_kill(config(base, data, tmp_path, **SHORT), 2, kill_at_step(6))
    resumed = {"resume_from_checkpoint": True, "batch_size": 8 // ranks}
    train(config(base, data, tmp_path, **SHORT, **resumed), ranks)
    expected = adapter_of(unbroken[0] / "epoch_1" / "ema")
    for key, value in adapter_of(tmp_path / "epoch_1" / "ema").items():
        if ranks == 2:
            assert torch.equal(value, expected[key]), key
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-6)


def test_a_resumed_run_keeps_its_decay_or_says_so(base, data, tmp_path):
    train(config(base, data, tmp_path, stop__steps=2, ema_decay="null"))
    resumed = {"resume_from_checkpoint": True, "stop__steps": 3}
    with pytest.raises(ValueError, match="ema_decay: None there, 0.5 here"):
        train(config(base, data, tmp_path, **resumed))
    resumed["resume_changes"] = "[ema_decay]"
    (steps,) = train(
        config(base, data, tmp_path, **resumed),
        1,
        lambda recipe: recipe._averaged._steps,
    )
    assert steps == 1  # an average that begins late


@pytest.mark.slow
def test_the_average_of_an_earlier_run_goes_on(
    base, data, tmp_path, monkeypatch, carried
):
    """By the equation, from the earlier average at its step; over ranks and an interruption."""
    steps = record_steps(monkeypatch)
    short = {"ema_decay": 0.9, "optimizer__lr": 3e-2, "stop__steps": 3}
    train(config(base, data, tmp_path / "first", **short))
    first = tmp_path / "first" / "epoch_0_step_3"

    def run(name, ranks, **more):
        own = {"init_from": first, "batch_size": 8 // ranks, **short, **more}
        train(config(base, data, tmp_path / name, **own), ranks)
        return adapter_of(checkpoint.newest(tmp_path / name) / "ema")

    cfg = config(base, data, tmp_path / "one", init_from=first, batch_size=8, **short)
    ((fast, said),) = train(cfg, 1, lambda _: (steps, carried))
    assert said == [f"weights of {first}", "their average over 3 steps"]
    slow = {name: weight.double() for name, weight in adapter_of(first / "ema").items()}
    for t, weights in enumerate(fast[1:], start=4):
        decay = min(0.9, (1 + t) / (10 + t))
        for name, weight in slow.items():
            new = weights[name if name == "predictor" else f"decoder.{name}"]
            slow[name] = decay * weight + (1 - decay) * new
    one = adapter_of(tmp_path / "one" / "epoch_0_step_3" / "ema")
    two = run("two", 2)
    part = {**short, "stop__steps": 2}
    train(config(base, data, tmp_path / "part", init_from=first, **part), 2)
    resumed = run("part", 2, resume_from_checkpoint=True)
    for name, expected in slow.items():
        torch.testing.assert_close(one[name].double(), expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)
        assert torch.equal(resumed[name], two[name])
    progress = checkpoint.load_progress(tmp_path / "part" / "epoch_0_step_3")
    assert (progress["steps"], progress["averaged_steps"]) == (3, 6)
    still = {"optimizer__lr": 0.0, "stop__steps": 1}
    of_scale_2 = run("scale_2", 1, **still)
    of_scale_4 = run("scale_4", 1, **still, model__lora_alpha=16)
    for name, weight in of_scale_2.items():
        halved = weight / 2 if "lora_b" in name else weight
        assert torch.equal(of_scale_4[name], halved), name


def test_without_an_earlier_average_a_run_begins_one(
    base, data, tmp_path, monkeypatch, carried
):
    train(config(base, data, tmp_path / "first", stop__steps=1, ema_decay="null"))
    cfg = config(base, data, tmp_path, init_from=tmp_path / "first", stop__steps=1)
    steps = record_steps(monkeypatch)
    ((said, seen, count),) = train(
        cfg, 1, lambda r: (carried, steps, r._averaged._steps)
    )
    assert said[1:] == [
        "no average of them, so the average of this run starts from them"
    ]
    assert (len(seen), count) == (2, 1)


def test_an_average_that_is_not_continued_is_named(base, data, tmp_path, carried):
    train(config(base, data, tmp_path / "first", stop__steps=1))
    first = tmp_path / "first" / "epoch_0_step_1"
    cfg = config(base, data, tmp_path, init_from=first, ema_decay="null")
    expected = [f"weights of {first}", "their average not continued, as ema_decay=null"]
    assert at_start(cfg, 1, lambda _: carried) == expected


@pytest.mark.parametrize("part", ["ema", "adapter"])
def test_a_part_of_a_checkpoint_is_continued_with_its_memory(
    base, data, tmp_path, warned, part
):
    train(config(base, data, tmp_path / "first", stop__steps=1))
    start = tmp_path / "first" / "epoch_0_step_1" / part
    cfg = config(base, data, tmp_path / "second", continue_from=start)
    assert at_start(cfg, 1, lambda recipe: len(recipe._memory.earlier)) > 0
    cfg = config(base, data, tmp_path / "second", init_from=start)
    said = at_start(cfg, 1, lambda _: warned)
    assert any(f"none of it: continue_from={start}" in text for text in said)


def test_merged_and_peft_compute_what_they_do(base, data, tmp_path):
    train(config(base, data, tmp_path, stop__steps=3, optimizer__lr=3e-2))
    path = tmp_path / "epoch_0_step_3"
    merged, last = (logits_of(from_pretrained(p)) for p in (path / "ema", path))
    peft = PeftModel.from_pretrained(from_pretrained(base), path / "ema" / "adapter")
    torch.testing.assert_close(logits_of(peft), merged, rtol=0, atol=1e-4)
    assert (merged - last).abs().max() > 1e-2
    assert not list((path / "ema").glob("**/memory"))


def test_they_are_scored_beside_the_last(tmp_path):
    short = ["eval_dataset.size=4", "max_new_tokens=6", "optimizer.lr=3e-2"]
    short += ["ema_decay=0.5", "lr_scheduler.num_warmup_steps=0", "stop.steps=3"]
    train(tiny(tmp_path, *short, "save_adapter_weights_only=True", "epochs=1"))
    evaluate(tiny(tmp_path, *short, "checkpoint=both"))
    last, averaged = (
        predictions(tmp_path, n) for n in ("epoch_0_step_3", "epoch_0_step_3_ema")
    )
    assert [p["id"] for p in last] == [p["id"] for p in averaged]
    assert [p["output"] for p in last] != [p["output"] for p in averaged]
    alone, path = tmp_path / "alone", tmp_path / "epoch_0_step_3" / "ema"
    given = tiny(alone, *short, f"checkpoint_dir={path}")
    assert evaluate(given).weights == "averaged adapter"
    assert predictions(alone, "epoch_0_step_3_ema") == averaged
    card = (path / "README.md").read_text()
    assert "| `epoch_0_step_3_ema` | averaged adapter |" in card

    (tmp_path / "other").mkdir()
    absent = ["checkpoint=ema", f"checkpoint_dir={tmp_path / 'other'}"]
    with pytest.raises(FileNotFoundError, match="checkpoint=ema: .* no averaged weigh"):
        evaluate(tiny(tmp_path, *absent))
