"""Clipping and run lengths against pycocotools, on random input."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from fasteomt.data.rasterize import clip_ring, decode_runs

HEIGHT, WIDTH = 20, 30


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_compressed_runs_decode_as_pycocotools_does(seed: int, share: float) -> None:
    """On noise (many short runs, negative differences) and on empty and full masks."""
    truth = (np.random.default_rng(seed).random((37, 23)) < share).astype(np.uint8)
    counts = coco_mask.encode(np.asfortranarray(truth))["counts"].decode()
    runs = decode_runs(counts, 37, 23)
    assert runs is not None
    decoded = np.repeat(np.arange(runs.size) % 2, runs).reshape(23, 37).T
    np.testing.assert_array_equal(decoded, truth)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-60, 90), st.floats(-40, 60)), min_size=3, max_size=9),
    st.sampled_from([1.0, 10.0]),
)
def test_clipping_leaves_the_inside_alone(points: list[tuple[float, float]], scale: float) -> None:
    """Against pycocotools on a canvas large enough for the whole polygon."""
    ring = np.array(points) * scale
    offset = 1000
    whole = coco_mask.decode(
        coco_mask.frPyObjects([(ring + offset).ravel().tolist()], HEIGHT + 2 * offset, WIDTH + 2 * offset)
    )[offset : offset + HEIGHT, offset : offset + WIDTH, 0]
    clipped = clip_ring(ring, HEIGHT, WIDTH)
    assert clipped.size == 0 or (clipped >= [-WIDTH, -HEIGHT]).all()
    assert clipped.size == 0 or (clipped <= [2 * WIDTH, 2 * HEIGHT]).all()
    inside = (
        coco_mask.decode(coco_mask.frPyObjects([clipped.ravel().tolist()], HEIGHT, WIDTH))[:, :, 0]
        if len(clipped) >= 3
        else np.zeros_like(whole)
    )
    # Vertices round to a fifth of a pixel, so that a cut edge may move by one pixel at most, along its line.
    different = np.argwhere(inside != whole)
    assert len(different) <= 3 * max(HEIGHT, WIDTH)
    edges = np.stack([ring, np.roll(ring, -1, axis=0)], axis=1)
    for row, column in different:
        assert min(distance(np.array([column + 0.5, row + 0.5]), *edge) for edge in edges) <= 1.5


def distance(point: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    along = end - start
    length = float(along @ along)
    share = 0.0 if length == 0 else float(np.clip((point - start) @ along / length, 0, 1))
    return float(np.linalg.norm(point - start - share * along))


def test_runs_of_endless_digits_are_refused() -> None:
    nothing_then_all = "0hb0"  # runs of 0 and 600
    assert decode_runs(nothing_then_all, HEIGHT, WIDTH) is not None
    assert decode_runs("P" * 12 + nothing_then_all, HEIGHT, WIDTH) is not None
    assert decode_runs("P" * 13 + nothing_then_all, HEIGHT, WIDTH) is None
