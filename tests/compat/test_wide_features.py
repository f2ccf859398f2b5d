"""The real LeRobot 0.6.1 reads, normalises and aggregates features that have one statistic for all of their values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.datasets.aggregate import aggregate_datasets
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.processor.normalize_processor import NormalizerProcessorStep

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.stats import WIDEST_VALUES

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # LeRobot and what it imports warn about themselves
]

WIDE = {"observation.state": (WIDEST_VALUES + 952,), "observation.map": (60, 50)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    root = tmp_path_factory.mktemp("wide") / "set"
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(2, 3, (8, *shape)).astype(np.float32) for key, shape in WIDE.items()}
    features = [Feature(key, "float32", shape) for key, shape in WIDE.items()]
    with DataSetWriter(root, fps=10, features=features) as writer:
        for part in (slice(0, 5), slice(5, 8)):
            with writer.episode(task="scan the room") as episode:
                episode.write_rows({key: values[part] for key, values in rows.items()})
                episode.commit()
    return root, rows


def test_every_value_is_read(written: tuple[Path, dict[str, np.ndarray]]) -> None:
    root, rows = written
    data = LeRobotDataset("penstock/wide", root=root)
    assert len(data) == 8
    for key, values in rows.items():
        np.testing.assert_array_equal(np.stack([data[n][key].numpy() for n in range(8)]), values)


@pytest.mark.parametrize("mode", [NormalizationMode.MEAN_STD, NormalizationMode.MIN_MAX, NormalizationMode.QUANTILES])
def test_rows_are_normalised(mode: NormalizationMode, written: tuple[Path, dict[str, np.ndarray]]) -> None:
    root, rows = written
    data = LeRobotDataset("penstock/wide", root=root)
    step = NormalizerProcessorStep(
        features={key: PolicyFeature(FeatureType.STATE, shape) for key, shape in WIDE.items()},
        norm_map={FeatureType.STATE: mode},
        stats=data.meta.stats,
    )
    for key, values in rows.items():
        found = step._apply_transform(torch.from_numpy(values), key, FeatureType.STATE).numpy()
        assert found.shape == values.shape and np.isfinite(found).all()
        if mode == NormalizationMode.MEAN_STD:
            np.testing.assert_allclose(found, (values - values.mean()) / values.std(), atol=1e-3)


def test_data_sets_are_aggregated(written: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    root, rows = written
    both = tmp_path / "both"
    aggregate_datasets(["penstock/wide", "penstock/wide"], "penstock/both", roots=[root, root], aggr_root=both)
    data = LeRobotDataset("penstock/both", root=both)
    assert len(data) == 16
    np.testing.assert_allclose(data.meta.stats["observation.state"]["max"], [rows["observation.state"].max()])
