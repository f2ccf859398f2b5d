"""Words and answers as numbers: counted in the training data, kept with the checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import penstock

_WORD = re.compile(r"\w+")
_BLOCK = 4096
PADDING, UNKNOWN = 0, 1
UNKNOWN_ANSWER = -100
"""An answer that the training data do not have: no loss is taken of it, and it is never right."""


@dataclass(frozen=True)
class Words:
    """The vocabulary of questions, and the answers to choose from. Calling it makes of a text its numbers."""

    words: tuple[str, ...]
    answers: tuple[str, ...]
    prior: float
    """How often the most frequent answer is right."""
    question_prior: float
    """How often the most frequent answer to each question is: what can be had without looking."""
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)
    _answer_numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {word: n for n, word in enumerate(self.words, UNKNOWN + 1)})
        object.__setattr__(self, "_answer_numbers", {answer: n for n, answer in enumerate(self.answers)})

    @property
    def count(self) -> int:
        return len(self.words) + UNKNOWN + 1

    def __call__(self, text: str) -> list[int]:
        return [self._numbers.get(word, UNKNOWN) for word in _WORD.findall(text.lower())] or [UNKNOWN]

    def answer_number(self, answer: str) -> int:
        return self._answer_numbers.get(answer.strip().lower(), UNKNOWN_ANSWER)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "words": list(self.words), "answers": list(self.answers), "prior": self.prior,
            "question_prior": self.question_prior,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Words:
        return cls(tuple(state["words"]), tuple(state["answers"]), state["prior"], state["question_prior"])


def count_words(store: penstock.Store, most_answers: int = 1000) -> Words:
    """One pass over the texts of the training data; the most frequent answers are those to choose from."""
    words: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for first in range(0, store.rows, _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, store.rows))
        texts = zip(store.texts("question", rows), store.texts("answer", rows), strict=True)
        for question, answer in ((question.lower(), answer.strip().lower()) for question, answer in texts):
            words.update(_WORD.findall(question))
            answers[answer] += 1
            pairs[question, answer] += 1
    best: dict[str, int] = {}
    for (question, _), count in pairs.items():
        best[question] = max(best.get(question, 0), count)
    kept = [answer for answer, _ in answers.most_common(most_answers)]
    prior = answers.most_common(1)[0][1] / store.rows
    return Words(tuple(sorted(words)), tuple(sorted(kept)), prior, sum(best.values()) / store.rows)
