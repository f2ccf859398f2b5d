"""A disk that breaks: the N-th call that changes something fails, alone or with all that follow it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

SYSTEM_CALLS = (
    "fdatasync", "fsync", "ftruncate", "link", "mkdir", "pwrite", "pwritev", "remove", "rename", "replace", "rmdir",
    "truncate", "unlink", "write",
)  # fmt: skip


class BreakingDisk:
    """Counts the calls; from number `at` on (`for_good`), or at that one alone, they raise."""

    def __init__(self, at: int | None = None, *, for_good: bool = False, code: int = errno.EIO) -> None:
        self.at = at
        self.for_good = for_good
        self.code = code
        self.calls = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in SYSTEM_CALLS:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))
        # Arrow writes below Python: its calls are counted where they begin.
        for name in ("write_table", "close"):
            patch.setattr(pq.ParquetWriter, name, self._wrapped(getattr(pq.ParquetWriter, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            number = self.calls
            self.calls += 1
            if self.at is not None and (number == self.at or (self.for_good and number > self.at)):
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **keywords)

        return call
