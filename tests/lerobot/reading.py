"""Rows of a data set as arrays and lists, for tests that compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.image import depth as depth_image


def rows(data: DataSet, keys: Sequence[str], start: int, stop: int) -> dict[str, Any]:
    """Rows start…stop-1 of some columns: arrays (n, *shape), or lists for images (bytes) and strings."""
    batches = [batch for file in data.data_files for _, batch in data.batches(file, keys, 1024)]
    whole = {key: [value for batch in batches for value in batch[key]][start:stop] for key in keys}
    assert all(len(values) == stop - start for values in whole.values())
    is_list = {key: data.info.features[key].dtype == "image" or data.info.features[key].is_text for key in keys}
    return {key: values if is_list[key] else np.array(values) for key, values in whole.items()}


def depth(data: DataSet, key: str, start: int, stop: int) -> NDArray[Any]:
    """Depth images start…stop-1, (n, height, width), exactly as they were kept."""
    return np.stack([depth_image.decode(image) for image in rows(data, [key], start, stop)[key]])
