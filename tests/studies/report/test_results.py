"""Results of an experiment: which are complete, where a run ends, and which are missing."""

import pytest

from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.sections import SECTIONS
from tests.harness.data import write_jsonl
from tests.harness.fake_output import METHODS, read_rows, write_output


def rewrite(output, keep=lambda row: True, more=()):
    path = output / "results.jsonl"
    write_jsonl(path, [*filter(keep, read_rows(path)), *more])


@pytest.fixture
def output(tmp_path):
    return write_output(
        tmp_path / "out", seeds=(82, 23), budgets=[1e15, 2e15], examples=3
    )


def test_a_finished_experiment(output):
    results = Results(output)
    assert results.missing() == {}
    assert results.budgets == [1e15, 2e15]
    runs = results.of("synth", ["SFT"])
    assert list(runs.seed) == [82, 82, 23, 23]  # in the order of the experiment
    assert list(runs.budget) == list(runs.point) == 2 * [1e15, 2e15]
    final = results.final("synth", ["LLM-JEPA", "SFT"])
    assert list(final.method) == 2 * ["LLM-JEPA"] + 2 * ["SFT"]
    assert set(final.budget) == {2e15}
    found = results.predictions(runs)
    assert list(found.id) == 4 * [0, 1, 2]
    assert list(found.seed) == 6 * [82] + 6 * [23]
    assert results.overrides("LLM-JEPA") == {"replay.weight": 0}
    assert results.task("synth") == "nl_rx" and results.task("other") is None


def test_a_run_ends_at_its_last_checkpoint(tmp_path):
    """At a budget or not, as when it is matched in tokens."""
    matched = {"replay.weight": 0, "stop.tokens_of": "ER-JEPA content"}
    output = write_output(
        tmp_path / "out", {**METHODS, "LLM-JEPA": matched}, seeds=(1,), examples=3
    )
    results = Results(output)
    assert results.final("synth", ["LLM-JEPA"]).budget.isna().all()
    assert list(results.final("synth", ["SFT"]).budget) == [results.budgets[-1]]
    assert results.missing() == {}


def test_a_checkpoint_scored_twice_counts_once(output):
    row = read_rows(output / "results.jsonl")[0]
    rewrite(output, more=[{**row, "accuracy": 0.125}])
    runs = Results(output).of(row["dataset"], [row["method"]])
    first = runs[runs.seed == row["seed"]]
    assert list(first.accuracy).count(12.5) == 1 and len(first) == 2


def test_what_the_config_does_not_name_is_left_out(output):
    row = read_rows(output / "results.jsonl")[0]
    before = Results(output).runs
    others = {"dataset": "other", "method": "other", "seed": 999}
    more = [{**row, "cell": key, key: other} for key, other in others.items()]
    rewrite(output, more=more)
    assert Results(output).runs.equals(before)


def test_predictions_are_in_order_of_ids(output):
    results = Results(output)
    before = results.predictions(results.runs)
    path = output / results.runs.predictions.iloc[0]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))
    assert results.predictions(results.runs).equals(before)


def test_predictions_are_of_the_seeds_that_all_have(output):
    rewrite(output, lambda row: (row["method"], row["seed"]) != ("SFT", 82))
    results = Results(output)
    found = results.final_predictions("synth", ["LLM-JEPA", "SFT"])
    assert list(found.seed.unique()) == [23]
    assert list(found.method.unique()) == ["LLM-JEPA", "SFT"]
    assert set(found.point) == {2e15}


def test_predictions_that_are_absent_or_broken(output):
    results = Results(output)
    row = results.runs.iloc[:1]
    path = output / row.predictions.iloc[0]
    no_target = '{"id": 0, "exact_match": true, "prompt": "", "output": ""}\n'
    for broken in ('{"id": 0}\n{"id"', '{"id": 0}\n', no_target, ""):
        path.write_text(broken)
        with pytest.raises(Unavailable, match="predictions cannot be read"):
            results.predictions(row)
    path.unlink()
    with pytest.raises(Unavailable, match="predictions cannot be read"):
        results.predictions(row)


def test_kinds_of_weights_are_kept_apart(tmp_path):
    output = write_output(tmp_path / "out", score_weights=["last", "ema"])
    path = output / "results.jsonl"
    rows = [row for row in read_rows(path) if row["weights"] == "last"]
    write_jsonl(path, rows)
    assert Results(output).weights == ["last"]
    averaged = [{**row, "weights": "ema", "accuracy": 1.0} for row in rows]
    write_jsonl(path, rows + averaged)
    results = Results(output)
    assert len(results.runs) == len(rows) and results.runs.accuracy.max() < 100
    assert set(results.of_weights("ema").runs.accuracy) == {100}
    assert sum(results.runs.ends) == sum(results.of_weights("ema").runs.ends) > 0
    parts = SECTIONS["matched_compute"].parts(results, "synth")
    assert [part.caption.startswith("Accuracy") for part in parts] == 4 * [True]
    assert ["averaged" in part.caption for part in parts] == 2 * [False] + 2 * [True]
    table = SECTIONS["accuracy"].parts(results, None, weights="ema")[1]
    assert table.caption.endswith(" Of averaged weights.")
    assert set(table.frame["Accuracy (%)"]) == {100}
    with pytest.raises(Unavailable, match="no ema weights are scored"):
        results.of_weights("last").of_weights("ema")


def test_the_note_counts_seeds(tmp_path):
    methods = {"a": {}, "b": {}}
    output = write_output(
        tmp_path / "out", methods=methods, seeds=(1, 2, 3), examples=3
    )
    results = Results(output)
    runs = results.runs
    assert results.note(runs, ["a", "b"]) == "Over 3 seeds."
    assert results.note(runs[runs.seed < 3], ["a", "b"]) == "Over 2 of 3 seeds."
    some = runs[(runs.method == "a") | (runs.seed < 3)]
    short = "Over 3 seeds; fewer are finished of b 2."
    assert results.note(some, ["a", "b"]) == short
