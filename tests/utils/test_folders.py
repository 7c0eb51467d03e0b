"""Removal of folders: only marked ones with their contents, and nothing behind a link."""

import itertools
from pathlib import Path

import pytest

from erjepa.utils.folders import MARK, make_folder, remove


def test_a_folder_that_was_made_is_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    make_folder(tmp_path, folder)
    make_folder(tmp_path, folder)  # marked
    (folder / "c").mkdir()
    (folder / "c" / "file").touch()
    remove(tmp_path, folder / "c" / "file")
    assert not (folder / "c" / "file").exists() and (folder / MARK).exists()
    remove(tmp_path, folder / "absent")
    remove(tmp_path, folder)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("call", range(4))
def test_a_removal_that_was_killed_can_be_repeated(tmp_path, monkeypatch, call):
    folder, calls, unlink = tmp_path / "made", itertools.count(), Path.unlink
    folder.mkdir()
    for name in ("a", "b", MARK, "c", "d"):
        (folder / name).touch()

    def killed(*args, **kwargs):
        if next(calls) == call:
            raise KeyboardInterrupt
        unlink(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        remove(tmp_path, folder)
    remove(tmp_path, folder)
    assert not folder.exists()


def test_an_output_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    make_folder(tmp_path / "out", tmp_path / "out" / "a")
    remove(tmp_path / "out", tmp_path / "out" / "a")
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["mine", "mine/file", "link", "link/file", "made/link", "../out", "."]
)
def test_anything_else_is_kept(tmp_path, path):
    root, precious = tmp_path / "out", tmp_path / "precious"
    for folder in (root / "mine", precious):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (precious / MARK).touch()  # of another output folder
    (root / "link").symlink_to(precious)
    make_folder(root, root / "made")
    (root / "made" / "link").symlink_to(precious)
    with pytest.raises(ValueError, match="symbolic link|was not made by"):
        remove(root, root / path)
    assert (precious / "file").exists() and (root / "mine" / "file").exists()
