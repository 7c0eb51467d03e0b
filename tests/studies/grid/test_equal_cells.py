"""Of cells with equal runs one is run, and the others get its results."""

import json

import pytest
import yaml

from erjepa.studies.grid.cells import cells
from erjepa.studies.grid.config import load_experiment
from tests.harness.grids import calls, results, run, write_experiment

SEQUENCE = """
name: sequence
seeds: [1]
continual: True
datasets:
  first: {config: tiny_synth, dataset.size: 11}
  second: {config: tiny_synth, dataset.size: 12}
methods:
  SFT: {replay.weight: 0}
  Mixed: {replay.weight: 0, trains_on: so_far}
  New adapters: {replay.weight: 0, new_adapters: True}
  Orthogonal: {replay.weight: 0, new_adapters: True, orthogonal_weight: 0.5}
  Tenth: {replay.share: 0.1}
  Half: {replay.share: 0.5}
  Half of all: {replay.share: 0.5, replay.draw_from: all}
  Small: {replay.share: 0.5, replay.capacity: 5}
overrides: {epochs: 30, loss.jepa_weight: 0, replay.score: lm, replay.selection: uniform,
  replay.draw_from: inherited}
budgets: [40]
"""
# A key set to null, against one that is not set: equal until there is an earlier stage.
ALONE = """
name: alone
seeds: [1]
continual: True
datasets:
  first: {config: tiny_synth, dataset.size: 11}
  second: {config: tiny_synth, dataset.size: 12}
methods:
  SFT: {replay.weight: 0}
  Alone: {replay.weight: 0, init_from: null, replay.init_from: null}
  Replay: {}
  Memory alone: {init_from: null}
  Weights alone: {replay: {init_from: null}}
overrides: {replay.selection: uniform}
"""
SHARES = "Tenth", "Half"  # two methods that are equal in the first stage
EQUAL = {
    "first/mixed/seed_1": "first/sft/seed_1",
    "first/new_adapters/seed_1": "first/sft/seed_1",
    "first/orthogonal/seed_1": "first/sft/seed_1",
    "first/half/seed_1": "first/tenth/seed_1",
}
# Equal in one stage, but not in the other, or not in how the other is scored; of a memory
# from elsewhere.
UNEQUAL = """
name: unequal
seeds: [1]
continual: True
datasets:
  first: {config: tiny_synth, dataset.size: 11}
  second: {config: tiny_synth, dataset.size: 12, max_new_tokens: 9}
methods:
  SFT: {replay.weight: 0}
  Twelve: {replay.weight: 0, dataset.size: 12}
  Longer answers: {replay.weight: 0, max_new_tokens: 48}
  Tenth: {replay.share: 0.1, replay.init_from: elsewhere}
  Half: {replay.share: 0.5, replay.init_from: elsewhere}
overrides: {replay.selection: uniform, replay.draw_from: inherited}
"""
MATCHED = """
name: matched
seeds: [1]
datasets: {synth: tiny_synth}
methods:
  A: {replay.weight: 0, stop.tokens_of: ER-JEPA 2}
  B: {replay.weight: 0, stop.tokens_of: ER-JEPA, replay.capacity: 7}
  ER-JEPA: {}
  ER-JEPA 2: {replay.weight: 1}
  ER-JEPA dense: {replay.address: dense}
overrides: {epochs: 12}
"""


@pytest.fixture
def sequence(fake):
    """Folder of a grid some of whose cells are equal, and that runs the stand-in for ``tune``."""
    write_experiment(fake, SEQUENCE)
    return fake


@pytest.fixture
def shares(fake):
    """The same with two methods."""
    text = yaml.safe_load(SEQUENCE)
    text["methods"] = {name: text["methods"][name] for name in SHARES}
    write_experiment(fake, yaml.safe_dump(text, sort_keys=False))
    return fake


def test_which_cells_are_equal(tmp_path):
    """Without replay its settings do not count; a share of inherited pairs does not without any."""
    for text, expected in (
        (SEQUENCE, EQUAL),
        (UNEQUAL, {}),
        (
            ALONE,
            {
                "first/alone/seed_1": "first/sft/seed_1",
                "first/memory_alone/seed_1": "first/replay/seed_1",
                "first/weights_alone/seed_1": "first/replay/seed_1",
            },
        ),
        (
            MATCHED,
            {
                "synth/er-jepa_2/seed_1": "synth/er-jepa/seed_1",
                "synth/b/seed_1": "synth/a/seed_1",
            },
        ),
    ):
        found = cells(load_experiment(str(write_experiment(tmp_path, text))))
        assert {c.name: c.same_as for c in found if c.same_as} == expected


@pytest.mark.slow
def test_an_equal_cell_has_the_lines_of_the_first(sequence, capsys):
    assert run(sequence) == 0
    trained = [call.split()[1] for call in calls(sequence) if "erjepa_recipe" in call]
    assert len(trained) == 12 and not {"mixed/seed_1", "half/seed_1"} <= {*trained[:6]}
    assert "first/half/seed_1: equal to first/tenth/seed_1" in capsys.readouterr().out
    lines = {}
    for line in results(sequence):
        lines.setdefault(line["cell"], []).append(line)
    for name, first in EQUAL.items():
        own = [
            {**line, "cell": first, "method": lines[first][0]["method"], "overrides": 0}
            for line in lines[name]
        ]
        assert own == [{**line, "overrides": 0} for line in lines[first]]
        assert {line["method"] for line in lines[name]} != {lines[first][0]["method"]}
    # The next stage starts from the run that there is.
    log = (sequence / "out/cells/second/half/seed_1/run.log").read_text()
    assert "init_from=" + str(sequence / "out/cells/first/tenth/seed_1") in log
    log = (sequence / "out/cells/second/new_adapters/seed_1/run.log").read_text()
    merged = f'base_adapters=["{sequence}/out/cells/first/sft/seed_1/flops_0"]'
    assert log.count(merged) == 3 and "init_from" not in log.replace("replay.init", "")
    called = calls(sequence)
    assert run(sequence) == 0 and calls(sequence) == called


def test_what_an_earlier_version_ran_is_used(shares):
    """Its equal cells each have lines of their own run, which the next stage starts from."""
    assert run(shares) == 0
    out = shares / "out"
    kept = []
    for line in results(shares):
        if line["cell"] == "first/half/seed_1":
            own = json.dumps(line).replace("first/tenth/seed_1", line["cell"])
            line = json.loads(own)
        if line["cell"] != "second/half/seed_1":
            kept.append(json.dumps(line) + "\n")
    (out / "results.jsonl").write_text("".join(kept))
    for path in out.glob("cells/*/*/*/results.jsonl"):
        path.unlink()
    folder = out / "cells/first/half/seed_1"
    folder.parent.mkdir(parents=True)
    (out / "cells/first/tenth/seed_1").rename(folder)
    log = out / "cells/second/half/seed_1/run.log"
    log.unlink()
    for checkpoint in log.parent.glob("flops_*"):
        checkpoint.rename(log.parents[4] / f"gone_{checkpoint.name}")
    assert run(shares) == 0
    assert f"init_from={folder}/flops_0" in log.read_text()


def test_it_fails_with_the_first(shares, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe tenth/seed_1")
    assert run(shares) == 1
    said = "first/half/seed_1: failed: it needs the results of first/tenth/seed_1"
    assert said in capsys.readouterr().out


def test_an_equal_method_that_is_added_before_takes_the_results(shares):
    assert run(shares) == 0
    before = {line["cell"] for line in results(shares)}
    told = len(calls(shares))
    config = shares / "fake.yaml"
    text = config.read_text()
    config.write_text(
        text.replace("  Tenth:", "  Fifth: {replay.share: 0.2}\n  Tenth:")
    )
    assert run(shares) == 0
    after = {line["cell"] for line in results(shares)}
    assert after - before == {"first/fifth/seed_1", "second/fifth/seed_1"}
    trained = [call for call in calls(shares)[told:] if "erjepa_recipe" in call]
    assert len(trained) == 1 and "fifth/seed_1" in trained[0]
