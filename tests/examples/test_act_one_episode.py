"""A single episode cannot be split: the error says what would help."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError

pytest.importorskip("torch")

from act.data import split_episodes


def test_one_episode_is_too_few_and_the_hint_says_what_helps() -> None:
    with pytest.raises(UsageError, match="1 episode: one to train on") as caught:
        split_episodes(1, 0.2, 0)
    assert "--dataset" in str(caught.value.hint) and "--episodes" in str(caught.value.hint)
