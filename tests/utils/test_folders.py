"""Folders are emptied only if they were made here, and nothing behind a link."""

import pytest

from erjepa.utils.folders import MARK, empty, make_folder


def test_a_folder_that_was_made_is_emptied(tmp_path):
    folder, precious = tmp_path / "out" / "a" / "b", tmp_path / "precious"
    make_folder(tmp_path / "out", folder)
    (folder / "c").mkdir()
    for path in (folder / "c" / "file", folder / "file", precious):
        path.touch()
    (folder / "link").symlink_to(precious)
    make_folder(tmp_path / "out", folder)  # marked
    empty(folder)
    assert [path.name for path in folder.iterdir()] == [MARK] and precious.exists()


def test_an_output_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    make_folder(tmp_path / "out", tmp_path / "out" / "a")
    assert (tmp_path / "disk" / "a" / MARK).exists()


@pytest.mark.parametrize("path", ["mine", "link", "link/new", "made/link", "../out"])
def test_anything_else_is_refused(tmp_path, path):
    root, precious = tmp_path / "out", tmp_path / "precious"
    for folder in (root / "mine", precious):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (precious / MARK).touch()  # of another output folder
    (root / "link").symlink_to(precious)
    make_folder(root, root / "made")
    (root / "made" / "link").symlink_to(precious)
    with pytest.raises(ValueError, match="symbolic link|was not made by"):
        make_folder(root, root / path)
    assert sorted(path.name for path in precious.iterdir()) == [MARK, "file"]
