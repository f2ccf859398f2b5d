"""Every test of the profile begins with an empty record and leaves none."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock import profile
from penstock._src.profile.record import layout, spans
from penstock._src.profile.record.registry import registered, unregister
from tests.threads import collect_garbage

_kept: list[object] = []


def fresh_page() -> None:
    """A thread's page has room for 256 names, and tests that make many share the thread."""
    buffer = getattr(spans._local, "buffer", None)
    if buffer is not None and buffer.words[layout.P_NODES] > layout.N_NODES // 4:
        _kept.append(buffer)  # else its page would be the next one again
        del spans._local.buffer


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    collect_garbage()
    if registered():
        gc.collect()  # loaders that tests of this process left: they end before the record begins
    for kept in registered():
        unregister(kept, forget=True)
    fresh_page()
    profile.enable()
    profile.reset()
    yield
    profile.enable()
    profile.reset()
