"""One profile for all property tests: a shared machine's pace is no finding, and the gate repeats itself exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() not in ("", "0", "false"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


@pytest.fixture(autouse=True, scope="session")
def own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that tests make goes into the cache of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_real_time_left_behind() -> Iterator[None]:
    """A peer's AV1 encoder, run by root, makes the test process a real-time one: its children could stop a machine."""
    from penstock.media.video.priority import ordinary_priority

    with ordinary_priority():
        yield
