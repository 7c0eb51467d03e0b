"""Methods are classified by the keys they set."""

import pytest

from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.sections import SECTIONS
from tests.harness.fake_output import write_output
from tests.harness.report_parts import curves

CONTROL = {"replay.selection": "current_batch"}
NO_REPLAY = {"replay.weight": 0}
NO_LOSSES = {"replay.weight": 0, "loss.jepa_weight": 0}
REPLAY = {"replay.selection": "hard", "loss.jepa_weight": 0.5}


def results_of(folder, methods, **config):
    return Results(
        write_output(
            folder, methods=methods, seeds=(1,), budgets=[1.0], examples=1, **config
        )
    )


def test_roles_are_told_by_what_methods_set(tmp_path):
    methods = {"a": CONTROL, "b": NO_LOSSES, "c": NO_REPLAY, "d": REPLAY, "e": {}}
    results = results_of(tmp_path / "out", methods)
    roles = ("SFT", "LLM-JEPA", "ER-JEPA")
    assert [results.first(role) for role in roles] == ["b", "c", "d"]
    assert results.first("SFT", "e") == "e"
    assert results.main_methods() == ["b", "c", "d"]


@pytest.mark.parametrize(
    "objective",
    [
        {"views": "spans"},
        {"loss.distance": "infonce"},
        {"loss.direction": "both"},
        {"loss.jepa_every": 4},
        {"loss.sigreg_weight": 0.02},
        {"loss.variance_weight": 1},
        {"loss.covariance_weight": 0.04},
        {"predictor_position": "front"},
    ],
    ids=lambda objective: next(iter(objective)),
)
def test_another_objective_is_none_of_the_papers(objective, tmp_path):
    """It claims nothing of them, nor of replay without a JEPA loss."""
    methods = {"a": {**NO_REPLAY, **objective}, "b": {**REPLAY, **objective}}
    methods |= {"c": {**REPLAY, "loss.jepa_weight": 0}}
    methods |= {"d": {**NO_REPLAY, "views": "standalone", "loss.distance": "cosine"}}
    results = results_of(tmp_path / "out", methods)
    assert [results.role(method) for method in "abcd"] == [*[None] * 3, "LLM-JEPA"]


def test_what_all_methods_set_counts(tmp_path):
    overrides = {"loss.jepa_weight": 0}
    results = results_of(tmp_path / "out", {"a": NO_REPLAY}, overrides=overrides)
    assert results.first("SFT") == "a"
    with pytest.raises(Unavailable, match="no method of the experiment is LLM-JEPA"):
        results.first("LLM-JEPA")


def test_a_config_without_a_jepa_loss_counts(tmp_path):
    """Its runs log none, and methods need not say so."""
    results = results_of(tmp_path / "out", {"a": NO_REPLAY, "b": {}})
    assert [results.role(method) for method in "ab"] == ["LLM-JEPA", "ER-JEPA"]
    for metrics in results.runs.metrics:
        del metrics["jepa_loss"]
    assert [results.role(method) for method in "ab"] == ["SFT", None]


def test_a_config_without_replay_counts(tmp_path):
    results = results_of(tmp_path / "out", {"a": {}, "b": {"replay.weight": 1}})
    for metrics, size in zip(results.runs.metrics, (0, 100), strict=True):
        metrics["memory_size"] = size
    assert [results.role(method) for method in "ab"] == ["LLM-JEPA", "ER-JEPA"]


def test_controls_that_the_paper_does_not_have_claim_nothing(tmp_path):
    controls = {"a": CONTROL, "b": {**NO_REPLAY, "batch_size_times": 2}}
    results = results_of(tmp_path / "out", controls)
    assert [results.role(method) for method in "ab"] == [None, None]
    methods = {"a": {**NO_REPLAY, "loss.jepa_weight": 0, "new_adapters": True}}
    keys = {"continual": True, "datasets": {"synth": "tiny_synth", "b": "tiny_synth"}}
    results = results_of(tmp_path / "sequence", methods, **keys)
    assert results.role("a") is None


def test_methods_of_one_role_are_all_compared_if_few(tmp_path):
    few = {str(i): {} for i in range(7)}
    assert results_of(tmp_path / "few", few).main_methods() == list(few)
    methods = {**few, "matched": {"stop.tokens_of": "0"}}
    results = results_of(tmp_path / "matched", methods)
    (figure, _) = SECTIONS["matched_compute"].parts(results, "synth")
    assert list(curves(figure.canvas.axes[0])) == list(few)
    results = results_of(tmp_path / "many", {**few, "7": {}})
    with pytest.raises(Unavailable, match="8 methods are too many .* at most 7"):
        SECTIONS["matched_compute"].parts(results, "synth")
