"""Drawing: colours, tints, outlines and the legend."""

from __future__ import annotations

import numpy as np
import pytest

from fasteomt.draw import _printable, class_index, draw_overlay, mask_colours, palette


def test_palette_is_stable_and_distinct() -> None:
    assert np.array_equal(palette(5), palette(300)[:5])
    assert len(np.unique(palette(20), axis=0)) == 20
    assert not palette(3)[0].any()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_class_index(dtype: type) -> None:
    ids = (7, 3, 255)
    mask = np.array([[7, 3], [255, 9]], dtype)
    assert class_index(mask, ids).tolist() == [[0, 1], [2, 0]]
    assert mask_colours(mask, ids)[1, 0].tolist() == palette(3)[2].tolist()


def test_negative_and_large_ids() -> None:
    mask = np.array([[-5, 100000, 2]], np.int32)
    assert class_index(mask, (2, -5, 100000)).tolist() == [[1, 2, 0]]


def test_overlay_tints_outlines_and_leaves_the_first_class() -> None:
    image = np.full((60, 80, 3), 100, np.uint8)
    mask = np.zeros((60, 80), np.uint8)
    mask[20:40, 20:60] = 1
    drawn = draw_overlay(image, mask, (0, 1))
    assert (drawn[:19] == 100).all() and (image == 100).all()
    assert drawn[20, 30].tolist() == palette(2)[1].tolist()
    assert np.abs(drawn[30, 40] - (100 * 0.55 + palette(2)[1] * 0.45)).max() <= 1


def test_legend_has_letters_that_the_font_has() -> None:
    names = {1: "Überkopf", 2: "頭", 3: "head"}
    assert [_printable(names, i) for i in (1, 2, 3, 4)] == ["Uberkopf", "class 2", "head", "class 4"]


def test_legend_names_what_is_there() -> None:
    image = np.full((200, 300, 3), 100, np.uint8)
    mask = np.zeros((200, 300), np.uint8)
    names = {0: "background", 1: "Überkopf"}
    assert np.array_equal(draw_overlay(image, mask, (0, 1), names), image)
    mask[150:180, 200:250] = 1
    with_legend, without = draw_overlay(image, mask, (0, 1), names), draw_overlay(image, mask, (0, 1))
    assert not np.array_equal(with_legend[:60, :100], without[:60, :100])
    assert np.array_equal(with_legend[100:], without[100:])
