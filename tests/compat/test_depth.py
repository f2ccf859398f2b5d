"""The real LeRobot 0.6.1 reads the depth that penstock keeps: every value, in the unit that its reader is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.aggregate import aggregate_datasets
from lerobot.datasets.compute_stats import compute_episode_stats
from lerobot.datasets.image_writer import write_image
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.recordings.ros1.writer import BagWriter
from tests.lerobot import reading
from tests.media import depths

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

TOPIC, PACKED = "/cam_h/depth/image_raw", "/cam_h/depth/image_raw/compressedDepth"
KEY = "observation.images.cam_h_depth"
FPS, ROWS = 10, 12
START_NS = 1_700_000_000_000_000_000
_HEADER = "std_msgs/Header header\n"
_HEADER_TEXT = "\n" + "=" * 80 + "\nMSG: std_msgs/Header\nuint32 seq\ntime stamp\nstring frame_id\n"
IMAGE = (
    "sensor_msgs/Image",
    _HEADER
    + "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
    + _HEADER_TEXT,
)
COMPRESSED = ("sensor_msgs/CompressedImage", _HEADER + "string format\nuint8[] data" + _HEADER_TEXT)


def whole(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def text(value: str) -> bytes:
    return whole(len(value)) + value.encode()


def image(pixels: np.ndarray, encoding: str) -> bytes:
    height, width = pixels.shape
    data = pixels.tobytes()
    step = width * pixels.itemsize
    head = whole(0, 0, 0) + text("") + whole(height, width) + text(encoding) + b"\0" + whole(step)
    return head + whole(len(data)) + data


def compressed(data: bytes, format_text: str) -> bytes:
    return whole(0, 0, 0) + text("") + text(format_text) + whole(len(data)) + data


KINDS: dict[str, tuple[str, tuple[str, str], Callable[[int], bytes], Callable[[int], np.ndarray], str]] = {
    "raw": (TOPIC, IMAGE, lambda n: image(depths.millimetres(n), "16UC1"), depths.millimetres, "mm"),
    "float": (TOPIC, IMAGE, lambda n: image(depths.metres(n), "32FC1"), depths.metres, "m"),
    "png": (
        PACKED,
        COMPRESSED,
        lambda n: compressed(depths.packed_png(depths.millimetres(n)), "16UC1; compressedDepth png"),
        depths.millimetres,
        "mm",
    ),
    "rvl": (
        PACKED,
        COMPRESSED,
        lambda n: compressed(depths.packed_rvl(depths.millimetres(n)), "16UC1; compressedDepth rvl"),
        depths.millimetres,
        "mm",
    ),
}


def converted(folder: Path, kind: str, name: str = "set", **asked: Any) -> Path:
    topic, definition, payload, _, _ = KINDS[kind]
    with BagWriter(folder / f"{name}.bag") as bag:
        number = bag.add_topic(topic, *definition, "0" * 32)
        for row in range(ROWS):
            bag.write(number, START_NS + row * 10**9 // FPS, payload(row))
    penstock.convert(folder / f"{name}.bag", folder / name, image_samples=ROWS, **asked)
    return folder / name


def read(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("penstock/depth", root=root, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["mm", "m"])
def test_every_value_is_read_in_the_unit_that_was_asked_for(kind: str, unit: str, tmp_path: Path) -> None:
    expected, stored_unit = KINDS[kind][3:]
    data = read(converted(tmp_path, kind), depth_output_unit=unit)
    assert data.meta.depth_keys == [KEY] and len(data) == ROWS
    factor = np.float32(1 if unit == stored_unit else 1000 if unit == "mm" else 1 / 1000)
    for row in range(ROWS):
        shown = data[row][KEY]
        assert tuple(shown.shape) == (1, 48, 64) and str(shown.dtype) == "torch.float32"
        values = expected(row).astype(np.float32)
        if unit == stored_unit:
            assert np.array_equal(shown[0].numpy(), values, equal_nan=True)
        else:
            np.testing.assert_allclose(shown[0].numpy(), values * factor, rtol=1e-6)


@pytest.mark.parametrize("kind", ["raw", "float"])
def test_statistics_are_those_that_lerobot_computes_and_rescales(kind: str, tmp_path: Path) -> None:
    expected, unit = KINDS[kind][3:]
    data = read(converted(tmp_path, kind), depth_output_unit="mm")
    images = [expected(row) for row in range(ROWS)]
    factor = 1 if unit == "mm" else 1000
    stats = data.meta.stats[KEY]
    values = np.stack(images).astype(np.float64)
    finite = values[np.isfinite(values)] * factor
    assert stats["mean"].shape == (1, 1, 1) and stats["count"].tolist() == [ROWS]
    np.testing.assert_allclose(stats["mean"].item(), finite.mean(), rtol=1e-6)
    np.testing.assert_allclose(stats["std"].item(), finite.std(), rtol=1e-5)
    assert all(np.isfinite(entry).all() for entry in stats.values())
    if kind == "raw":  # LeRobot's own would be NaN for floats without a reading
        paths = [tmp_path / f"{row}.tiff" for row in range(ROWS)]
        for path, image in zip(paths, images, strict=True):
            write_image(image, path)
        feature = {KEY: {"dtype": "image", "shape": (48, 64, 1), "info": {"is_depth_map": True}}}
        theirs = compute_episode_stats({KEY: [str(path) for path in paths]}, feature)[KEY]
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(stats[name], theirs[name], rtol=1e-5, err_msg=name)
            assert stats[name].shape == theirs[name].shape


def test_windows_and_batches_hold_depth(tmp_path: Path) -> None:
    import torch

    data = read(converted(tmp_path, "png"), delta_timestamps={KEY: [-1 / FPS, 0.0]})
    item = data[5]
    assert np.array_equal(item[KEY][0, 0].numpy(), depths.millimetres(4).astype(np.float32))
    assert np.array_equal(item[KEY][1, 0].numpy(), depths.millimetres(5).astype(np.float32))
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    assert tuple(batch[KEY].shape) == (4, 2, 1, 48, 64)


def test_lerobots_own_aggregation_keeps_every_value(tmp_path: Path) -> None:
    roots = [converted(tmp_path, "png", "a"), converted(tmp_path, "png", "b")]
    aggregate_datasets(["p/a", "p/b"], "p/ab", roots=roots, aggr_root=tmp_path / "together")
    data = read(tmp_path / "together")
    assert len(data) == 2 * ROWS
    assert np.array_equal(data[ROWS + 3][KEY][0].numpy(), depths.millimetres(3).astype(np.float32))
    assert np.array_equal(
        reading.depth(open_data_set(tmp_path / "together"), KEY, ROWS, ROWS + 1)[0], depths.millimetres(0)
    )


def test_8_bits_are_an_ordinary_camera(tmp_path: Path) -> None:
    data = read(converted(tmp_path, "raw", depth="8bit", depth_range=[400, 2400]), return_uint8=True)
    assert data.meta.depth_keys == [] and tuple(data[0][KEY].shape) == (3, 48, 64)


def test_penstock_reads_the_depth_that_lerobot_writes(tmp_path: Path) -> None:
    features = {
        KEY: {
            "dtype": "image",
            "shape": (48, 64, 1),
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": True},
        },
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    }
    theirs = LeRobotDataset.create("p/theirs", FPS, features, root=tmp_path / "theirs", use_videos=False)
    for row in range(ROWS):
        frame = {KEY: depths.millimetres(row)[..., np.newaxis], "observation.state": np.array([row, 1], np.float32)}
        theirs.add_frame({**frame, "task": "look"})
    theirs.save_episode()
    theirs.finalize()
    data = open_data_set(tmp_path / "theirs")
    assert data.info.features[KEY].depth_unit == "mm"
    assert np.array_equal(reading.depth(data, KEY, 0, ROWS), [depths.millimetres(row) for row in range(ROWS)])
    assert [problem.message for problem in check(tmp_path / "theirs", full=True).problems] == []
