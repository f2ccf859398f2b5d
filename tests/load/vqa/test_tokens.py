"""Tokenizers of every kind give numbers of one length, with a mask and labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock._src.load.vqa.tokens import Tokens
from penstock.errors import UsageError


def _letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class HuggingFaceLike:
    """What a tokenizer of transformers answers to."""

    pad_token_id = 9
    padding_side = "right"

    def __call__(self, text: str, truncation: bool, max_length: int) -> dict[str, Any]:
        assert truncation
        ids = [1, *_letters(text)][:max_length]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def test_a_callable_is_a_tokenizer() -> None:
    ids, mask = Tokens(_letters, 4)("ab")
    assert ids.tolist() == [97, 98, 0, 0] and mask.tolist() == [1, 1, 0, 0]
    assert ids.dtype == mask.dtype == np.int64
    assert Tokens(_letters, 2)("abc")[0].tolist() == [97, 98]
    assert Tokens(lambda text: np.array([len(text)], np.int32), 2)("abc")[0].tolist() == [3, 0]


def test_a_tokenizer_of_transformers() -> None:
    tokenizer = HuggingFaceLike()
    assert Tokens(tokenizer, 4)("ab")[0].tolist() == [1, 97, 98, 9]
    tokenizer.padding_side = "left"
    ids, mask = Tokens(tokenizer, 4)("a")
    assert ids.tolist() == [9, 9, 1, 97] and mask.tolist() == [0, 0, 1, 1]


def test_a_tokenizer_of_tokenizers() -> None:
    tokenizer = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=_letters(text)))
    assert Tokens(tokenizer, 3)("ab")[0].tolist() == [97, 98, 0]


def test_labels_leave_padding_out() -> None:
    assert Tokens(_letters, 3).labels("a").tolist() == [97, -100, -100]
    assert Tokens(_letters, 2).labels("").tolist() == [-100, -100]


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="int is not a tokenizer"):
        Tokens(3, 4)
    with pytest.raises(UsageError, match="max_length"):
        Tokens(_letters, 0)
    with pytest.raises(UsageError, match="whole numbers are needed"):
        Tokens(lambda text: [0.5], 4)("a")
