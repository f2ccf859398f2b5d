"""Every test of the profile begins with an empty record and leaves none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import profile


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    profile.enable()
    profile.reset()
    yield
    profile.enable()
    profile.reset()
