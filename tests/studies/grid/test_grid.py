"""The grid with the real recipe: its output, and that kills do not change it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

from erjepa.checkpoints import checkpoint
from erjepa.commands.experiment import main
from tests.harness.fake_output import read_rows
from tests.harness.grids import results, untimed_results, write_small_experiment
from tests.harness.runs import read_metrics


@pytest.fixture(scope="module")
def base(deep_base):
    return deep_base


def test_one_cell(base, data, tmp_path, capsys):
    """Trained and scored by ``tune run`` at two budgets, the second its end."""
    budgets = [2.5e8, 5e8]
    methods = {"ER-JEPA content": {"ema_decay": 0.5}}
    keys = {"budgets": budgets, "score_weights": ["last", "ema"]}
    path = write_small_experiment(tmp_path, base, data, methods, **keys)
    assert main(["run", str(path)]) == 0, capsys.readouterr().out
    first, averaged_first, end, averaged = results(tmp_path)
    assert [line["weights"] for line in results(tmp_path)] == 2 * ["last", "ema"]
    for last, other in ((first, averaged_first), (end, averaged)):
        own = {"weights", "predictions", "accuracy", "readings", "eval_seconds"}
        assert last["predictions"] != other["predictions"]
        assert all(last[key] == other[key] for key in last.keys() - own)
    folder = tmp_path / "out" / "cells" / "pairs" / "er-jepa_content" / "seed_1"
    metrics = read_metrics(folder)
    assert [first["budget"], end["budget"]] == budgets
    assert [first["checkpoint"], end["checkpoint"]] == ["flops_0", "flops_1"]
    assert end["steps"] == len(metrics) and end["epoch"] == len(metrics) / 11
    for line in (first, averaged_first, end, averaged):
        at = metrics[line["steps"] - 1]
        assert line["total_flops"] == at["total_flops"]
        assert line["total_tokens"] == at["total_tokens"]
        losses = [step["lm_loss"] for step in metrics[: line["steps"]]]
        assert line["metrics"]["lm_loss"] == pytest.approx(fmean(losses), rel=1e-9)
        assert 0 < line["metrics"]["cosine_shuffled"] < 1
        predictions = read_rows(tmp_path / "out" / line["predictions"])
        right = sum(p["exact_match"] for p in predictions)
        assert line["accuracy"] == right / line["examples"] and len(predictions) == 44
        assert all(-1 <= p["cosine"] <= 1 for p in predictions)
        assert line["train_seconds"] > 0 and line["eval_seconds"] > 0
        assert metrics[line["steps"] - 2]["total_flops"] < line["budget"]
        assert line["total_flops"] >= line["budget"]
    assert not checkpoint.checkpoints(folder)  # only needed to resume


@pytest.mark.slow
def test_merged_weights(base, data, tmp_path, capsys):
    methods = {"SFT": {"replay.weight": 0, "loss.jepa_weight": 0, "stop.steps": 2}}
    path = write_small_experiment(tmp_path, base, data, methods)
    merged = {"merged": True, "alignment": False, "save_adapter_weights_only": False}
    arguments = [f"overrides.{key}={value}" for key, value in merged.items()]
    assert main(["run", str(path), *arguments]) == 0, capsys.readouterr().out
    (line,) = results(tmp_path)
    assert "epoch_0_step_2_merged/" in line["predictions"]
    # What only resuming needs is gone.
    folder = tmp_path / "out" / "cells" / "pairs" / "sft" / "seed_1"
    assert [p.name for p in checkpoint.checkpoints(folder)] == ["epoch_0_step_2"]
    assert not checkpoint.resumable_checkpoints(folder)


def start(path):
    command = [sys.executable, "-m", "erjepa", "experiment", "run", str(path)]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_killed_ten_times(base, data, tmp_path):
    """The results and predictions of an unbroken run, but for times and order."""
    methods = {
        "Token-matched": {"replay.weight": 0, "stop.tokens_of": "ER-JEPA"},
        "LLM-JEPA": {"replay.weight": 0},
        "ER-JEPA": {"replay.selection": "uniform"},
    }
    (whole, killed) = (tmp_path / "whole", tmp_path / "killed")
    paths = {}
    for folder in (whole, killed):
        folder.mkdir()
        keys = {"budgets": [0.5e9, 1.2e9, 2.0e9], "devices": [0, 1]}
        paths[folder] = write_small_experiment(folder, base, data, methods, **keys)
    unbroken = start(paths[whole])
    began = time.monotonic()
    assert unbroken.wait(timeout=900) == 0, unbroken.stdout.read()
    seconds = time.monotonic() - began

    rng, kills = random.Random(0), 0
    while kills < 10:
        grid = start(paths[killed])
        try:
            grid.wait(timeout=rng.uniform(0.1, 0.4) * seconds)
        except subprocess.TimeoutExpired:
            kills += 1
            grid.send_signal(signal.SIGKILL)
        assert grid.wait() in (0, -signal.SIGKILL), grid.stdout.read()
        if grid.returncode == 0:
            break
    last = start(paths[killed])
    assert last.wait(timeout=900) == 0, last.stdout.read()
    print(f"{kills} kills; an unbroken run takes {seconds:.0f} s")

    lines = sorted(untimed_results(whole), key=str)
    assert sorted(untimed_results(killed), key=str) == lines
    assert len(lines) == 3 * 3 + 1  # token-matched also at its end
    for line in lines:
        mine, expected = (f / "out" / line["predictions"] for f in (killed, whole))
        assert mine.read_bytes() == expected.read_bytes()


@pytest.mark.slow
def test_a_sequence_carries_weights_and_memory_on(base, data, tmp_path, capsys):
    """Each run but the first starts from the weights and the memory of the one before."""
    methods = {"Uniform": {"replay.selection": "uniform"}}
    datasets = dict.fromkeys(["first", "second"], "llama3_2_1b_synth")
    keys = {"datasets": datasets, "continual": True, "budgets": [0.5e9]}
    path = write_small_experiment(tmp_path, base, data, methods, **keys)
    assert main(["run", str(path)]) == 0, capsys.readouterr().out
    places = [(line["stage"], line["dataset"]) for line in results(tmp_path)]
    assert places == [(stage, on) for stage in datasets for on in datasets]
    cells = tmp_path / "out" / "cells"
    end = cells / "first" / "uniform" / "seed_1" / "flops_0"
    started = cells / "second" / "uniform" / "seed_1"
    log = (started / "run.log").read_text()
    assert f"carried   weights of {end}; 24 of " in log
    inherited = [
        json.loads((folder / "memory" / "memory.json").read_text())["inherited"]
        for folder in (end, started / "flops_0")
    ]
    assert inherited == [0, 1]
    # Both are scored on the same pairs, so on either dataset alike.
    accuracy = [line["accuracy"] for line in results(tmp_path)]
    assert accuracy[0] == accuracy[1] and accuracy[2] == accuracy[3]
    first_step = read_metrics(started)[0]
    assert first_step["replayed"] > 0, "the memory is not empty at the start"
