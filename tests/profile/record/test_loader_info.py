"""What loaders tell the profiler: typed in the program, the same JSON in files as ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import profile
from penstock._src.profile.record.registry import loader_info_of
from penstock._src.profile.schema import decode
from penstock._src.profile.stats import ImageInfo, LoaderInfo, StoreInfo, ViewInfo
from penstock.errors import UsageError
from tests.lerobot import making
from tests.profile.runs import image as image_info
from tests.profile.runs import loader_told

KEYS = {
    "kind", "text", "options", "stores", "window", "batches_handed", "made_per_batch",
    "hit_share", "step_batches", "batches", "batch_size", "threads", "cores", "device", "cuda",
    "resize", "images", "images_per_batch", "stored_bytes_per_batch", "memory_bytes",
    "memory_left_bytes", "memory_available_bytes", "cache_free_bytes",
    "engine",
}  # fmt: skip
"""Of a penstock.Loader in RUN.json."""


def test_the_file_of_a_run_has_the_keys_that_are_promised(tmp_path: Path) -> None:
    making.make(tmp_path / "set", (12, 7))
    profile.enable()
    profile.reset()
    with penstock.open(tmp_path / "set") as store, penstock.Loader(
        store, batch_size=4, image_size=(24, 32), threads=1, view="ram", output="numpy"
    ) as loader:  # fmt: skip
        before = loader_info_of(loader).to_json()
        assert set(before) == KEYS - {"made_per_batch", "hit_share"}
        batches = len(list(loader))
        profile.save(tmp_path / "RUN.json")
    told = json.loads((tmp_path / "RUN.json").read_text(encoding="utf-8"))["loaders"][-1]
    assert set(told) == KEYS and told["batches_handed"] == told["step_batches"] == batches
    assert set(told["stores"][0]) == {"path", "kind", "weight", "open_options"}
    assert told["stores"][0]["open_options"] == {"episodes": None, "columns": None}
    (image,) = told["images"][:1]
    assert set(image) == set(image_info())
    assert set(image["view"]) == {"where", "capacity", "filled"} and image["view"]["where"] == "ram"


def test_a_file_is_read_as_it_was_written() -> None:
    view = ViewInfo("disk", 500, 20)
    whole = decode(LoaderInfo, loader_told(images=[image_info("a"), image_info("b", view=vars(view))]))
    assert isinstance(whole.images[0], ImageInfo)
    assert whole.images[1].view == view and whole.images_per_batch == 16.0
    assert decode(LoaderInfo, json.loads(json.dumps(whole.to_json()))) == whole


def test_a_store_without_words_is_one_that_nobody_else_can_open() -> None:
    told = decode(
        LoaderInfo, {"stores": [{"path": "a", "open_options": None}, {"path": "b", "open_options": {"x": 1}}]}
    )
    assert told.stores == (StoreInfo("a"), StoreInfo("b", open_options={"x": 1}))


@pytest.mark.parametrize("told", [{"threads": "two"}, {"images": [{"column": "cam"}]}, {"options": 3}, []])
def test_a_wrong_value_is_refused(told: Any) -> None:
    with pytest.raises(UsageError, match="the profile is damaged"):
        decode(LoaderInfo, told)
