"""Texts as token numbers of one length: any callable is a tokenizer, Hugging Face's are known by what they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.sampling.order import whole_number
from penstock.errors import UsageError

IGNORED = -100
"""Where a label is padding; losses of torch leave it out."""


class Tokens:
    """A tokenizer with a length: `tokens(text)` is (numbers, mask), both int64 of `max_length`.

    Three kinds are taken: a tokenizer of transformers (it has `pad_token_id`), one of tokenizers (`encode(text).ids`),
    and any callable that makes of a text its numbers, or a mapping with `input_ids`.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.max_length = whole_number("max_length", max_length)
        if self.max_length < 1:
            raise UsageError(f"max_length must be 1 or more, not {max_length}")
        self._tokenizer = tokenizer
        self._is_hugging_face = callable(tokenizer) and hasattr(tokenizer, "pad_token_id")
        if not callable(tokenizer) and not hasattr(tokenizer, "encode"):
            hint = "any callable from a text to its token ids, or a Hugging Face tokenizer"
            raise UsageError(f"{type(tokenizer).__name__} is not a tokenizer", hint=hint)
        self._pad = getattr(tokenizer, "pad_token_id", None) or 0
        self._pads_left = getattr(tokenizer, "padding_side", "right") == "left"

    def __call__(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        numbers = self._numbers(text)[: self.max_length]
        ids = np.full(self.max_length, self._pad, np.int64)
        mask = np.zeros(self.max_length, np.int64)
        place = slice(self.max_length - len(numbers), None) if self._pads_left else slice(len(numbers))
        ids[place] = numbers
        mask[place] = 1
        return ids, mask

    def labels(self, text: str) -> NDArray[np.int64]:
        """The numbers of an answer; -100 where there are none."""
        ids, mask = self(text)
        ids[mask == 0] = IGNORED
        return ids

    def _numbers(self, text: str) -> NDArray[np.int64]:
        if self._is_hugging_face:
            encoded = self._tokenizer(text, truncation=True, max_length=self.max_length)
        elif callable(self._tokenizer):
            encoded = self._tokenizer(text)
        else:
            encoded = self._tokenizer.encode(text).ids
        if isinstance(encoded, Mapping) or hasattr(encoded, "keys"):
            encoded = encoded["input_ids"]
        numbers = np.asarray(encoded).reshape(-1)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise UsageError(f"the tokenizer gives {numbers.dtype} for {text[:40]!r}: whole numbers are needed")
        return numbers.astype(np.int64)
