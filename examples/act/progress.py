"""Signs of life: a line for the first step, for every Nth, and whenever half a minute went by without one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .messages import Language, message
from .texts import format_duration

_LONGEST_SILENCE_S = 30.0


class Progress:
    """Decides which steps get a line, and writes it; `every` 0 asks for none."""

    def __init__(self, total: int, every: int, language: Language = "en") -> None:
        self._total, self._every, self._language = total, every, language
        self._is_first = True
        self._told_step, self._told_s = 0, time.perf_counter()

    def begin(self, step: int) -> None:
        """Training goes on behind `step`: what was done meanwhile (validation, checkpoints) is no step's time."""
        self._told_step, self._told_s = step, time.perf_counter()

    def leave_out(self, spent_s: float) -> None:
        """So much time was spent just now on what belongs to no step."""
        self._told_s += spent_s

    def is_due(self, step: int) -> bool:
        """Whether the step that has just ended gets a line."""
        if not self._every:
            return False
        silent_s = time.perf_counter() - self._told_s
        return self._is_first or step % self._every == 0 or silent_s >= _LONGEST_SILENCE_S

    def line(self, step: int, sums: Sequence[float]) -> str:
        """Of this step, with the time of a step since the last line and the means of the epoch so far."""
        now_s = time.perf_counter()
        each_ns = round(1e9 * (now_s - self._told_s) / max(step - self._told_step, 1))
        self._is_first, self._told_step, self._told_s = False, step, now_s
        loss, l1, kl, count = sums
        means = f"loss {loss / count:.4f} l1 {l1 / count:.4f} kl {kl / count:.4f}"
        each = format_duration(each_ns)
        return message("step", self._language, step=step, total=self._total, each=each, means=means)
