"""Sequences of datasets: what a run starts from, trains on, and is scored on."""

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from erjepa.commands.experiment import main
from erjepa.studies.grid.cells import (
    cells,
    evaluation_command,
    scored_as,
    training_command,
)
from erjepa.studies.grid.config import load_experiment
from tests.harness.grids import Grid, calls, results, run, write_experiment

SEQUENCE = """
name: sequence
seeds: [1]
continual: True
datasets:
  first: {config: tiny_synth, dataset.size: 11}
  second: {config: tiny_synth, dataset.size: 12, epochs: 13}
  third: {config: tiny_synth, dataset.size: 13}
methods:
  Replay: {}
  Mixed: {replay.weight: 0, trains_on: so_far}
  Joint: {replay.weight: 0, trains_on: all}
  Base: {trains_on: nothing}
overrides: {epochs: 30}
budgets: [40, 80]
"""
PARTS = ["first", "second", "third"]


@pytest.fixture
def sequence(tmp_path):
    return load_experiment(str(write_experiment(tmp_path, SEQUENCE)))


def by_name(experiment):
    return {cell.name: cell for cell in cells(experiment)}


def test_what_a_run_starts_from(sequence, tmp_path):
    found = by_name(sequence)
    assert list(found) == [
        *("first/replay/seed_1", "first/mixed/seed_1"),
        *("second/replay/seed_1", "second/mixed/seed_1"),
        *("third/replay/seed_1", "third/mixed/seed_1"),
        *("third/joint/seed_1", "third/base/seed_1"),
    ]
    after = {name: cell.after for name, cell in found.items() if cell.after}
    assert after == {
        f"{stage}/{method}/seed_1": [f"{one}/{method}/seed_1" for one in PARTS[:n]]
        for method in ("replay", "mixed")
        for n, stage in enumerate(PARTS[1:], start=1)
    }

    def carried(cell, experiment=sequence):
        after = [tmp_path / name for name in cell.after]
        command = training_command(experiment, cell, tmp_path / cell.name, None, after)
        keys = ("init_from", "base_adapters")
        return [argument for argument in command if any(k in argument for k in keys)]

    start = tmp_path / "first/replay/seed_1"
    second = found["second/replay/seed_1"]
    expected = [f"init_from={start}/flops_1", f"replay.init_from={start}/flops_1"]
    assert carried(second) == expected
    assert not carried(found["first/replay/seed_1"])
    assert not carried(found["third/joint/seed_1"])
    by_epochs = replace(sequence, budgets=None)
    assert carried(second, by_epochs)[0] == f"init_from={start}"
    # A method may carry on the weights alone.
    own = {**second.overrides, "replay.init_from": None}
    weights_alone = carried(replace(second, overrides=own))
    assert weights_alone == ["replay.init_from=null", expected[0]]
    # One that trains a new adapter at each stage merges all those before it.
    third = replace(found["third/replay/seed_1"], new_adapter=True)
    folders = [tmp_path / name for name in third.after]
    ends = ", ".join(f'"{folder}/flops_1"' for folder in folders)
    merged = f"base_adapters=[{ends}]"
    assert carried(third) == [merged, f"replay.init_from={folders[1]}/flops_1"]
    scored = evaluation_command(sequence, third, tmp_path, [tmp_path], folders)
    # Every dataset of the sequence is scored by its own command.
    assert merged in scored and "eval_earlier=false" in scored
    # The first run alone continues a run from outside.
    own = {**second.overrides, "continue_from": "/january"}
    assert "continue_from=/january" in training_command(
        sequence, replace(found["first/replay/seed_1"], overrides=own), tmp_path
    )
    after = [tmp_path / name for name in second.after]
    command = training_command(
        sequence, replace(second, overrides=own), tmp_path, None, after
    )
    assert {"continue_from=null", *expected} < {*command}
    assert "continue_from=/january" not in command
    # If each run starts without the one before it, all of them continue it.
    own |= {"init_from": None, "replay.init_from": None}
    command = training_command(
        sequence, replace(second, overrides=own), tmp_path, None, after
    )
    assert "continue_from=/january" in command
    # One that replays the step's own pairs has no memory to carry on.
    own = {**second.overrides, "replay.selection": "current_batch"}
    assert carried(replace(second, overrides=own)) == expected[:1]
    # Keys of replay count however they are written.
    for replay in ({"selection": "current_batch"}, {"weight": 0}):
        own = {**second.overrides, "replay": replay}
        assert carried(replace(second, overrides=own)) == expected[:1]
    own = {**second.overrides, "replay": {"init_from": None, "capacity": 7}}
    whole, *others = carried(replace(second, overrides=own))
    assert '"init_from": null' in whole and others == expected[:1]


def test_what_it_trains_on(sequence):
    found = by_name(sequence)

    def sizes(name):
        overrides = found[name].overrides
        parts = overrides.get("dataset", [])
        assert not parts or "dataset.size" not in overrides
        return [part["size"] for part in parts] or [overrides["dataset.size"]]

    assert sizes("second/replay/seed_1") == [12]
    assert sizes("first/mixed/seed_1") == [11]
    assert sizes("second/mixed/seed_1") == [11, 12]
    assert sizes("third/mixed/seed_1") == sizes("third/joint/seed_1") == [11, 12, 13]
    assert found["second/mixed/seed_1"].overrides["epochs"] == 13  # of its dataset


def test_joint_training_has_the_compute_of_all(sequence, tmp_path):
    found = by_name(sequence)
    joint = training_command(sequence, found["third/joint/seed_1"], tmp_path)
    assert joint[-2:] == ["checkpoint_at_flops=[120.0, 240.0]", "stop.flops=240.0"]
    last = training_command(sequence, found["third/replay/seed_1"], tmp_path / "a/b/c")
    assert last[-2:] == ["checkpoint_at_flops=[40.0, 80.0]", "stop.flops=80.0"]


def test_every_dataset_is_scored_as_its_own_config_says(sequence):
    for cell in cells(sequence):
        scored = scored_as(sequence, cell)
        assert [one.dataset for one in scored] == PARTS
        assert {(one.method, one.seed) for one in scored} == {(cell.method, 1)}
        epochs = [one.overrides["epochs"] for one in scored]
        assert epochs == [30, 13, 30]


# Methods without replay take 10 operations a step, the other 20.
STEPS = {"Replay": [2, 4], "Mixed": [4, 8], "Joint": [12, 24], "Base": [0]}


def lines(folder):
    keys = ("method", "stage", "dataset", "steps")
    return sorted(tuple(line[key] for key in keys) for line in results(folder))


EXPECTED = sorted(
    (method, stage, dataset, steps)
    for method, stages in (
        *(("Replay", PARTS), ("Mixed", PARTS)),
        *(("Joint", PARTS[-1:]), ("Base", PARTS[-1:])),
    )
    for stage in stages
    for dataset in PARTS
    for steps in STEPS[method]
)


@pytest.fixture
def fake_sequence(fake):
    """Folder of a sequence whose grid runs the stand-in for ``tune``."""
    write_experiment(fake, SEQUENCE)
    return fake


def test_every_dataset_after_every_stage(fake_sequence, capsys):
    assert run(fake_sequence) == 0
    assert lines(fake_sequence) == EXPECTED
    printed = capsys.readouterr().out
    assert "third/replay/seed_1: scoring flops_0, flops_1 on first" in printed
    assert "third/base/seed_1: scoring the base model on second" in printed
    out = fake_sequence / "out"
    for line in results(fake_sequence):
        assert (out / line["predictions"]).is_file()
        assert line["cell"].startswith(f"{line['stage']}/")
    predictions = {line["predictions"] for line in results(fake_sequence)}
    assert len(predictions) == len(EXPECTED)
    told = len(calls(fake_sequence))
    assert run(fake_sequence) == 0 and len(calls(fake_sequence)) == told


@pytest.mark.slow
def test_stages_scored_on_their_own_dataset(fake_sequence):
    """All datasets, and further ones, are scored after the last."""
    keys = ["score_stages=own", "also_scored={extra: tiny_synth}"]
    assert run(fake_sequence, *keys) == 0
    expected = [line for line in EXPECTED if PARTS[-1] == line[1] or line[1] == line[2]]
    assert expected != EXPECTED
    found = lines(fake_sequence)
    further = [line for line in found if line[2] == "extra"]
    assert {line[1] for line in further} == {"third"}
    assert {line[0] for line in further} == {*STEPS}
    assert [line for line in found if line not in further] == expected


def test_further_datasets_are_scored(tmp_path):
    """A section that one sets as a whole replaces what is said of it for all runs."""
    own = {"_component_": "erjepa.datasets.synthetic_nl_rx_dataset", "split": "train"}
    extra = {"config": "tiny_continual", "dataset": {**own, "size": 3}}
    keys = [f"also_scored={json.dumps({'extra': extra})}"]
    path = str(write_experiment(tmp_path, SEQUENCE))
    found = load_experiment(path, [*keys, "overrides.dataset.grammar_seed=1"])
    for cell in cells(found):
        *trained, further = scored_as(found, cell)
        assert (further.dataset, further.config) == ("extra", "tiny_continual")
        assert further.overrides["dataset"]["size"] == 3
        assert "dataset.grammar_seed" not in further.overrides
        assert {one.overrides["dataset.grammar_seed"] for one in trained[:1]} == {1}


def test_averaged_weights_of_a_sequence(fake_sequence, capsys):
    keys = ["overrides.ema_decay=0.9", "score_weights=[last,ema]", "budgets=[40]"]
    keys += ["also_scored={extra: tiny_synth}"]
    assert run(fake_sequence, *keys, "order=[first,second]") == 0
    printed = capsys.readouterr().out
    found = results(fake_sequence)
    last, averaged = (
        {(line["cell"], line["dataset"]) for line in found if line["weights"] == kind}
        for kind in ("last", "ema")
    )
    assert last == averaged and ("second/base/seed_1", "first") in averaged
    assert ("first/replay/seed_1", "extra") in averaged
    assert len(found) == 2 * len(last)
    # Of the last weights, as in the tables.
    (own,) = (
        line["accuracy"]
        for line in found
        if (line["cell"], line["dataset"]) == ("first/replay/seed_1", "first")
        and line["weights"] == "last"
    )
    assert f"first/replay/seed_1: accuracy {own:.1%} at the end" in printed


def test_a_stage_that_starts_from_no_run_waits_for_none(tmp_path):
    alone = "Alone: {init_from: null, replay: {init_from: null, weight: 1}}"
    text = SEQUENCE.replace("methods:", f"methods:\n  {alone}")
    found = by_name(load_experiment(str(write_experiment(tmp_path, text))))
    assert not found["third/alone/seed_1"].needs
    assert len(found["third/replay/seed_1"].needs) == 2


@pytest.mark.slow
def test_a_stage_waits_for_the_one_before(fake_sequence, monkeypatch):
    """Runs take a while, and the stand-in needs what it is to start from."""
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.1")
    assert run(fake_sequence, "devices=[0,1,2,3]") == 0
    assert lines(fake_sequence) == EXPECTED


@pytest.mark.slow
def test_what_follows_a_failed_run_fails(fake_sequence, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe replay/seed_1")
    assert run(fake_sequence) == 1
    needs = "failed: it needs the weights of"
    printed = capsys.readouterr().out
    assert f"second/replay/seed_1: {needs} first/replay/seed_1" in printed
    assert f"third/replay/seed_1: {needs} first/replay/seed_1" in printed
    assert lines(fake_sequence) == [line for line in EXPECTED if line[0] != "Replay"]
    monkeypatch.delenv("FAKE_FAILURE")
    assert run(fake_sequence) == 0
    assert lines(fake_sequence) == EXPECTED


@pytest.mark.slow
def test_a_lost_early_run_is_run_again(fake_sequence):
    assert run(fake_sequence) == 0
    for stage in ("first", "third"):
        shutil.rmtree(fake_sequence / "out" / "cells" / stage / "replay")
    (fake_sequence / "out" / "results.jsonl").unlink()
    assert run(fake_sequence, "devices=[0,1]") == 0
    assert lines(fake_sequence) == EXPECTED


@pytest.mark.slow
def test_a_killed_sequence_goes_on(fake_sequence):
    assert run(fake_sequence) == 0
    expected = sorted(results(fake_sequence), key=str)
    again = fake_sequence / "again"
    again.mkdir()
    write_experiment(again, SEQUENCE)
    for seconds in (0.4, 0.9, 1.4):
        grid = Grid(again, FAKE_STEP_SECONDS="0.02")
        time.sleep(seconds)
        assert not grid.ended()
        grid.signal(signal.SIGKILL)
        grid.wait()
    last = Grid(again)
    assert last.wait() == 0, last.printed()
    assert sorted(results(again), key=str) == expected


@pytest.mark.slow
def test_another_sequence_is_another_experiment(fake_sequence, capsys):
    assert run(fake_sequence) == 0
    path = fake_sequence / "fake.yaml"
    whole = path.read_text()
    fourth = "  fourth: tiny_synth\nmethods:"
    for changed in (
        whole.replace("methods:", fourth),
        whole.replace("first:", "1st:").replace("third:", "first:"),
    ):
        path.write_text(changed)
        with pytest.raises(SystemExit):
            run(fake_sequence)
        assert "was started with the sequence of datasets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["datasets={a: tiny_synth}"], "continual=True needs a sequence of datasets"),
        (["score_on=validation"], "score_on must be test"),
        (["methods={a: {trains_on: some}}"], "should be 'so_far', 'all' or 'nothing'"),
        (
            ["methods={a: {new_adapters: true}}", "continual=False"],
            "methods: a: new_adapters=True needs a sequence",
        ),
        (["continual=False"], "methods: Mixed: trains_on=so_far needs a sequence"),
        (
            ["also_scored={a: tiny_synth}", "continual=False", "methods={a: {}}"],
            "also_scored needs a sequence",
        ),
        (["also_scored={first: tiny_synth}"], "also_scored names one of datasets"),
        (
            ["score_stages=own", "continual=False", "methods={a: {}}"],
            "score_stages=own needs a sequence",
        ),
        (
            ["also_scored={a: {config: tiny_synth, databass: x}}"],
            r"Replay on a \(tiny_synth\): .*databass",
        ),
    ],
)
def test_errors(tmp_path, arguments, message):
    path = write_experiment(tmp_path, SEQUENCE)
    with pytest.raises(ValueError, match=message):
        load_experiment(str(path), arguments)


def test_show_prints_every_stage(tmp_path, capsys):
    path = write_experiment(tmp_path, SEQUENCE)
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out.partition("first of each sequence:\n")[2]
    commands = shown.splitlines()
    assert len(commands) == 3 + 3 + 1 + 1
    second = commands[1]
    start = Path(tmp_path / "out" / "cells" / "first" / "replay" / "seed_1" / "flops_1")
    assert f"replay.init_from={start} " in second
    assert "erjepa_eval" in commands[-1] and "base_only=true" in commands[-1]


def test_a_run_of_matched_tokens_goes_on_from_its_end(fake):
    """Which is not at a budget: here it comes before the last."""
    write_experiment(fake, SEQUENCE)
    parts = [f"{part}: {{config: tiny_synth}}" for part in PARTS[:2]]
    methods = "ER-JEPA: {}, Matched: {replay.weight: 0, stop.tokens_of: ER-JEPA}"
    changes = [f"datasets={{{', '.join(parts)}}}", f"methods={{{methods}}}"]
    assert run(fake, *changes, "budgets=[40,450]", "overrides.epochs=300") == 0
    first = fake / "out/cells/first/matched/seed_1"
    assert not (first / "flops_1").exists()
    log = (fake / "out/cells/second/matched/seed_1/run.log").read_text()
    assert f"init_from={first}\n" in log.replace(" ", "\n")


def test_an_untrained_cell_keeps_its_scores_when_it_is_tried_again(fake, monkeypatch):
    write_experiment(fake, SEQUENCE)
    alone = "methods={Base: {trains_on: nothing}}"
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_eval base/seed_1")
    assert run(fake, alone) == 1
    (kept,) = (fake / "out/cells/third/base/seed_1").glob("on_first/*/*/predictions*")
    kept.write_text("kept")
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_eval seed_1/on_first")
    assert run(fake, alone) == 1
    assert kept.read_text() == "kept"
