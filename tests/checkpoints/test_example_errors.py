"""The log of example errors continues where the checkpoint was written."""

import math

import pandas as pd

from erjepa.checkpoints.example_errors import ExampleErrors, read_visits

VISITS = pd.DataFrame(
    [
        (1, 4, 0, 0.5, math.nan),
        (1, -(1 << 32), 1, 1.5e-7, math.inf),
        (2, 4, 1, 0.375, -0.0625),
    ],
    columns=["step", "example", "replayed", "lm_loss", "jepa_loss"],
)


def test_what_is_logged_is_read(tmp_path):
    log = ExampleErrors(tmp_path)
    log.continue_after(0)
    log.log(VISITS)
    log.flush()
    pd.testing.assert_frame_equal(
        read_visits(tmp_path / "example_errors.csv"), VISITS, check_exact=True
    )


def test_what_a_killed_run_did_after_its_checkpoint_comes_again(tmp_path):
    path = tmp_path / "example_errors.csv"
    log = ExampleErrors(tmp_path)
    log.continue_after(0)
    log.log(VISITS)
    log.flush()
    path.write_text(path.read_text() + "3,7,1,0.")  # as a kill leaves it
    log = ExampleErrors(tmp_path)
    log.continue_after(1)
    log.log(VISITS[VISITS.step > 1])
    log.flush()
    pd.testing.assert_frame_equal(read_visits(path), VISITS, check_exact=True)
    fresh = ExampleErrors(tmp_path)
    fresh.continue_after(0)
    assert read_visits(path).empty


def test_a_log_that_was_not_opened_writes_nothing(tmp_path):
    """As on all ranks but the first."""
    log = ExampleErrors(tmp_path)
    log.log(VISITS)
    log.flush()
    assert not list(tmp_path.iterdir())
