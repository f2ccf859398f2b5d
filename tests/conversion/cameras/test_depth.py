"""Depth through whole conversions: every value comes back, whatever packing it was sent in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.mp4.index import read_index
from penstock._src.media.video import decode as video_decode
from penstock.errors import ConfigError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, Jpeg, Raw
from tests.lerobot import reading
from tests.media import depths

RAW, PACKED = "/cam_h/depth/image_raw", "/cam_h/depth/image_raw/compressedDepth"
KEY = "observation.images.cam_h_depth"
ROWS = 12


def raw_mm(number: int, *, big: bool = False, encoding: str = "16UC1", padding: int = 0) -> Raw:
    return _raw(depths.millimetres(number), encoding, big, padding)


def raw_m(number: int, *, big: bool = False) -> Raw:
    return _raw(depths.metres(number), "32FC1", big, 0)


def _raw(pixels: np.ndarray, encoding: str, big: bool, padding: int) -> Raw:
    octets = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))).view(np.uint8)
    lines = np.pad(octets.reshape(len(pixels), -1), ((0, 0), (0, padding)))
    return Raw(lines.tobytes(), *pixels.shape, encoding, lines.shape[1], big_endian=big)


def packed_png(number: int) -> Jpeg:
    return Jpeg(depths.packed_png(depths.millimetres(number)), "16UC1; compressedDepth png")


def packed_rvl(number: int) -> Jpeg:
    return Jpeg(depths.packed_rvl(depths.millimetres(number)), "16UC1; compressedDepth rvl")


def packed_inverse(number: int) -> Jpeg:
    return Jpeg(depths.packed_inverse(depths.metres(number)), "32FC1; compressedDepth png")


def inverse_metres(number: int) -> np.ndarray:
    codes = depths.inverse(depths.metres(number)).astype(np.float32)
    a, b = (np.float32(each) for each in depths.INVERSE)
    return np.where(codes == 0, np.float32(np.nan), a / (codes - b))


def tape_of(topic: str, content: Callable[[int], Any], rows: int = ROWS) -> bags.Tape:
    """A colour camera, a depth camera at the same times, and joints."""
    at = bags.times(30, rows / 30)
    return [
        *bags.camera(CAM_H, at),
        *bags.messages(topic, at, content),
        *bags.joints(bags.STATE, bags.times(60, rows / 30 + 0.1)),
    ]


def convert(tmp_path: Path, tape: bags.Tape, name: str = "run.bag", **asked: Any) -> tuple[Path, penstock.Report]:
    bag, out = tmp_path / name, tmp_path / f"out-{name}"
    return out, penstock.convert(bag if bag.exists() else bags.write(bag, tape), out, **asked)


@pytest.mark.parametrize(
    ("topic", "content", "expected", "unit"),
    [
        (RAW, raw_mm, depths.millimetres, "mm"),
        (RAW, lambda n: raw_mm(n, big=True, padding=6), depths.millimetres, "mm"),
        (RAW, lambda n: raw_mm(n, encoding="mono16"), depths.millimetres, "mm"),
        (RAW, raw_m, depths.metres, "m"),
        (RAW, lambda n: raw_m(n, big=True), depths.metres, "m"),
        (PACKED, packed_png, depths.millimetres, "mm"),
        (PACKED, packed_rvl, depths.millimetres, "mm"),
        (PACKED, packed_inverse, inverse_metres, "m"),
        (f"{RAW}/compressed", lambda n: Jpeg(depths.png16(depths.millimetres(n)), "png"), depths.millimetres, "mm"),
    ],
    ids=["raw", "raw-big", "mono16", "float", "float-big", "png", "rvl", "inverse", "bare-png"],
)
def test_every_value_comes_back(
    topic: str, content: Callable[[int], Any], expected: Callable[[int], np.ndarray], unit: str, tmp_path: Path
) -> None:
    out, report = convert(tmp_path, tape_of(topic, content), rosbag={"chunk_size": 5})
    assert report.exit_code == 0 and report.frames == ROWS
    data = open_data_set(out)
    found = reading.depth(data, KEY, 0, ROWS)
    wanted = np.stack([expected(number) for number in range(ROWS)])
    assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()
    assert data.info.features[KEY].depth_unit == unit
    entry = datasets.info(out)["features"][KEY]
    assert (entry["dtype"], entry["shape"]) == ("image", [48, 64, 1])
    assert entry["info"] == {"is_depth_map": True, "depth_unit": unit}
    assert report.features[KEY]["depth"] == "metric"
    assert datasets.problems(out, full=True) == []


def test_the_png_of_a_message_is_copied_byte_for_byte(tmp_path: Path) -> None:
    out, report = convert(tmp_path, tape_of(PACKED, packed_png))
    stored = [row["bytes"] for row in datasets.table(out).column(KEY).to_pylist()]
    assert stored == [packed_png(number).data[12:] for number in range(ROWS)]
    assert report.features[KEY]["stored_as"] == "copied"


@pytest.mark.parametrize("kind", ["run.db3dir", "run.mcapdir"])
def test_ros_2_recordings_give_the_same_depth(kind: str, tmp_path: Path) -> None:
    out, _ = convert(tmp_path, tape_of(PACKED, packed_rvl), kind)
    assert np.array_equal(reading.depth(open_data_set(out), KEY, 3, 5), [depths.millimetres(3), depths.millimetres(4)])


def test_a_depth_camera_at_half_the_rate_is_repeated(tmp_path: Path) -> None:
    at = bags.times(30, 0.4)
    tape = [*bags.camera(CAM_H, at), *bags.messages(PACKED, at[::2], packed_png)]
    out, report = convert(tmp_path, tape, features={"observation.images.h": CAM_H, KEY: PACKED})
    found = reading.depth(open_data_set(out), KEY, 0, report.frames)
    assert report.frames == 11 or report.frames == 12
    assert all(any(np.array_equal(each, depths.millimetres(n)) for n in range(6)) for each in found)


def test_statistics_are_in_the_unit_of_the_values_and_never_nan(tmp_path: Path) -> None:
    out, _ = convert(tmp_path, tape_of(RAW, raw_mm), image_samples=ROWS)
    entry = json.loads((out / "meta/stats.json").read_text())[KEY]
    values = np.stack([depths.millimetres(number) for number in range(ROWS)]).astype(np.float64)
    assert np.array(entry["mean"]).shape == (1, 1, 1) and entry["count"] == [ROWS]
    np.testing.assert_allclose(entry["mean"], values.mean())
    np.testing.assert_allclose(entry["std"], values.std())
    assert (entry["min"], entry["max"]) == ([[[0.0]]], [[[65535.0]]])
    np.testing.assert_allclose(entry["q50"], np.quantile(values, 0.5), rtol=0.02)
    out, _ = convert(tmp_path, tape_of(RAW, raw_m), "floats.bag", image_samples=ROWS)
    text = (out / "meta/stats.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    values = np.stack([depths.metres(number) for number in range(ROWS)]).astype(np.float64)
    np.testing.assert_allclose(json.loads(text)[KEY]["mean"], values[np.isfinite(values)].mean())


def test_a_depth_camera_that_sees_nothing_at_all_has_finite_statistics(tmp_path: Path) -> None:
    nothing = np.full((48, 64), np.nan, np.float32)
    out, _ = convert(tmp_path, tape_of(RAW, lambda n: _raw(nothing, "32FC1", False, 0)))
    text = (out / "meta/stats.json").read_text()
    assert "NaN" not in text and json.loads(text)[KEY]["mean"] == [[[0.0]]]
    assert np.isnan(reading.depth(open_data_set(out), KEY, 0, 2)).all()


def test_resizing_takes_the_nearest_pixel(tmp_path: Path) -> None:
    out, report = convert(tmp_path, tape_of(PACKED, packed_png), resize=[24, 32])
    assert np.array_equal(reading.depth(open_data_set(out), KEY, 7, 8)[0], depths.millimetres(7)[1::2, 1::2])
    assert datasets.info(out)["features"][KEY]["shape"] == [24, 32, 1]
    assert report.features[KEY]["stored_as"] == "images"


# ── 8 bits


@pytest.mark.parametrize(("topic", "content"), [(RAW, raw_mm), (RAW, raw_m), (PACKED, packed_rvl)])
def test_8_bits_are_a_video_of_one_fixed_range(topic: str, content: Callable[[int], Any], tmp_path: Path) -> None:
    out, report = convert(tmp_path, tape_of(topic, content), depth="8bit", depth_range=[400, 2400])
    entry = datasets.info(out)["features"][KEY]
    assert entry["dtype"] == "video" and entry["shape"] == [48, 64, 3] and not entry["info"].get("is_depth_map")
    assert report.features[KEY]["depth_range_mm"] == [400, 2400]
    (file,) = datasets.video_files(out, KEY)
    assert len(read_index(file).sizes) == ROWS
    _, shown = next(iter(video_decode.frames(file, [5])))
    values = depths.millimetres(5).astype(np.float64)
    if content is raw_m:
        values[0, 0] = np.inf
    expected = np.clip((values - 400) * 255 / 2000, 0, 255)
    inner = np.abs(shown.astype(np.float64) - expected[..., np.newaxis])
    assert np.median(inner) < 8  # a JPEG of hard edges
    assert datasets.problems(out, full=True) == []


def test_8_bits_need_a_range_and_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which distances become 0 and 255"):
        convert(tmp_path, tape_of(RAW, raw_mm), depth="8bit")
    for wrong in ([5, 5], [9, 1], [1], "far", [-1, 4], [0, float("inf")]):
        with pytest.raises(ConfigError, match="depth_range"):
            convert(tmp_path, tape_of(RAW, raw_mm), depth="8bit", depth_range=wrong)


def test_each_feature_may_have_its_own_mode(tmp_path: Path) -> None:
    features = {
        "observation.images.exact": RAW,
        "observation.images.shown": {"topic": RAW, "depth": "8bit", "depth_range": [0, 3000], "video": "images"},
        "observation.images.high_byte": {"topic": RAW, "depth": "off", "video": "images"},
    }
    out, _ = convert(tmp_path, tape_of(RAW, raw_mm), features=features)
    kinds = {key: entry["shape"] for key, entry in datasets.info(out)["features"].items() if "images" in key}
    assert kinds == {
        "observation.images.exact": [48, 64, 1],
        "observation.images.shown": [48, 64, 3],
        "observation.images.high_byte": [48, 64, 3],
    }
    from penstock._src.media.image import codec

    stored = datasets.table(out).column("observation.images.high_byte").to_pylist()[0]["bytes"]
    difference = np.abs(codec.decode(stored)[..., 0].astype(int) - depths.millimetres(0) // 256)
    assert np.median(difference) <= 2


def test_depth_that_is_off_is_left_out_or_refused_by_name(tmp_path: Path) -> None:
    out, report = convert(tmp_path, tape_of(RAW, raw_mm), overrides=["depth=off"])
    assert KEY not in datasets.info(out)["features"]
    assert any(f"depth left out: {RAW}" in note for note in report.notes)
    with pytest.raises(ConfigError, match="is depth, and depth is off"):
        convert(tmp_path, tape_of(RAW, raw_mm), "b.bag", depth="off", features={KEY: RAW})


def test_broken_depth_images_are_counted_and_never_stored(tmp_path: Path) -> None:
    """One is cut by its markers, one only when it is decoded."""
    whole = packed_rvl(3).data
    tape = tape_of(PACKED, packed_rvl, 20)
    tape = bags.change(tape, PACKED, 4, bags.with_content(Jpeg(whole[:10], "16UC1; compressedDepth rvl")))
    tape = bags.change(
        tape, PACKED, 11, bags.with_content(Jpeg(whole[: len(whole) // 2], "16UC1; compressedDepth rvl"))
    )
    out, report = convert(tmp_path, tape)
    assert report.exit_code == 3 and dict(report.lost) == {f"unusable message: {PACKED}": 2}
    found = reading.depth(open_data_set(out), KEY, 0, report.frames)
    assert all(any(np.array_equal(each, depths.millimetres(n)) for n in range(20)) for each in found)


def test_the_memory_that_was_planned_holds_large_float_images(tmp_path: Path) -> None:
    """A row holds a TIFF of its own size, so few rows wait for a flush under a small budget."""
    large = depths.metres(0, 480, 640)
    at = bags.times(10, 6)
    tape = [*bags.messages(RAW, at, lambda n: _raw(large, "32FC1", False, 0))]
    out, report = convert(tmp_path, tape, memory="256MiB")
    assert report.frames == 60
    groups = [row.num_rows for row in _row_groups(out)]
    assert max(groups) * large.nbytes < 100 * 2**20
    assert np.array_equal(reading.depth(open_data_set(out), KEY, 59, 60)[0], large, equal_nan=True)


def _row_groups(out: Path) -> list[Any]:
    import pyarrow.parquet as pq

    found = []
    for file in sorted((out / "data").rglob("*.parquet")):
        metadata = pq.ParquetFile(file).metadata
        found += [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return found
