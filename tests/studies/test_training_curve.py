"""The figure of a run shows the metrics in its log."""

import pytest

from erjepa.studies.training_curve import draw_training_curve
from erjepa.studies.training_log import read_training_log

STEP = "loss:1.0 lm_loss:{0} jepa_loss:0.5 replayed:{1} replay_lm_loss:{0} "
JEPA = "replay_jepa_loss:0.5 cosine_paired:0.5 cosine_shuffled:0.25 "


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Panels of the picture of a log: title -> label -> (steps, values)."""
    Figure = pytest.importorskip("matplotlib.figure").Figure
    figures, save = [], Figure.savefig

    def savefig(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def panels(*steps):
        log = tmp_path / "log.txt"
        lines = (f"Step {i} | {step} \n" for i, step in enumerate(steps, start=1))
        log.write_text("".join(lines))
        draw_training_curve(log, tmp_path / "curve.png")
        assert (tmp_path / "curve.png").stat().st_size > 1000
        return {
            axis.get_title(): {
                line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
                for line in axis.lines
            }
            for axis in figures[-1].axes
        }

    return panels


def test_what_validation_logs_is_drawn_where_it_was_measured(draw):
    steps = [STEP.format(3.0 - i, i) + JEPA for i in range(3)]
    steps[1] += "val_lm_loss:2.5 val_jepa_loss:0.75 val_accuracy:0.125"
    found = draw(*steps)
    assert list(found) == ["next-token loss (nats)", "JEPA loss", "cosine", "accuracy"]
    assert found["next-token loss (nats)"] == {
        "new": ([1, 2, 3], [3.0, 2.0, 1.0]),
        "replayed": ([2, 3], [2.0, 1.0]),
        "held out": ([2], [2.5]),
    }
    assert found["JEPA loss"]["held out"] == ([2], [0.75])
    assert found["accuracy"] == {"held out": ([2], [0.125])}


def test_what_is_not_logged_has_no_panel(draw):
    sft = "loss:1.0 lm_loss:1.0 replayed:0 replay_lm_loss:0.0 replay_jepa_loss:0.0"
    assert draw(sft, sft) == {"next-token loss (nats)": {"new": ([1, 2], [1.0, 1.0])}}
    # Of replay without a JEPA loss, which is logged as 0.
    replay = "lm_loss:1.0 replayed:2 replay_lm_loss:0.5 replay_jepa_loss:0.0"
    assert list(draw(replay, replay)) == ["next-token loss (nats)"]


def test_a_picture_has_the_suffix_of_an_image(tmp_path):
    with pytest.raises(ValueError, match="curve.xyz: expected a suffix of .*png.*svg"):
        draw_training_curve(tmp_path / "metrics.txt", tmp_path / "curve.xyz")


def test_an_incomplete_line_is_left_out(tmp_path):
    """As a full disk leaves one, which the line of the resumed run joins."""
    log = tmp_path / "metrics.txt"
    log.write_text(
        "Step 1 | loss:1.5 \nStep 2 | loss:1.Step 2 | loss:1.25 \nStep 3 | loss:1e-"
    )
    assert read_training_log(log) == {1: {"loss": 1.5}}
