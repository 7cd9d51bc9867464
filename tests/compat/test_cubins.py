"""Machine code is compiled once for all processes; a cache that is broken or unwritable only costs time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasteomt.compat.cubins import Binary, kept


class Compiler:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> Binary:
        self.runs += 1
        return Binary(b"\x7fELF\n\x00\xff", "0 bytes spill\nUsed 168 registers")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path))
    return tmp_path / "cubins"


def test_the_same_is_compiled_once(folder: Path) -> None:
    compiler = Compiler()
    first = kept(("source", "sm_90a", ("-O3",)), compiler)
    assert kept(("source", "sm_90a", ("-O3",)), compiler) == first == Compiler()()
    assert compiler.runs == 1
    for other in (("source ", "sm_90a", ("-O3",)), ("source", "sm_90", ("-O3",)), ("source", "sm_90a", ())):
        kept(other, compiler)
    assert compiler.runs == 4
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize(
    "broken",
    [b"", b"{}", b"not JSON\n\x00", b'{"sha256": "0", "log": ""}\nx', b"[]\n", b"[" * 200_000, b"cut"],
)
def test_a_broken_file_is_made_again(broken: bytes, folder: Path) -> None:
    compiler = Compiler()
    kept(("source",), compiler)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if broken == b"cut" else broken)
    assert kept(("source",), compiler) == compiler()
    assert file.read_bytes() == whole


def test_another_kernels_file_under_this_name_is_not_taken(folder: Path) -> None:
    kept(("first",), lambda: Binary(b"1", ""))
    (first,) = folder.iterdir()
    kept(("second",), lambda: Binary(b"2", ""))
    (second,) = set(folder.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert kept(("second",), lambda: Binary(b"2", "")).cubin == b"2"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FASTEOMT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert kept(("source",), Compiler()) == Compiler()()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FASTEOMT_CACHE", str(tmp_path / "file"))
    assert kept(("source",), Compiler()).cubin.startswith(b"\x7fELF")


def test_a_failure_to_compile_leaves_nothing(folder: Path) -> None:
    def fails() -> Binary:
        raise RuntimeError("CUDA source doesn't compile")

    with pytest.raises(RuntimeError, match="doesn't compile"):
        kept(("source",), fails)
    assert not folder.exists()
