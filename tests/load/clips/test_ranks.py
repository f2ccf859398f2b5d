"""Which process this is: by words, or by the variables that torchrun sets."""

from __future__ import annotations

import pytest

from penstock._src.load.clips.ranks import Ranks
from penstock.errors import UsageError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_alone_there_is_one() -> None:
    assert Ranks.find() == Ranks(0, 1, 0, 1)
    assert Ranks.find(gpus=3) == Ranks(0, 1, 0, 3)  # what three of them would get


def test_torchrun_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}  # the second machine
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert Ranks.find() == Ranks(5, 8, 1, 4)


def test_words_say_it() -> None:
    assert Ranks.find(2, 3) == Ranks(2, 3, 2, 3)
    assert Ranks.find(5, 8, gpus=4) == Ranks(5, 8, 1, 4)


def test_half_of_it_is_refused() -> None:
    with pytest.raises(UsageError, match="go together"):
        Ranks.find(rank=1)
    with pytest.raises(UsageError, match="rank 3 of 3"):
        Ranks.find(3, 3)
