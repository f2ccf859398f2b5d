"""Which way JPEGs take to a GPU by themselves: through a view in memory, or decoded on the device."""

from __future__ import annotations

from typing import Any

import pytest

from penstock._src.load import loader as loader_module
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.load.views.choose_views import full_bytes_of
from penstock._src.plan.view_choice import fit_whole
from tests.load.image_store import ArrayStore


def test_views_of_all_rows_take_at_most_half_of_the_memory() -> None:
    assert fit_whole([30, 20], 100) and fit_whole([], 0)
    assert not fit_whole([30, 21], 100)


@pytest.mark.parametrize(
    ("options", "needed", "expected"),
    [
        ({}, 2.0, False),
        ({}, 1.9, "auto"),
        ({"view": "off"}, 2.0, "auto"),
        ({"view": "ram"}, 1.9, False),
        ({"gpu_decode": True}, 2.0, True),
        ({"gpu_decode": False}, 1.9, False),
    ],
)
def test_the_device_decodes_what_views_in_memory_cannot_hold(
    options: dict[str, Any], needed: float, expected: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArrayStore([700, 600], size=(96, 128))
    words: dict[str, Any] = {"device": "cpu", "threads": 1, "engine": "thread", "output": "numpy", **options}
    with Loader(store, Window(), 8, (96, 128), memory="1GiB", **words) as loader:
        memory = int(sum(full_bytes_of(loader._sources)) * needed)
    asked: list[bool | str] = []
    target_for = loader_module.target_for

    def recorded(device: Any, output: str, gpu_decode: bool | str, shaping: Any) -> Any:
        asked.append(gpu_decode)
        return target_for(device, output, gpu_decode, shaping)

    monkeypatch.setattr(loader_module, "target_for", recorded)
    with Loader(store, Window(), 8, (96, 128), memory=memory, **words):
        assert asked[-1] == expected
