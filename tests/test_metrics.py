"""Dataset-level IoU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fasteomt import metrics
from fasteomt.errors import InputError
from fasteomt.metrics import ConfusionMatrix

NAMES = {0: "background", 1: "head", 2: "hat"}


def test_iou_by_hand() -> None:
    matrix = ConfusionMatrix([0, 1])
    matrix.update(np.array([[0, 0, 1, 1]]), np.array([[0, 1, 1, 1]]))
    assert matrix.counts.tolist() == [[1, 1], [0, 2]]
    assert matrix.iou() == {0: 1 / 2, 1: 2 / 3}
    report = matrix.report(NAMES)
    assert report.mean_iou == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert report.pixel_accuracy == 3 / 4
    assert report.confusion == ((1, 1), (0, 2))
    assert (report.pixels, report.ignored_pixels, report.absent) == (4, 0, ())
    assert [(s.true_pixels, s.predicted_pixels, s.correct_pixels) for s in report.scores] == [
        (2, 1, 1),
        (2, 3, 2),
    ]


def test_matches_sums_over_the_data_set_not_means_of_images() -> None:
    """Dataset-level. One image with a hit of 1 pixel, one with a miss of 99."""
    matrix = ConfusionMatrix([0, 1])
    matrix.update(np.ones(1, int), np.ones(1, int))
    matrix.update(np.ones(99, int), np.zeros(99, int))
    assert matrix.iou()[1] == 1 / 100


def test_absent_and_unpredicted_class_is_left_out_and_listed() -> None:
    matrix = ConfusionMatrix([0, 1, 2])
    matrix.update(np.array([0, 1]), np.array([0, 1]))
    report = matrix.report(NAMES)
    assert math.isnan(matrix.iou()[2])
    assert report.scores[2].iou is None
    assert report.absent == (2,)
    assert report.mean_iou == 1.0


def test_absent_but_predicted_class_counts_as_zero() -> None:
    """False alarms aren't forgiven."""
    matrix = ConfusionMatrix([0, 1, 2])
    matrix.update(np.array([0, 1, 1]), np.array([0, 1, 2]))
    report = matrix.report(NAMES)
    assert report.scores[2].iou == 0.0
    assert report.absent == ()
    assert report.mean_iou == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_ignored_pixels_count_neither_way() -> None:
    """Ignore 255."""
    matrix = ConfusionMatrix([0, 1], ignore=255)
    matrix.update(np.array([0, 255, 255, 1], np.uint8), np.array([0, 1, 0, 1], np.uint8))
    report = matrix.report(NAMES)
    assert (report.pixels, report.ignored_pixels) == (2, 2)
    assert report.mean_iou == 1.0


def test_all_ignored_gives_no_figure() -> None:
    matrix = ConfusionMatrix([0, 1], ignore=255)
    matrix.update(np.full((2, 2), 255), np.zeros((2, 2), int))
    report = matrix.report(NAMES)
    assert math.isnan(report.mean_iou)
    assert math.isnan(report.pixel_accuracy)
    assert report.absent == (0, 1)


def test_batches_of_any_size_give_the_same() -> None:
    """Last batch of 1."""
    generator = np.random.default_rng(0)
    true, predicted = generator.integers(0, 3, (2, 7, 5, 4))
    one, batches = ConfusionMatrix(NAMES), ConfusionMatrix(NAMES)
    for t, p in zip(true, predicted, strict=True):
        one.update(t, p)
    for part in (slice(0, 3), slice(3, 6), slice(6, 7)):
        batches.update(true[part], predicted[part])
    np.testing.assert_array_equal(one.counts, batches.counts)
    assert one.counts.sum() == true.size


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_chunks_and_dtypes_don_t_matter(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    generator = np.random.default_rng(1)
    ids = np.array([0, 7, 200])
    true, predicted = ids[generator.integers(0, 3, (2, 31, 17))].astype(dtype)
    expected = np.array([[((true == t) & (predicted == p)).sum() for p in ids] for t in ids])
    for chunk in (1 << 22, 100, 1):
        monkeypatch.setattr(metrics, "_CHUNK", chunk)
        matrix = ConfusionMatrix(ids)
        matrix.update(true, predicted)
        np.testing.assert_array_equal(matrix.counts, expected)


def test_sparse_wide_and_negative_ids() -> None:
    """Ids are compared as numbers; 256 and 65536 aren't 0."""
    ids = [-3, 0, 255, 256, 65536, 2_000_000_000]
    matrix = ConfusionMatrix(ids)
    true = np.array(ids)
    matrix.update(true, true.astype(np.int32))
    np.testing.assert_array_equal(matrix.counts, np.eye(6, dtype=np.int64))


def test_counts_pass_32_bits() -> None:
    matrix = ConfusionMatrix([0])
    matrix.counts[0, 0] = 2**40
    matrix.update(np.zeros(3, np.uint8), np.zeros(3, np.uint8))
    assert matrix.report({0: "background"}).pixels == 2**40 + 3


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_ids_outside_the_classes_are_errors_and_count_nothing(dtype: type) -> None:
    matrix = ConfusionMatrix([0, 1], ignore=255)
    good = np.array([0, 1], dtype)
    with pytest.raises(InputError, match="prediction holds id 3"):
        matrix.update(good, np.array([0, 3], dtype))
    with pytest.raises(InputError, match="truth holds id 9"):
        matrix.update(np.array([1, 9], dtype), good)
    with pytest.raises(InputError, match="prediction holds id 255"):  # even where the truth is ignored
        matrix.update(np.array([255, 0], dtype), np.array([255, 0], dtype))
    assert matrix.counts.sum() == matrix.ignored_pixels == 0


def test_shapes_must_match() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\).*\(3, 2\)"):
        ConfusionMatrix([0]).update(np.zeros((3, 2), int), np.zeros((2, 3), int))


def test_class_sets_that_make_no_sense() -> None:
    for ids, ignore in (([], None), ([1, 1], None), ([0, 1], 1)):
        with pytest.raises(InputError):
            ConfusionMatrix(ids, ignore)


def test_agrees_with_scikit_learn() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    true, predicted = np.random.default_rng(2).integers(0, 4, (2, 500))
    matrix = ConfusionMatrix(range(4))
    matrix.update(true, predicted)
    expected = sklearn_metrics.jaccard_score(true, predicted, average=None)
    np.testing.assert_allclose(list(matrix.iou().values()), expected)
