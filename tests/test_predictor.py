"""Python: what goes in, what comes out, on a miniature model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import fasteomt
from fasteomt.checkpoint import Checkpoint, random_checkpoint, write_export
from fasteomt.engine import resolve_device
from fasteomt.errors import InputError, UnsupportedError
from fasteomt.model.spec import ModelSpec
from fasteomt.predictor import Predictor
from fasteomt.stacks import get_stack

CPU = torch.device("cpu")


def predictor(checkpoint: Checkpoint, stack: str = "fp32") -> Predictor:
    return Predictor(checkpoint, stack=get_stack(stack), device=CPU)


@pytest.fixture
def rgb() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)


def test_every_kind_of_image_gives_the_same_mask(
    tmp_path: Path, small_checkpoint: Checkpoint, rgb: np.ndarray
) -> None:
    model = predictor(small_checkpoint)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    pictures = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(rgb),
        rgb,
        chw,
        chw.float() / 255,
    ]
    results = model.predict(pictures)
    assert len(results) == 6
    for result in results:
        assert np.array_equal(result.mask, results[0].mask)
    single = model.predict(rgb)
    assert single.mask.shape == (48, 80)
    assert sum(single.areas.values()) == 48 * 80
    assert all(0 < c <= 1 for c in single.confidence.values())
    assert single.pts is None
    assert model.predict_rgb(rgb, pts=1.5).pts == 1.5


def test_load_opens_a_file(tmp_path: Path, small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    path = write_export(tmp_path / "m.pt", small_checkpoint.spec, small_checkpoint.weights)
    model = fasteomt.load(path, device="cpu")
    assert model.source == str(path)
    assert np.array_equal(model.predict(rgb).mask, predictor(small_checkpoint).predict(rgb).mask)


def test_masks_hold_data_set_ids(small_spec: ModelSpec, rgb: np.ndarray) -> None:
    """Ids {0, 255}, sparse and past 255 are the mask's values, never wrapped."""
    for ids in ((0, 255), (7, 300), (2, 70000), (-5, 1)):
        spec = replace(small_spec, class_ids=ids, class_names=("a", "b"))
        result = predictor(random_checkpoint(spec)).predict(rgb)
        assert set(np.unique(result.mask).tolist()) <= set(ids)
        assert result.names == dict(zip(ids, ("a", "b"), strict=True))
        for i in ids:
            assert result.areas[i] == int((result.mask == i).sum())


def test_ignored_class_is_never_predicted(small_spec: ModelSpec, rgb: np.ndarray) -> None:
    """The last output of the class head ("no object", or ignored) never wins, however high its logit."""
    spec = replace(small_spec, class_ids=(3, 9), class_ignore_index=255)
    made = random_checkpoint(spec)
    bias = made.weights["class_head.bias"].clone()
    bias[-1] = 30
    forced = replace(made, weights=made.weights | {"class_head.bias": bias})
    mask = predictor(forced).predict(rgb).mask
    assert set(np.unique(mask).tolist()) <= {3, 9}


@pytest.mark.parametrize("size", [(64, 64), (65, 64), (30, 30), (1, 200), (200, 1), (640, 64)])
def test_any_aspect_ratio(small_checkpoint: Checkpoint, size: tuple[int, int]) -> None:
    """One crop, identical crops averaged, and shapes of a single pixel's height."""
    picture = np.full((*size, 3), 128, dtype=np.uint8)
    assert predictor(small_checkpoint).predict(picture).mask.shape == size


@pytest.mark.parametrize("stack", ["bf16", "fp16"])
def test_16_bit_stacks_run_and_agree(small_checkpoint: Checkpoint, rgb: np.ndarray, stack: str) -> None:
    exact = predictor(small_checkpoint).engine.scores(torch.from_numpy(rgb).permute(2, 0, 1))
    scores = predictor(small_checkpoint, stack).engine.scores(torch.from_numpy(rgb).permute(2, 0, 1))
    assert scores.dtype == torch.float32
    error = (scores - exact).norm() / exact.norm()
    assert 0 < error < 0.05


def test_values_beyond_fp16_are_no_mask(small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    def large(block: int) -> Checkpoint:
        weights = {k: v.clone() for k, v in small_checkpoint.weights.items()}
        weights[f"backbone.blocks.{block}.mlp.fc1.bias"].fill_(6e4)
        weights[f"backbone.blocks.{block}.mlp.fc2.weight"].fill_(1e3)
        return replace(small_checkpoint, weights=weights)

    beyond = r"stack '{}': values beyond its format .* use --stack {}"
    with pytest.raises(UnsupportedError, match=beyond.format("fp16", "bf16")):
        predictor(large(0), "fp16").predict(rgb)
    predictor(large(0), "bf16").predict(rgb)
    joint = small_checkpoint.spec.depth - 1
    with pytest.raises(UnsupportedError, match=beyond.format("bf16", "torch_bf16")):
        predictor(large(joint), "bf16").predict(rgb)
    predictor(large(joint), "torch_bf16").predict(rgb)


def test_confidence_is_the_mean_probability_of_the_predicted_pixels(
    small_checkpoint: Checkpoint, rgb: np.ndarray
) -> None:
    model = predictor(small_checkpoint)
    result = model.predict(rgb)
    scores = model.engine.scores(torch.from_numpy(rgb).permute(2, 0, 1))
    full = torch.nn.functional.interpolate(scores[None], (48, 80), mode="bilinear")[0]
    share = full / full.sum(dim=0)
    for k, i in enumerate(model.spec.class_ids):
        pixels = torch.from_numpy(result.mask == i)
        if pixels.any():
            assert result.confidence[i] == pytest.approx(share[k][pixels].mean().item(), rel=1e-5)
        else:
            assert i not in result.confidence


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        torch.zeros(4, 4, 3),
        torch.zeros(3, 4, 4, dtype=torch.int32),
        3,
        None,
        "no-such-file.png",
        "x" * 5000,
        "a\0b",
        b"a.png",
        Image.new("RGB", (0, 5)),
        Image.new("I;16", (5, 0)),
        torch.full((3, 4, 4), 255.0),
        torch.full((3, 4, 4), -0.5),
        torch.full((3, 4, 4), torch.nan),
        torch.full((3, 4, 4), torch.inf, dtype=torch.float64),
        torch.zeros(3, 4, 4, dtype=torch.complex64),
        torch.zeros(3, 4, 4, device="meta"),
        torch.zeros(3, 4, 4).to_sparse(),
    ],
    ids=lambda bad: " ".join(repr(bad).split())[:60],
)
def test_what_is_no_image_is_refused_in_one_line(small_checkpoint: Checkpoint, bad: object) -> None:
    with pytest.raises(InputError) as caught:
        predictor(small_checkpoint).predict(bad)  # type: ignore[call-overload]
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # torch warns of kinds that are new or will go
def test_tensors_of_rare_kinds_are_refused_in_one_line(small_checkpoint: Checkpoint) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(4, 4)] * 3)
    quantised = torch.quantize_per_tensor(torch.zeros(3, 4, 4), 1.0, 0, torch.quint8)
    kinds = [(nested, "nested tensor"), (quantised, r"dtype torch\.quint8")]
    if hasattr(torch, "float4_e2m1fn_x2"):
        four_bits = torch.zeros(3, 4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        kinds.append((four_bits, r"dtype torch\.float4"))
    for picture, match in kinds:
        with pytest.raises(InputError, match=match) as caught:
            predictor(small_checkpoint).predict(picture)
        assert "\n" not in str(caught.value)


def test_values_outside_0_to_1_are_told(small_checkpoint: Checkpoint) -> None:
    picture = torch.rand(3, 8, 8)
    picture[0, 0, :2] = torch.tensor([-2.5, 300])
    with pytest.raises(InputError, match=r"values -2\.5 to 300: expected floating in \[0, 1\], or uint8"):
        predictor(small_checkpoint).predict(picture)


@pytest.mark.filterwarnings("error")
def test_pictures_however_they_lie_in_memory(small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    model = predictor(small_checkpoint)
    wanted = model.predict(rgb).mask
    frozen = rgb.copy()
    frozen.flags.writeable = False
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    floating = chw.float() / 255
    rounded = floating.clone()
    rounded[0, 0, :2] = torch.tensor([-(2**-10), 1 + 2**-10])
    for picture in (frozen, frozen[::-1][::-1], np.asfortranarray(rgb), floating.double()):
        assert np.array_equal(model.predict(picture).mask, wanted)
    assert np.array_equal(model.predict(floating.clone().requires_grad_()).mask, wanted)
    assert np.array_equal(model.predict(torch.stack([floating] * 2, dim=3)[..., 0]).mask, wanted)
    assert model.predict(rounded).mask.shape == wanted.shape


@pytest.mark.parametrize("lenient", [False, True])
def test_image_cut_short_that_pillow_has_only_opened(
    tmp_path: Path,
    small_checkpoint: Checkpoint,
    rgb: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
    lenient: bool,
) -> None:
    Image.fromarray(rgb).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    with Image.open(tmp_path / "a.png") as picture, pytest.raises(InputError, match="not readable") as caught:
        predictor(small_checkpoint).predict(picture)
    assert "\n" not in str(caught.value)


def test_closed_image(small_checkpoint: Checkpoint, rgb: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(rgb).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        pass
    with pytest.raises(InputError, match="not readable"):
        predictor(small_checkpoint).predict(picture)


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": None},
        {"model": 5},
        {"model": ""},
        {"model": "x" * 5000},
        {"device": None},
        {"device": 0},
        {"device": ""},
        {"device": "\ud800"},
        {"device": "a\nb"},
        {"stack": None},
        {"stack": ["fp32"]},
        {"stack": "a\nb"},
    ],
    ids=str,
)
def test_load_refuses_wrong_arguments_in_one_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        fasteomt.load(**({"model": "heads-vitt16", "device": "cpu"} | arguments))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_broken_image_file(tmp_path: Path, small_checkpoint: Checkpoint) -> None:
    (tmp_path / "a.png").write_bytes(b"not a png")
    with pytest.raises(InputError, match=r"a\.png: not a readable image"):
        predictor(small_checkpoint).predict(tmp_path / "a.png")


def test_exif_orientation_is_applied(tmp_path: Path, small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(rgb).save(tmp_path / "a.png", exif=exif)
    assert predictor(small_checkpoint).predict(tmp_path / "a.png").mask.shape == (80, 48)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "mps", "meta", "cuda:x"])
def test_wrong_device(device: str) -> None:
    with pytest.raises(InputError, match="device"):
        resolve_device(device)


def test_unknown_stack() -> None:
    with pytest.raises(InputError, match="unknown stack 'int3': choose one of fp32"):
        get_stack("int3")


def test_fp32_leaves_the_processs_tf32_setting_alone(small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        predictor(small_checkpoint).predict(rgb)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_fp32_works_and_restores_where_backends_are_set_one_by_one(
    small_checkpoint: Checkpoint, rgb: np.ndarray
) -> None:
    """Once a program has done so, torch refuses to tell its older global setting."""
    backends = torch.backends
    settings = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
    before = [setting.fp32_precision for setting in settings]
    exact = predictor(small_checkpoint).engine.scores(torch.from_numpy(rgb).permute(2, 0, 1))
    try:
        wanted = ["tf32", "tf32", "bf16", "bf16"]
        for setting, precision in zip(settings, wanted, strict=True):
            setting.fp32_precision = precision
        scores = predictor(small_checkpoint).engine.scores(torch.from_numpy(rgb).permute(2, 0, 1))
        assert [setting.fp32_precision for setting in settings] == wanted
        assert (scores - exact).abs().max() <= 1e-6 * exact.max()
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision


def test_polygons_cover_the_class(small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    import cv2

    result = predictor(small_checkpoint).predict(rgb)
    square = replace(result, mask=np.zeros((48, 80), np.uint8))
    square.mask[10:20, 30:50] = 1
    (polygon,) = square.polygons(1)
    drawn = cv2.fillPoly(np.zeros((48, 80), np.uint8), [polygon], 1)
    assert np.array_equal(drawn, square.mask)
    with pytest.raises(InputError, match="no class with id 9"):
        square.polygons(9)


def test_plot(small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    result = predictor(small_checkpoint).predict(rgb)
    assert result.plot().size == (80, 48)
    assert result.plot(rgb).size == (80, 48)
    with pytest.raises(InputError, match="give the same image"):
        result.plot(rgb[:10])


def test_plot_takes_what_predict_takes(tmp_path: Path, small_checkpoint: Checkpoint, rgb: np.ndarray) -> None:
    result = predictor(small_checkpoint).predict(rgb)
    wanted = np.asarray(result.plot(rgb))
    Image.fromarray(rgb).save(tmp_path / "a.png")
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    for picture in (tmp_path / "a.png", Image.fromarray(rgb), chw, chw.float() / 255):
        assert np.array_equal(np.asarray(result.plot(picture)), wanted)
    with pytest.raises(InputError, match="dtype float32: expected RGB"):
        result.plot(rgb.astype(np.float32))
    with pytest.raises(InputError, match="can't read an image from int"):
        result.plot(3)  # type: ignore[arg-type]


def test_to_supervision_without_the_package(
    monkeypatch: pytest.MonkeyPatch, small_checkpoint: Checkpoint, rgb: np.ndarray
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(UnsupportedError, match=r"fasteomt\[supervision\]"):
        predictor(small_checkpoint).predict(rgb).to_supervision()
