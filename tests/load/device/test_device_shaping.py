"""What images on a CUDA device shall look like: refused in words before a batch is made, as it is in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from penstock._src.load.device import cuda
from penstock._src.load.device.work import DeviceWork
from penstock._src.load.engine.source import Shaping
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock.errors import UsageError
from tests.load.image_store import ArrayStore

torch = pytest.importorskip("torch")

RGB = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.1))


class GrayStore(ArrayStore):
    """As its parent, but "raw" is gray."""

    def __init__(self) -> None:
        super().__init__([20])
        self.raw = [cv2.cvtColor(each, cv2.COLOR_RGB2GRAY)[:, :, None] for each in self.raw]
        self.columns = {**self.columns, "raw": replace(self.columns["raw"], shape=(*self.raw[0].shape,))}


@pytest.fixture(autouse=True)
def seen_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "_nvjpeg_missing", lambda _: None)


def _loader(where: str | None, columns: list[str], **options: Any) -> Loader:
    words = {"dtype": "float32", "gpu_decode": False, "threads": 1, "view": "off", **options}
    return Loader(GrayStore(), Window(columns=columns), 4, (24, 32), device=where, **words)


@pytest.mark.parametrize("where", ["cuda", None])
@pytest.mark.parametrize(
    ("columns", "normalize", "match"),
    [
        (["cam"], {"cam": ((0.5,) * 3, (0,) * 3)}, "standard deviations above 0"),
        (["cam", "raw"], RGB, "normalize needs 1 means"),
        (["raw"], {"raw": RGB}, "normalize needs 1 means"),
        (["cam"], {"cam": ((0.5,) * 2, (0.1,) * 2)}, "normalize needs 3 means"),
        (["cam"], {"cam": "nonsense"}, "is not .mean, std. per channel"),
        (["cam"], {"cam": (RGB[0], "abc")}, "is not .mean, std. per channel"),
    ],
)
def test_a_wrong_normalize_is_refused_on_a_device_as_in_memory(
    where: str | None, columns: list[str], normalize: Any, match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        _loader(where, columns, normalize=normalize)


def test_words_that_do_not_go_together_are_refused_on_a_device() -> None:
    with pytest.raises(UsageError, match="normalize makes floats"):
        _loader("cuda", ["cam"], dtype="uint8", normalize=RGB)
    with pytest.raises(UsageError, match="dtype 'float16'"):
        _loader("cuda", ["cam"], dtype="float16")


@pytest.mark.parametrize(
    ("name", "normalize"),
    [
        ("raw", ((0.5,), (0.25,))),
        ("raw", {"raw": ((0.5,), (0.25,)), "cam": RGB}),
        ("cam", {"raw": ((0.5,), (0.25,)), "cam": RGB}),
        ("cam", (None, RGB[1])),
        ("cam", {"cam": (RGB[0], None)}),
        ("cam", {"raw": ((0.5,), (0.25,))}),
        ("cam", None),
    ],
)
def test_floats_of_the_device_are_those_of_the_threads(name: str, normalize: Any) -> None:
    columns = ["cam", "raw"] if isinstance(normalize, dict) and len(normalize) > 1 else [name]
    with _loader("cuda", columns, normalize=normalize) as loader:
        assert all(column.table is None for column in loader._sources[0].images)  # uint8 until they are there
        work = DeviceWork.__new__(DeviceWork)
        work._target, work._device = loader._target, "cpu"  # type: ignore[assignment]
    channels = 1 if name == "raw" else 3
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 24, 32), np.uint8)
    table = Shaping(dtype="float32", normalize=normalize).float_table(name, channels)
    assert table is not None
    expected = np.empty(pixels.shape, np.float32)
    table.write(pixels, expected)
    assert np.allclose(work.shaped(name, torch.from_numpy(pixels.copy())).numpy(), expected, atol=1e-5)


def test_a_resize_that_the_device_does_not_know_is_refused_or_noted() -> None:
    with pytest.raises(UsageError, match=r"gpu_decode=True: .*not by resize='area'\n.*gpu_decode=\"auto\""):
        _loader("cuda", ["cam"], gpu_decode=True, resize="area")
    with _loader("cuda", ["cam"], gpu_decode="auto", resize="area") as loader:
        assert "JPEGs are decoded on the CPU: the device resizes linearly, not by resize='area'" in loader.notes
        assert not loader._target.keeps_encoded(loader._sources[0].images[0])
    with _loader("cuda", ["cam"], gpu_decode=False, resize="area") as loader:
        assert not any("JPEGs" in note for note in loader.notes)
    with _loader("cuda", ["cam"], gpu_decode=True) as loader:
        assert loader._target.keeps_encoded(loader._sources[0].images[0])
