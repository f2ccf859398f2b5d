"""Every test of the profile begins with an empty record and leaves none."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock import profile
from penstock._src.profile.record.registry import registered, unregister
from tests.threads import collect_garbage


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    collect_garbage()
    if registered():
        gc.collect()  # loaders that tests of this process left: they end before the record begins
    for kept in registered():
        unregister(kept, forget=True)
    profile.enable()
    profile.reset()
    yield
    profile.enable()
    profile.reset()
