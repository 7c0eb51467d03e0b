"""The cells of a grid, their order, and the command of each."""

import json
from pathlib import Path

import pytest

import erjepa.configs
from erjepa.studies.grid.cells import (
    cells,
    checkpoints_to_score,
    evaluation_command,
    training_command,
)
from tests.harness.grids import experiment


def test_cells():
    found = cells(experiment())
    assert [cell.name for cell in found] == [
        f"{dataset}/{method}/seed_{seed}"
        for seed in (7, 8)
        for dataset in ("synth", "turk")
        for method in ("llm-jepa", "er-jepa_content", "matched")
    ]
    first, second, third, turk, turk_content, *_ = found
    assert first.overrides == {"epochs": 2, "replay.weight": 0}
    assert second.overrides == {"epochs": 2, "replay.weight": 2}
    assert third.overrides == first.overrides
    assert third.tokens_of == second.name and first.tokens_of is None
    assert turk.config == "smollm2_135m_turk"
    assert turk_content.overrides["databases"] == "d"
    assert turk_content.overrides["replay.weight"] == 3


def test_more_pairs_in_a_step():
    """Twice those of the config or of what else sets them."""
    methods = {"Twice": {"batch_size_times": 2}, "Once": {}}
    (twice, once, *_) = cells(experiment(methods=methods, datasets={"a": "tiny_synth"}))
    configured = erjepa.configs.load("tiny_synth").batch_size
    assert twice.overrides["batch_size"] == 2 * configured
    assert "batch_size" not in once.overrides
    assert "batch_size_times" not in twice.overrides
    asked = experiment(methods=methods, overrides={"batch_size": 5})
    assert [c.overrides["batch_size"] for c in cells(asked)[:2]] == [10, 5]


def test_training_command(tmp_path):
    (cell, *_) = cells(
        experiment(overrides={"~task": None, "custom_sharded_layers": ["a", "b"]})
    )
    layers = 'custom_sharded_layers=["a", "b"]'
    run = ["tune", "run", "erjepa_recipe", "--config", "tiny_synth"]
    own = ["replay.weight=0", "seed=7", f"output_dir={tmp_path}"]
    command = training_command(experiment(), cell, tmp_path)
    assert command == [*run, "~task", layers, *own, "keep_epochs=true"]

    flops = experiment(budgets=[10.0, 25.0], nproc_per_node=4)
    assert training_command(flops, cell, tmp_path) == [
        *("tune", "run", "--standalone", "--nproc_per_node", "4"),
        *(*run[2:], "~task", layers, *own),
        *("checkpoint_at_flops=[10.0, 25.0]", "stop.flops=25.0"),
    ]
    matched = training_command(flops, cell, tmp_path, tokens=123)
    assert matched[-2:] == ["checkpoint_at_flops=[10.0, 25.0]", "stop.tokens=123"]

    checkpoint(tmp_path, "epoch_0", 5)
    assert "resume_from_checkpoint=true" not in training_command(flops, cell, tmp_path)
    (tmp_path / "epoch_0" / "recipe_state.pt").touch()
    command = training_command(flops, cell, tmp_path)
    assert command[-1] == "resume_from_checkpoint=true"


def test_evaluation_command(tmp_path):
    asked = experiment()
    (cell, *_) = cells(asked)
    command = evaluation_command(asked, cell, tmp_path, [Path("/a b/x"), Path("/y")])
    assert command == [
        *("tune", "run", "erjepa_eval", "--config", "tiny_synth"),
        *("epochs=2", "replay.weight=0", "seed=7", f"output_dir={tmp_path}"),
        *("eval_split=test", "checkpoint=last", "merged=false"),
        'checkpoint_dir=["/a b/x", "/y"]',
    ]


def test_what_is_scored(tmp_path):
    asked = experiment(score_on="validation")
    (cell, *_) = cells(asked)
    command = evaluation_command(asked, cell, tmp_path, [])
    assert "eval_split=validation" in command
    assert "eval_split=validation" not in training_command(asked, cell, tmp_path)


def checkpoint(folder, name, steps):
    (folder / name).mkdir()
    (folder / name / "progress.json").write_text(json.dumps({"steps": steps}))


@pytest.mark.parametrize(
    ("budgets", "checkpoints", "expected"),
    [
        (None, {"epoch_0": 4, "epoch_1": 8}, ["epoch_0", "epoch_1"]),
        (
            None,
            {"epoch_0_step_2": 2, "epoch_0": 4, "epoch_1_step_1": 5},
            ["epoch_0", "epoch_1_step_1"],
        ),
        (
            [1.0, 2.0],
            {"epoch_0": 4, "flops_0": 3, "flops_1": 7, "epoch_1_step_3": 7},
            ["flops_0", "flops_1"],
        ),
        ([1.0], {"epoch_0": 4, "flops_0": 3, "epoch_1": 8}, ["flops_0", "epoch_1"]),
        ([1.0], {"epoch_0": 4, "epoch_1": 8}, ["epoch_1"]),
    ],
)
def test_checkpoints_to_score(tmp_path, budgets, checkpoints, expected):
    for name, steps in checkpoints.items():
        checkpoint(tmp_path, name, steps)
    found = checkpoints_to_score(experiment(budgets=budgets), tmp_path)
    assert [path.name for path in found] == expected
