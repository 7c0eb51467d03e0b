"""A model named by its repository is downloaded once; failures are one-line errors."""

import re

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from erjepa.configs import load, require_files
from erjepa.datasets.records import load_records
from erjepa.utils import hub

CONFIG = "qwen3_0_6b_continual"


def test_a_repository_becomes_its_local_copy(tmp_path, monkeypatch):
    cached = tmp_path / "models--Qwen--Qwen3-0.6B"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    copy = cached / "snapshots" / ("a" * 40)
    copy.mkdir(parents=True)
    (copy / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elsewhere = f"/gone/models--Qwen--Qwen3-0.6B/snapshots/{'b' * 40}"
    for overrides in (
        [],
        [f"model.revision={'a' * 40}"],
        [f"tokenizer.path={elsewhere}", f"checkpointer.checkpoint_dir={elsewhere}"],
    ):
        cfg = require_files(load(CONFIG, overrides))
        assert cfg.checkpointer.get("checkpoint_dir") == str(copy)
        assert cfg.tokenizer.get("path") == str(copy)
        assert cfg.model.get("path") == "Qwen/Qwen3-0.6B"  # so that it moves elsewhere
        assert cfg.model.get("revision") == "a" * 40
    another = elsewhere.replace("0.6B", "1.7B")
    for key in ("checkpointer.checkpoint_dir", "tokenizer.path"):
        for missing in ("gone", another):
            with pytest.raises(FileNotFoundError, match=f"{key}={missing} does not ex"):
                require_files(load(CONFIG, [f"{key}={missing}"]))
    # There is nothing to download for a folder.
    with pytest.raises(
        FileNotFoundError, match="/a/b does not exist. Set it to the fo"
    ):
        require_files(load(CONFIG, ["model.path=/a/b"]))
    with pytest.raises(
        FileNotFoundError, match="model.path=a/b is not a folder, and the"
    ):
        require_files(load(CONFIG, ["model.path=a/b"]))


def test_a_missing_path_is_said_to_be_read_from_the_current_folder(
    monkeypatch, tmp_path
):
    """The config of a run has its paths as they were written, perhaps in another folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    said = f"; a relative path is read from the current folder, {tmp_path}"
    for path in ("models/own", "models/of/own"):
        with pytest.raises(FileNotFoundError, match=re.escape(said)):
            require_files(load(CONFIG, [f"model.path={path}"]))
    with pytest.raises(FileNotFoundError, match=re.escape(said)):
        load_records("data.jsonl")
    with pytest.raises(FileNotFoundError) as caught:
        require_files(load(CONFIG, ["model.path=/a/b"]))
    assert "relative" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (GatedRepoError, "accept its terms at https://huggingface.co/Qwen/Qwen3-0.6B"),
        (RepositoryNotFoundError, "is neither a folder nor a hub repository"),
        (HFValidationError, "is neither a folder nor a hub repository"),
        (RevisionNotFoundError, "has no revision v2"),
        (ConnectionError, "set it to the model's folder"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(monkeypatch, kind, said):
    def fail(*_, **__):
        raise kind.__new__(kind, "a\nb")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(FileNotFoundError, match=said) as caught:
        require_files(load(CONFIG, ["model.revision=v2"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("a/b", True), ("a/b-1.5_c", True), ("MODEL", False), ("/a/b", False)]
    + [("./b", False), ("../b", False), ("a/b/c", False), ("tests/utils", False)],
)
def test_a_repository_is_an_owner_and_a_name(path, is_one):
    assert hub.is_repository(path) == is_one
