"""Images straight to size, against OpenCV's own decode and resize; refused where the column says otherwise."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.engine.images import Fitter, FloatTable, ImageFit, fit_for
from penstock._src.stores.store import Column
from penstock.errors import ImageError, UsageError


def _image(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, channels), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)


def _jpeg(rgb: np.ndarray) -> np.ndarray:
    return cv2.imencode(".jpg", rgb[:, :, ::-1] if rgb.shape[2] == 3 else rgb)[1].reshape(-1)


def _fitted(image: np.ndarray, fit: ImageFit) -> np.ndarray:
    out = np.zeros((fit.channels, *fit.size), np.uint8)
    Fitter().fit(image, fit, out)
    return out


@settings(max_examples=60, deadline=None)
@given(
    stored=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    channels=st.sampled_from([1, 3, 4]),
    layout=st.sampled_from(["last", "first", "strided"]),
    seed=st.integers(0, 9),
)
def test_raw_pixels_are_resized_as_opencv_does(
    stored: tuple[int, int], size: tuple[int, int], channels: int, layout: str, seed: int
) -> None:
    pixels = _image(*stored, channels, seed)
    given_pixels = pixels
    if layout == "first":
        given_pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
    elif layout == "strided":
        given_pixels = np.repeat(pixels, 2, axis=1)[:, ::2]
    expected = pixels if stored == size else cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)
    found = _fitted(given_pixels, ImageFit("cam", stored, size, channels))
    assert np.array_equal(found, expected.reshape(*size, channels).transpose(2, 0, 1))


SIZES = [((480, 640), 1), ((224, 224), 2), ((120, 160), 4), ((60, 80), 8), ((20, 20), 8)]


@pytest.mark.parametrize(("size", "reduction"), SIZES)
def test_jpegs_are_scaled_while_they_are_decoded(size: tuple[int, int], reduction: int) -> None:
    rgb = _image(480, 640)
    data = _jpeg(rgb)
    exact, scaled = ImageFit("cam", (480, 640), size, 3, exact=True), ImageFit("cam", (480, 640), size, 3)
    assert (exact.reduction, scaled.reduction) == (1, reduction)
    whole = np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[:, :, ::-1])
    expected = whole if size == (480, 640) else cv2.resize(whole, size[::-1], interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(_fitted(data, exact), expected.transpose(2, 0, 1))
    error = np.mean((_fitted(data, scaled).astype(float) - expected.transpose(2, 0, 1)) ** 2)
    assert error == 0 if reduction == 1 else 10 * np.log10(255**2 / error) > 35


@pytest.mark.parametrize("stored", [(481, 641), (450, 601), (225, 401), (1081, 1923)])
def test_scaled_images_stay_in_place_whatever_their_size(stored: tuple[int, int]) -> None:
    """A spot in the far corner, where a last pixel that is only partly of the image would move it most."""
    height, width = stored
    rgb = np.zeros((height, width, 3), np.uint8)
    rgb[int(0.9 * height) : int(0.95 * height), int(0.9 * width) : int(0.95 * width)] = 255
    data, centres = _jpeg(rgb), []
    for exact in (False, True):
        found = _fitted(data, ImageFit("cam", stored, (50, 50), 3, exact=exact, resize="area"))[0].astype(float)
        centres.append([(found.sum(axis=1 - axis) @ np.arange(50)) / found.sum() for axis in (0, 1)])
    assert np.abs(np.subtract(*centres)).max() < 0.15


def test_gray_jpegs_and_pngs() -> None:
    gray = _image(40, 60, 1)
    for suffix in (".jpg", ".png"):
        data = cv2.imencode(suffix, gray)[1].reshape(-1)
        found = _fitted(data, ImageFit("cam", (40, 60), (40, 60), 1))
        assert np.abs(found[0].astype(int) - gray[:, :, 0]).max() <= (0 if suffix == ".png" else 12)
    rgb = _image(40, 60)
    data = cv2.imencode(".png", rgb[:, :, ::-1])[1].reshape(-1)
    assert np.array_equal(_fitted(data, ImageFit("cam", (40, 60), (40, 60), 3)), rgb.transpose(2, 0, 1))


def test_depth_takes_the_nearest_and_keeps_its_numbers() -> None:
    depth = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30) * 7
    fit = fit_for(Column("depth", "depth", (20, 30, 1), "uint16", "raw", "file", "", 0), (10, 15))
    out = np.zeros((1, 10, 15), np.uint16)
    Fitter().fit(depth, fit, out)
    assert set(out.reshape(-1).tolist()) <= set(depth.reshape(-1).tolist()) and len(np.unique(out)) == 150


def test_what_is_no_such_image_is_refused() -> None:
    fit, fitter, out = ImageFit("cam", (48, 64), (24, 32), 3), Fitter(), np.zeros((3, 24, 32), np.uint8)
    good = _jpeg(_image(48, 64))
    fitter.fit(good, fit, out)
    hostile = good.copy()
    at = int(good.tobytes().index(b"\xff\xc0"))
    hostile[at + 5 : at + 9] = (0xEA, 0x60, 0xEA, 0x60)  # 60,000 × 60,000 by its header
    for bad in (hostile, _jpeg(_image(47, 64)), good[:-30], good[:5], np.zeros(0, np.uint8), np.zeros(99, np.uint8)):
        with pytest.raises((ImageError, Exception), match=r".") as caught:
            fitter.fit(bad, fit, out)
        assert type(caught.value).__module__ == "penstock.errors"
    with pytest.raises(ImageError, match=r"\(48, 64\)"):
        fitter.fit(_image(48, 65), fit, out)


def test_float_tables_are_exact() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
    out = np.zeros(pixels.shape, np.float32)
    FloatTable(3).write(pixels, out)
    assert np.array_equal(out, pixels.astype(np.float32) / np.float32(255))
    for mean, std in (([0.5], [1, 1, 1]), ([0, 0, 0], [1, 0, 1])):
        with pytest.raises(UsageError):
            FloatTable(3, mean, std)
