"""Image files of every mode as RGB, and files that are no whole image."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from fasteomt.data.dataset import Sample
from fasteomt.errors import InputError
from fasteomt.images import image_size, open_rgb, read_image, to_rgb

RAMP = np.array([[0, 128, 129, 257], [32639, 32768, 65406, 65535]], np.uint16)
# Of 65535, to the nearest of 255.
SCALED = np.array([[0, 0, 1, 1], [127, 128, 254, 255]], np.uint8)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_is_scaled(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(RAMP).save(path)
    assert read_image(path).mode == "I;16"
    expected = np.repeat(SCALED[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(np.asarray(open_rgb(path)), expected)
    sample = Sample("a", path, (2, 4), lambda: np.zeros((2, 4), np.uint8))
    np.testing.assert_array_equal(sample.rgb(), expected)


@pytest.mark.parametrize("mode", ["I", "I;16B", "I;16L"])
def test_other_ways_to_hold_16_bits(mode: str) -> None:
    kinds = {"I": np.int32, "I;16B": ">u2", "I;16L": "<u2"}
    image = Image.frombytes(mode, (4, 2), RAMP.astype(kinds[mode]).tobytes())
    np.testing.assert_array_equal(np.asarray(to_rgb(image))[..., 1], SCALED)


def test_8_bit_values_come_back_from_16_bits() -> None:
    values = np.arange(256, dtype=np.uint16).reshape(16, 16)
    np.testing.assert_array_equal(np.asarray(to_rgb(Image.fromarray(values * 257)))[..., 0], values)


@pytest.mark.parametrize(
    "pixels", [np.array([[0, 65536]], np.int32), np.array([[-1, 5]], np.int32), np.array([[0.5]], np.float32)]
)
def test_pixels_without_a_known_white_are_refused(tmp_path: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(InputError, match=r"a\.tif: .* no known white") as caught:
        open_rgb(tmp_path / "a.tif")
    assert "\n" not in str(caught.value)


def test_palette_alpha_and_grey(tmp_path: Path) -> None:
    red, blue = (200, 30, 40), (10, 20, 250)
    palette = Image.new("P", (2, 1))
    palette.putpalette([*red, *blue])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "clear.png", transparency=bytes([0, 128]))
    rgba = Image.new("RGBA", (2, 1), (*red, 0))
    rgba.putpixel((1, 0), (*blue, 90))
    rgba.save(tmp_path / "alpha.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("palette", "clear", "alpha"):
            image = open_rgb(tmp_path / f"{name}.png")
            assert (image.mode, np.asarray(image).tolist()) == ("RGB", [[list(red), list(blue)]]), name
        for mode, value in (("L", 7), ("LA", (7, 3)), ("1", 1), ("CMYK", (0, 0, 0, 248))):
            shown = 255 if mode == "1" else 7
            assert to_rgb(Image.new(mode, (1, 1), value)).getpixel((0, 0)) == (shown,) * 3, mode


def test_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees to show
    stored = Image.new("RGB", (6, 4))
    stored.putpixel((0, 3), (255, 255, 255))
    stored.save(tmp_path / "a.png", exif=exif)
    assert open_rgb(tmp_path / "a.png").getpixel((0, 0)) == (255, 255, 255)
    assert open_rgb(tmp_path / "a.png", upright=False).getpixel((0, 3)) == (255, 255, 255)
    assert image_size(tmp_path / "a.png") == (4, 6)
    assert image_size(tmp_path / "a.png", upright=True) == (6, 4)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_file_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, lenient: bool) -> None:
    """Even where another library, as LightlyTrain does, tells Pillow to fill up what is missing."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=rf"a\.{suffix}: not a readable image") as caught:
        open_rgb(path)
    assert "\n" not in str(caught.value)
    assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_no_file_and_no_image(tmp_path: Path) -> None:
    for read in (open_rgb, image_size):
        with pytest.raises(InputError, match=r"a\.png: no such file"):
            read(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(b"no picture")
    for read in (open_rgb, image_size):
        with pytest.raises(InputError, match=r"a\.png: not a readable image"):
            read(tmp_path / "a.png")


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    for read in (open_rgb, read_image, image_size):
        with pytest.raises(InputError, match=r"a\.png: not a regular file"):
            read(tmp_path / "a.png")


def test_modes_that_pillow_hardly_converts() -> None:
    """Premultiplied grey is taken as grey; what Pillow refuses is refused in one line."""
    assert to_rgb(Image.new("La", (2, 2), (128, 255))).getpixel((0, 0)) == (128, 128, 128)
    odd = Image.new("L", (2, 2))
    odd.info["transparency"] = b"\0\1"
    with pytest.raises(InputError, match="mode L: no way to RGB"):
        to_rgb(odd)
