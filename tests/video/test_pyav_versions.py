"""PyAV 19, which Python 3.12 and newer get, refuses an option that older ones need."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import av
import pytest

from fasteomt.video import decode


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    importlib.reload(decode)


@pytest.mark.parametrize(
    ("version", "options"), [("18.1.0", {"metadata_errors": "replace"}), ("19.0.2", {}), ("20.0.0rc1", {})]
)
def test_options_are_those_of_the_version(
    version: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(av, "__version__", version)
        importlib.reload(decode)
        assert options == decode._OPEN_OPTIONS
