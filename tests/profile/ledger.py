"""A file in which worker processes note what they handed out; each may wait for the notes of the others."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_PATIENCE_S = 100.0  # less than the time that a DataLoader is given: who waits in vain says so


class Ledger:
    """Numbers, one after the other, written by any process and never torn."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, numbers: Iterable[int]) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, b"".join(b"%d\n" % number for number in numbers))
        finally:
            os.close(fd)

    def noted(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []

    def until(self, count: int) -> None:
        """Wait until so many numbers are there."""
        end = time.monotonic() + _PATIENCE_S
        while len(self.noted()) < count:
            assert time.monotonic() < end, f"{len(self.noted())} of {count} were noted"
            time.sleep(0.005)


def until_a_worker_dies(batches: Any, taken: Ledger) -> bool:
    """Whether one did; until then, the numbers of the batches that came are noted.

    The others are told to end: one that is at work might be ended in the midst of it. A batch of the dead one that is
    on its way is another error than its death: it should die when all of its batches were taken.
    """
    has_died = False
    try:
        for number, _ in enumerate(batches):
            taken.note([number])
    except RuntimeError as error:
        has_died = "worker" in str(error)
    gc.collect()  # the iterator, whose end tells them
    return has_died
