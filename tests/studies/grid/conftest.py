"""An experiment with a stand-in for its runs."""

from pathlib import Path

import pytest

from tests.harness.grids import use_fake_tune, write_experiment


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """Folder of an experiment whose grid runs the stand-in for ``tune``."""
    use_fake_tune(monkeypatch)
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls.txt"))
    write_experiment(tmp_path)
    return tmp_path
