"""The picture of where masks differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gate_samples import NAMES, square_mask
from PIL import Image

from fasteomt.errors import InputError
from fasteomt.gates.picture import SHOWN, WorstFrames
from fasteomt.video.source import Frame


def frame(index: int) -> Frame:
    return Frame(index, index / 25, np.full((64, 64, 3), 120, np.uint8), "clip")


def worst_of(sides: list[int]) -> WorstFrames:
    """A reference square of 30 pixels, and masks with squares of these sides."""
    out = WorstFrames(NAMES)
    for index, side in enumerate(sides):
        out.update(frame(index), square_mask(30), square_mask(side))
    return out


def test_the_worst_frames_are_kept_in_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = worst_of([30, 20, 29, 30, 25, 10, 28, 30])
    captions: list[str] = []
    caption = WorstFrames.caption

    def listed(self: WorstFrames, one: object) -> str:
        captions.append(caption(self, one))  # type: ignore[arg-type]
        return captions[-1]

    monkeypatch.setattr(WorstFrames, "caption", listed)
    picture = found.draw()
    assert [text.split(",")[0] for text in captions] == ["frame 1", "frame 4", "frame 5", "frame 6"]
    assert captions[2] == "frame 5, 0.20 s   IoU 0.1111 (class 7, head)   800 of 4,096 pixels differ"
    assert picture.size == (4 * 480, 4 * (480 + 52))


def test_panels_show_outlines_and_difference() -> None:
    """Left to right: the frame untouched, green, magenta, red; nothing red where masks are equal."""
    for side, red in ((20, True), (30, False)):
        panels = np.split(np.asarray(worst_of([side]).draw())[52:], 4, axis=1)
        assert (panels[0] == 120).all()
        for panel, colour, there in zip(
            panels[1:], ((60, 220, 90), (255, 90, 220), (255, 60, 40)), (True, True, red), strict=True
        ):
            assert bool((panel == colour).all(axis=-1).any()) is there


def test_a_single_pixel_of_a_large_frame_shows() -> None:
    found = WorstFrames(NAMES)
    mask = np.zeros((1440, 1900), np.uint8)
    other = mask.copy()
    other[700, 901] = 7
    found.update(Frame(0, None, np.zeros((1440, 1900, 3), np.uint8), "clip"), mask, other)
    assert (np.asarray(found.draw()) == (255, 60, 40)).all(axis=-1).any()


def test_memory_is_bounded() -> None:
    assert len(worst_of([30] * 50)._heap) == SHOWN


def test_write(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    worst_of([20]).write(path)
    assert Image.open(path).size == (1920, 532)
    with pytest.raises(InputError, match="exists"):
        worst_of([20]).write(path)
    worst_of([20, 25]).write(path, overwrite=True)
    assert Image.open(path).size == (1920, 1064)
