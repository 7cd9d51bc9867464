"""Which source code is running: commit and digest."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fasteomt import provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular, without the user's settings."""
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files that is taken for this one."""
    folder = tmp_path / "src/package"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    (folder / "part/b.py").write_text("b = 2\n")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    return folder


@pytest.fixture
def committed(package: Path, tmp_path: Path) -> str:
    """The package in a checkout; gives the commit."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return git(tmp_path, "rev-parse", "HEAD")


@needs_git
def test_commit_of_a_checkout(
    package: Path, committed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dirty for changed and for new files of the package, not for others; hooks' variables don't matter."""
    assert provenance.commit() == committed
    (tmp_path / "notes.txt").write_text("x")
    assert provenance.commit() == committed
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert provenance.commit() == committed
    (package / "new.py").write_text("")
    assert provenance.commit() == f"{committed}-dirty"
    (package / "new.py").unlink()
    (package / "part/b.py").write_text("b = 3\n")
    assert provenance.commit() == f"{committed}-dirty"


@needs_git
def test_installed_package_has_no_commit(
    package: Path, committed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even below the checkout of another project, as in its virtual environment."""
    installed = shutil.copytree(package, tmp_path / ".venv/package")
    monkeypatch.setattr(provenance, "PACKAGE", installed)
    assert provenance.commit() is None


def test_no_checkout_and_no_git(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.commit() is None
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() is None


def test_digest_is_of_names_and_contents(package: Path, tmp_path: Path) -> None:
    """Wherever the package lies, and whatever else lies in it."""
    first = provenance.source_digest()
    assert len(first) == 64
    (package / "data.json").write_text("{}")
    assert provenance.source_digest() == first
    (package / "part/b.py").write_text("b = 3\n")
    changed = provenance.source_digest()
    (package / "part/b.py").write_text("b = 2\n")
    for kernel in ("part/c.cu", "part/c.cuh"):
        (package / kernel).write_text("int c;")
        assert provenance.source_digest() != first
        (package / kernel).unlink()
    assert provenance.source_digest() == first
    (package / "part/b.py").rename(package / "b.py")
    assert len({first, changed, provenance.source_digest()}) == 3
