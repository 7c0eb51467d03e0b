"""The section on sequences of datasets, on accuracies with measures worked by hand."""

import math

import pandas as pd
import pytest

from erjepa.studies.report.build import build_report, sections_of
from erjepa.studies.report.figures import Figure
from erjepa.studies.report.results import Results
from erjepa.studies.report.sections import SECTIONS
from tests.harness.data import write_jsonl
from tests.harness.fake_output import change_config, read_rows, write_output

METHODS = {
    "SFT": {"replay.weight": 0},
    "Joint": {"trains_on": "all"},
    "Untrained": {"trains_on": "nothing"},
}
SETTINGS = {
    **{"methods": METHODS, "datasets": {"b": "tiny_synth", "a": "tiny_synth"}},
    **{"continual": True, "seeds": (1, 2), "budgets": [1.0], "examples": 2},
    **{"tasks": {"b": "nl_rx", "a": "nl_rx"}, "report": ["continual"]},
}
# Method, stage, dataset -> accuracy of seed 1, and of seed 2.
ACCURACY = {
    ("SFT", "b", "b"): (0.8, 0.6),
    ("SFT", "b", "a"): (0.3, 0.2),
    ("SFT", "a", "b"): (0.2, 0.1),
    ("SFT", "a", "a"): (0.7, 0.9),
    ("Joint", "a", "b"): (0.7, 0.9),
    ("Joint", "a", "a"): (0.6, 0.8),
    ("Untrained", "a", "b"): (0.0, 0.0),
    ("Untrained", "a", "a"): (0.1, 0.1),
}


@pytest.fixture
def output(tmp_path, monkeypatch):
    """Results with these accuracies; Joint's budget is that of both datasets."""
    monkeypatch.setattr(Figure, "saved", lambda *a: b"")  # test_build draws them
    folder = write_output(tmp_path / "out", **SETTINGS)
    path = folder / "results.jsonl"
    rows = read_rows(path)
    for row in rows:
        key = row["method"], row["stage"], row["dataset"]
        row["accuracy"] = ACCURACY[key][row["seed"] - 1]
        row["steps"] -= row["stage"] == "a"  # a later stage may take fewer
        if row["method"] != "SFT":
            row["budget"] = {"Joint": 2.0, "Untrained": None}[row["method"]]
    assert len(rows) == 2 * len(ACCURACY)
    write_jsonl(path, rows)
    return folder


def table(output, name):
    build_report(output)
    return pd.read_csv(output / "report" / "tables" / f"{name}.csv")


def test_accuracy_by_stage(output):
    found = table(output, "continual_matrix")
    assert found[["Method", "After", "b", "a"]].to_numpy().tolist() == [
        ["SFT", "b", 70.0, 25.0],
        ["SFT", "a", 15.0, 80.0],
        ["Joint", "all", 80.0, 70.0],
        ["Untrained", "nothing", 0.0, 10.0],
    ]


def test_measures(output):
    found = table(output, "continual_measures").set_index("Method").round(6)
    sft, joint = found.loc["SFT"], found.loc["Joint"]
    assert sft["Average accuracy (%)"] == (45 + 50) / 2
    assert sft["Forgetting"] == (60 + 50) / 2 and sft["Backward transfer"] == -55
    assert sft["Forward transfer"] == ((30 - 10) + (20 - 10)) / 2
    assert sft["Kept on b (%)"] == round(100 * 15 / 80, 6)
    assert "Average of Joint (%)" not in sft
    assert sft["Over Joint on a"] == 80 - 70
    # Of each seed first: 20 and 10 of a mean of 80.
    assert sft["Kept on b (%) sd"] == pytest.approx((25 - 12.5) / 2**0.5)
    assert joint["Average accuracy (%)"] == 75 and joint.isna()["Forgetting"]
    assert joint["Kept on b (%)"] == 100 and joint["Over Joint on a"] == 0


def test_nothing_is_a_share_of_zero(output):
    path = output / "results.jsonl"
    zeros = {"accuracy": 0.0}
    rows = [
        {**row, **zeros} if row["method"] == "Joint" else row for row in read_rows(path)
    ]
    write_jsonl(path, rows)
    found = table(output, "continual_measures").set_index("Method")
    assert found["Kept on b (%)"].isna().all()
    assert found["Over Joint on a"]["SFT"] == 80


@pytest.mark.parametrize("were_scored_on_all", [False, True])
def test_stages_that_are_scored_on_their_own_dataset(output, were_scored_on_all):
    """What is scored suffices for backward transfer, not for curves and forward transfer."""
    path = output / "results.jsonl"
    rows = read_rows(path)
    if not were_scored_on_all:
        rows = [row for row in rows if row["stage"] == "a" or row["dataset"] == "b"]
    write_jsonl(path, rows)
    change_config(output, score_stages="own")
    *figures, matrix, measures = SECTIONS["continual"].parts(Results(output))
    assert [figure.name for figure in figures] == ["continual_kept"]
    found = matrix.frame[["Method", "After", "b", "a"]].fillna(-1)
    assert found.to_numpy().tolist() == [
        ["SFT", "itself", 70.0, -1],
        ["SFT", "a", 15.0, 80.0],
        ["Joint", "all", 80.0, 70.0],
        ["Untrained", "nothing", 0.0, 10.0],
    ]
    assert measures.frame["Backward transfer"][0] == pytest.approx(-55)
    assert "Forward transfer" not in measures.columns
    assert "Backward transfer" in measures.caption
    assert "forward transfer" not in measures.caption.lower(), "it has no column"


def test_the_average_is_compared_with_that_of_joint_training(output):
    methods = ["SFT", "Joint"]
    *_, measures = SECTIONS["continual"].parts(
        Results(output), methods=methods, share_of_joint=True
    )
    found = measures.frame.set_index("Method")["Average of Joint (%)"].round(6)
    assert found["SFT"] == round(100 * (15 + 80) / (80 + 70), 6)
    assert found["Joint"] == 100


def test_a_method_is_compared_with_joint_training_of_its_own_settings(output):
    """Of two, wherever they stand; the accuracies of all methods are halved at a falling rate."""
    path = output / "results.jsonl"
    falls = {"lr_scheduler.final_factor": 0}
    methods = {f"{m}, falling": {**own, **falls} for m, own in METHODS.items()}
    change_config(output, methods=methods | METHODS)
    rows = read_rows(path)
    for row in rows[:]:
        falling = {
            "method": f"{row['method']}, falling",
            "cell": f"{row['cell']}_falling",
        }
        rows.append({**row, **falling, "accuracy": row["accuracy"] / 2})
    write_jsonl(path, rows)
    found = table(output, "continual_measures").set_index("Method").round(6)
    kept = found["Kept on b (%)"]
    assert kept["SFT"] == kept["SFT, falling"] == round(100 * 15 / 80, 6)
    assert kept["Joint"] == kept["Joint, falling"] == 100
    over = found["Over Joint, falling on a"]
    assert over["SFT"] == 80 - 70 and over["SFT, falling"] == 40 - 35
    after = table(output, "continual_matrix").set_index("Method").After
    assert after["Joint"] == after["Joint, falling"] == "all"


def test_further_datasets(output):
    """At the end of the sequence; exp of the mean loss of a run's targets is its perplexity."""
    path = output / "results.jsonl"
    rows = read_rows(path)
    more = [
        {**row, "dataset": "c", "accuracy": row["accuracy"] / 2, "target_loss": loss}
        for row in rows
        if row["dataset"] == "a"
        for loss in [math.log(1 + 10 * row["accuracy"])]
    ]
    # Of a run that may end at two checkpoints, the last one counts.
    more += [
        {**row, "checkpoint": "epoch_0", "budget": None, "steps": 0, "accuracy": 0.0}
        for row in more
    ]
    more += [{**row, "dataset": "d", "target_loss": None} for row in more]
    averaged = [{**row, "weights": "ema", "accuracy": 0.25} for row in more]
    write_jsonl(path, [*rows, *more, *averaged])
    also = {"c": "tiny_synth", "d": "tiny_synth"}
    kinds = ["last", "ema"]
    change_config(output, also_scored=also, score_weights=kinds)
    found = table(output, "continual_also_scored").set_index("Method").round(6)
    assert found["Accuracy on c (%)"].to_dict() == {
        **{"SFT": 40.0, "Joint": 35.0, "Untrained": 5.0}
    }
    assert found["Perplexity on c"].to_dict() == {
        **{"SFT": 9.0, "Joint": 8.0, "Untrained": 2.0}
    }
    assert found["Accuracy on d (%)"]["SFT"] == 40 and "Perplexity on d" not in found
    of_joint = Results(output).of_weights("ema").also_scored(["Joint"])
    assert {*of_joint.method} == {"Joint"} and {*of_joint.accuracy} == {25.0}
    test_measures(output)


def test_perplexity_on_the_datasets_of_the_sequence(output):
    path = output / "results.jsonl"
    rows = read_rows(path)
    for row in rows:
        of_a = row["dataset"] == "a"
        row["target_loss"] = math.log(1 + 10 * row["accuracy"]) if of_a else None
    write_jsonl(path, rows)
    found = table(output, "continual_measures").set_index("Method").round(6)
    expected = {"SFT": 9.0, "Joint": 8.0, "Untrained": 2.0}
    assert found["Perplexity on a"].to_dict() == expected
    assert "Perplexity on b" not in found
    test_measures(output)


def test_other_sections_speak_of_the_end_of_the_sequence(output):
    results = Results(output)
    assert set(results.of(None, results.methods).stage) == {"a"}
    by = results.final(None, ["SFT", "Joint"]).set_index(["method", "dataset", "seed"])
    assert by.accuracy["SFT", "b", 2] == 10 and by.accuracy["Joint", "b", 1] == 70
    assert not results.missing()
    (_, at_budget) = SECTIONS["matched_compute"].parts(results, "b", results.methods)
    assert at_budget.frame.iloc[0, 1] == pytest.approx(15)  # 20 and 10 after the end
    assert at_budget.caption.endswith("mean ± sample standard deviation. Over 2 seeds.")


def test_an_unfinished_sequence_has_no_measures(output):
    path = output / "results.jsonl"
    rows = read_rows(path)
    write_jsonl(path, [x for x in rows if (x["stage"], x["seed"]) != ("b", 1)])
    sft = table(output, "continual_measures").set_index("Method").loc["SFT"]
    assert sft["Forgetting"] == 50  # of the other seed alone
    assert sft["Average accuracy (%)"] == pytest.approx(47.5)


def test_without_controls_there_are_no_columns_of_theirs(output):
    change_config(output, methods={"SFT": METHODS["SFT"]})
    (figure, kept, _, measures) = SECTIONS["continual"].parts(Results(output))
    assert measures.columns[1:4] == [
        *("Average accuracy (%)", "Forgetting", "Backward transfer"),
    ]
    assert not [name for name in measures.columns if "Joint" in name or "Kept" in name]
    assert "dotted" not in figure.caption
    bars = [panel.patches[0].get_width() for panel in kept.canvas.axes]
    assert bars == pytest.approx([15, 80])  # on b and on a, at the end


def test_no_curves_of_too_many_methods(output, monkeypatch):
    """SFT alone has a sequence; curves that are named are refused rather than left out."""
    names = []
    for styles in (1, 0):
        monkeypatch.setattr("erjepa.studies.report.continual.NUM_STYLES", styles)
        parts = SECTIONS["continual"].parts(Results(output))
        names.append([part.name for part in parts])
    parts = SECTIONS["continual"].parts(Results(output), curves=[])
    names.append([part.name for part in parts])
    others = ["continual_kept", "continual_matrix", "continual_measures"]
    assert names == [["continual", *others], others, others]
    with pytest.raises(ValueError, match="name at most 0 methods as `curves`"):
        SECTIONS["continual"].parts(Results(output), curves=["SFT"])


@pytest.mark.parametrize("report", [None, []])
def test_the_report_of_a_sequence_begins_with_it(output, report):
    change_config(output, report=report)
    (first, _, _), *others = sections_of(Results(output).config)
    assert first is SECTIONS["continual"]
    assert first not in [section for section, _, _ in others]


def test_it_needs_a_sequence(tmp_path):
    output = write_output(tmp_path / "out", report=["continual"], examples=2)
    assert "the datasets are no sequence" in build_report(output).read_text()


@pytest.mark.parametrize("lacks", ["the last stage", "all but the untrained model"])
def test_a_sequence_that_has_not_ended(output, lacks):
    path = output / "results.jsonl"
    rows = read_rows(path)
    if lacks == "the last stage":
        left = [row for row in rows if row["stage"] == "b"]
    else:
        left = [row for row in rows if row["method"] == "Untrained"]
    write_jsonl(path, left)
    text = build_report(output).read_text()
    assert "no run has reached the end of the sequence" in text


def test_joint_training_is_at_no_budget_of_the_stages(output):
    """Not with half its compute, if one budget is twice another."""
    change_config(output, budgets=[1.0, 2.0])
    results = Results(output)
    assert 2.0 in set(results.runs.budget[results.runs.method == "Joint"])
    (_, at_budgets) = SECTIONS["matched_compute"].parts(results, "b", results.methods)
    assert at_budgets.frame["Method"].tolist() == ["SFT"]


def test_joint_training_may_end_before_any_sequence(output):
    path = output / "results.jsonl"
    ended = [row for row in read_rows(path) if row["method"] == "Joint"]
    write_jsonl(path, ended)
    kept, matrix, measures = SECTIONS["continual"].parts(Results(output))
    assert kept.name == "continual_kept"
    for table in (matrix, measures):
        assert set(table.frame["Method"]) == {"Joint"}


def test_what_is_missing_is_the_end_of_the_sequence(output):
    path = output / "results.jsonl"
    rows = [
        row
        for row in read_rows(path)
        if (row["method"], row["stage"], row["seed"]) != ("SFT", "a", 2)
    ]
    write_jsonl(path, rows)
    page = " ".join(build_report(output).read_text().split())
    assert "SFT on b, at the end of the sequence: nothing of seed 2.</li>" in page
