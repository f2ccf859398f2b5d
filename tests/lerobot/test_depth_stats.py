from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.feature_stats import DepthStats
from penstock._src.lerobot.features import Feature, depth_feature
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.lerobot.stats import STATISTICS, ImageStats
from penstock._src.media.image import depth
from penstock.errors import ImageError
from tests.lerobot import reading
from tests.media import depths

KEY = "observation.images.cam_depth"


def numpy_stats(values: np.ndarray) -> dict[str, float]:
    finite = values[np.isfinite(values)].astype(np.float64)
    found = {"min": finite.min(), "max": finite.max(), "mean": finite.mean(), "std": finite.std()}
    return {**found, "q10": np.quantile(finite, 0.1), "q90": np.quantile(finite, 0.9)}


@pytest.mark.parametrize("make", [depths.millimetres, depths.metres])
def test_statistics_are_those_of_all_finite_pixels(make: type) -> None:
    stats = DepthStats()
    images = np.stack([make(number) for number in range(6)])
    for image in images:
        stats.add(image)
    found = stats.to_json()
    assert found is not None and list(found) == list(STATISTICS) and found["count"] == [6]
    for name, value in numpy_stats(images).items():
        assert np.array(found[name]).shape == (1, 1, 1)
        np.testing.assert_allclose(found[name], value, rtol=0.02 if name[0] == "q" else 1e-9)


def test_large_images_enter_with_every_nth_pixel() -> None:
    stats, image = DepthStats(), depths.millimetres(0, 480, 640)
    stats.add(image)
    np.testing.assert_allclose(stats.to_json()["mean"], image[::4, ::4].mean())  # type: ignore[index]


def test_merged_or_restored_statistics_are_those_of_one_pass() -> None:
    whole, first, second = DepthStats(), DepthStats(), DepthStats()
    for number in range(8):
        whole.add(depths.metres(number))
        (first if number < 4 else second).add(depths.metres(number))
    restored = DepthStats.from_state(first.to_state())
    restored.merge(second)
    merged, once = restored.to_json(), whole.to_json()
    assert merged is not None and once is not None
    for name in STATISTICS:
        np.testing.assert_allclose(merged[name], once[name], rtol=0.02 if name[0] == "q" else 1e-9)
    again = DepthStats.from_state(restored.to_state())
    assert again.to_json() == merged
    with pytest.raises(ValueError, match="merge"):
        whole.merge(ImageStats())


def test_nothing_seen_is_no_statistic_and_nothing_but_nan_is_zero() -> None:
    assert DepthStats().to_json() is None
    stats = DepthStats()
    stats.add(np.full((4, 5), np.nan, np.float32))
    found = stats.to_json()
    assert found is not None and found["mean"] == [[[0.0]]] and found["count"] == [1]


@pytest.mark.parametrize("shape", [(4, 5, 1), (0, 5), (4,)])
def test_only_depth_enters(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match="depth statistics"):
        DepthStats().add(np.zeros(shape, np.uint16))
    with pytest.raises(ImageError, match="uint8"):
        DepthStats().add(np.zeros((4, 5), np.uint8))


# ── the feature and the reader


def test_a_depth_feature_is_marked_as_lerobot_marks_it() -> None:
    feature = depth_feature(KEY, (48, 64), "mm")
    assert feature.is_depth and feature.is_camera and feature.depth_unit == "mm"
    assert feature.to_json()["info"] == {"is_depth_map": True, "depth_unit": "mm"}
    assert feature.shape == (48, 64, 1) and feature.to_json()["names"] == ["height", "width", "channels"]
    plain = Feature(KEY, "image", (48, 64, 3))
    assert not plain.is_depth and plain.depth_unit is None
    assert not Feature("x", "float32", (3,), info={"is_depth_map": True}).is_depth


def written(root: Path, images: list[bytes], unit: str = "mm") -> Path:
    feature = depth_feature(KEY, (48, 64), unit)
    with DataSetWriter(root, fps=10, features=[feature, Feature("x", "float32", (1,))], fsync=False) as writer:
        episode = writer.episode(rows=len(images), task="look")
        episode.write_rows({KEY: images, "x": np.zeros((len(images), 1), np.float32)})
        episode.commit()
        writer.close()
    return root


def test_rows_of_depth_are_read_exactly(tmp_path: Path) -> None:
    images = [depths.millimetres(number) for number in range(5)]
    data = open_data_set(written(tmp_path / "set", [depth.encode(image) for image in images]))
    assert np.array_equal(reading.depth(data, KEY, 1, 4), images[1:4])
