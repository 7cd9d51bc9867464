"""Files and folders written whole or not at all, whatever is in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fasteomt.errors import InputError
from fasteomt.files import (
    atomic_folder,
    atomic_path,
    check_target,
    find_replaced,
    require_file,
    write_json,
)

posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes")


def tree(folder: Path) -> dict[str, str | None]:
    """Relative path -> content, None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


def fill(path: Path, text: str, *, overwrite: bool = False, error: Exception | None = None) -> None:
    with atomic_path(path, overwrite=overwrite) as temporary:
        temporary.write_text(text)
        if error is not None:
            raise error


def fill_late(path: Path) -> None:
    """Two at once, and the other one is done first."""
    with atomic_path(path) as temporary:
        temporary.write_text("second")
        path.write_text("first")


def fill_folder(path: Path, text: str, *, error: Exception | None = None) -> None:
    with atomic_folder(path) as temporary:
        (temporary / "file").write_text(text)
        if error is not None:
            raise error


def refuse_second_replace(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Let the first `os.replace` pass and the next ones fail, as on a disk that went away."""
    real, calls = os.replace, []

    def replace(source: object, target: object) -> None:
        calls.append(source)
        if 2 <= len(calls) <= 1 + times:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_file_and_folder_appear_when_complete(tmp_path: Path) -> None:
    fill(tmp_path / "a/b/file.txt", "one")
    fill_folder(tmp_path / "c/folder", "two")
    fill_folder(tmp_path / "c/folder", "three")
    assert tree(tmp_path) == {
        "a": None,
        "a/b": None,
        "a/b/file.txt": "one",
        "c": None,
        "c/folder": None,
        "c/folder/file": "three",
    }


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither temporary files nor the folders made for them; what was there stays."""
    for error, caught in ((OSError(28, "No space left on device"), InputError), (KeyError("x"), KeyError)):
        with pytest.raises(caught):
            fill(tmp_path / "a/b/file.txt", "half", error=error)
        with pytest.raises(caught):
            fill_folder(tmp_path / "a/b/folder", "half", error=error)
    assert tree(tmp_path) == {}


@posix
def test_links_stay_and_what_they_lead_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "disk/folder").mkdir(parents=True)
    (tmp_path / "disk/file").write_text("old")
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    with pytest.raises(InputError, match="--overwrite"):
        fill(tmp_path / "file", "new")
    fill(tmp_path / "file", "new", overwrite=True)
    fill_folder(tmp_path / "folder", "new")
    assert (tmp_path / "file").is_symlink() and (tmp_path / "folder").is_symlink()
    assert tree(tmp_path / "disk") == {"file": "new", "folder": None, "folder/file": "new"}


def test_old_folder_is_moved_back_if_the_new_one_can_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_folder(tmp_path / "folder", "old")
    refuse_second_replace(monkeypatch)
    with pytest.raises(InputError, match="Input/output error"):
        fill_folder(tmp_path / "folder", "new")
    assert tree(tmp_path) == {"folder": None, "folder/file": "old"}


def test_old_folder_that_can_not_be_moved_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_folder(tmp_path / "folder", "old")
    refuse_second_replace(monkeypatch, times=2)
    with pytest.raises(InputError, match=r"what was there is now .*\.old") as caught:
        fill_folder(tmp_path / "folder", "new")
    kept = Path(str(caught.value).rsplit(" ", 1)[1])
    assert (kept / "file").read_text() == "old"


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    """The message is about it, not about what failed while tidying up."""
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file/x", tmp_path / "file/x/y"):
        for write in (fill, fill_folder):
            with pytest.raises(InputError, match="file is not a folder") as caught:
                write(path, "new")
            assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {"file": "mine"}


def test_folder_that_can_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InputError, match="can't be written to"):
        check_target(tmp_path / "a/b.json")


@posix
def test_only_files_are_replaced(tmp_path: Path) -> None:
    """Not a folder, and not a device or pipe, even where that can be done."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="folder is a folder"):
        fill(tmp_path / "folder", "new", overwrite=True)
    with pytest.raises(InputError, match="not a regular file"):
        fill(tmp_path / "pipe", "new", overwrite=True)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(InputError, match="pipe is not a folder"):
        fill_folder(tmp_path / "pipe", "new")


@posix
def test_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    require_file(tmp_path / "file")
    for name, text in (("none", "no such file"), ("file/x", "no such file"), ("pipe", "not a regular file")):
        with pytest.raises(InputError, match=text):
            require_file(tmp_path / name)
    with pytest.raises(InputError, match="not a regular file"):
        require_file(tmp_path)
    with pytest.raises(InputError, match="can't be read"):
        require_file(tmp_path / ("x" * 5000))


@posix
def test_sources_are_known_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "real/masks").mkdir(parents=True)
    for name in ("real/masks/a.png", "real/b.png", "c.png"):
        (tmp_path / name).write_text(name)
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    (tmp_path / "link.png").symlink_to(tmp_path / "real/b.png")
    (tmp_path / "real/masks/out.png").symlink_to(tmp_path / "c.png")
    masks, b = tmp_path / "real/masks", tmp_path / "alias/b.png"
    for source, target in (
        ("real/masks/a.png", masks),
        ("alias/masks/a.png", masks),
        ("real/masks/../masks/a.png", masks),
        ("real/masks/out.png", masks),  # a link that would go
        ("link.png", b),
        ("real/masks/../b.png", b),
        ("c.png", None),
    ):
        found = find_replaced([tmp_path / source], [tmp_path / "none", masks, b])
        assert found == (None if target is None else (tmp_path / source, target))


@posix
def test_json_of_names_that_are_no_text(tmp_path: Path) -> None:
    """Half surrogates, behind a backslash too, come back as they were; other letters stay readable."""
    content = {"source": os.fsdecode(b"Kopf \xc3\xa4 \xff \\\xfe")}
    write_json(tmp_path / "a.json", content)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == content
    assert "Kopf ä" in text


def test_what_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """Without overwrite the one that comes first stays, file or folder, and nothing hidden is left."""
    with pytest.raises(InputError, match="left alone"):
        fill_late(tmp_path / "file")
    for name in ("folder", "new/folder"):
        with pytest.raises(InputError, match="left alone"), atomic_folder(tmp_path / name):
            fill_folder(tmp_path / name, "first")
    with pytest.raises(InputError, match="left alone"), atomic_folder(tmp_path / "other"):
        (tmp_path / "other").write_text("first")
    assert {k: v for k, v in tree(tmp_path).items() if v} == {
        "file": "first",
        "folder/file": "first",
        "new/folder/file": "first",
        "other": "first",
    }
    assert not [name for name in tree(tmp_path) if Path(name).name.startswith(".")]


def test_folder_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """What is replaced is what was there when it was checked, an empty folder too."""
    fill_folder(tmp_path / "folder", "old")
    with pytest.raises(InputError, match="left alone"), atomic_folder(tmp_path / "folder"):
        (tmp_path / "folder/mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    fill_folder(tmp_path / "empty", "new")
    assert tree(tmp_path) == {
        "folder": None,
        "folder/file": "old",
        "folder/mine": "mine",
        "empty": None,
        "empty/file": "new",
    }


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    fill(tmp_path / "file", "first")
    with pytest.raises(InputError, match="left alone"):
        fill_late(tmp_path / "late")
    assert tree(tmp_path) == {"file": "first", "late": "first"}


def test_runs_with_one_process_number_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in two containers; each removes only what it made."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with atomic_folder(tmp_path / "folder") as outer:
        with pytest.raises(KeyError):
            fill_folder(tmp_path / "folder", "half", error=KeyError("x"))
        (outer / "file").write_text("whole")
    with atomic_path(tmp_path / "file") as first:
        with pytest.raises(KeyError):
            fill(tmp_path / "file", "half", error=KeyError("x"))
        first.write_text("whole")
    assert tree(tmp_path) == {"folder": None, "folder/file": "whole", "file": "whole"}


@posix
def test_longest_names(tmp_path: Path) -> None:
    """255 bytes, as a stem, as a suffix, and in letters of several bytes."""
    names = ["a" * 250 + ".json", "a." + "b" * 253, "ä" * 127]
    for name in names:
        fill(tmp_path / name, "one")
        fill(tmp_path / name, "two", overwrite=True)
    fill_folder(tmp_path / ("f" * 255), "one")
    fill_folder(tmp_path / ("f" * 255), "two")
    assert {k: v for k, v in tree(tmp_path).items() if v} == dict.fromkeys(
        [*names, "f" * 255 + "/file"], "two"
    )


@posix
def test_new_files_and_folders_have_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        fill(tmp_path / "file", "x")
        fill_folder(tmp_path / "folder", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "disk")
    with pytest.raises(InputError, match="mount point"), atomic_folder(tmp_path / "disk"):
        pytest.fail("the work began")
