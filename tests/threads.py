"""Threads of penstock that a test has begun; those that earlier tests left are not its affair."""

from __future__ import annotations

import gc
import threading
import time
import weakref

_PATIENCE_S = 60.0
_MOMENT_S = 2.0
_held: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that did not end in a moment: they are waited for once, not again before each test."""


def penstock_threads(prefix: str = "penstock") -> set[threading.Thread]:
    """Those that run now."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(prefix)}


def earlier_threads() -> set[threading.Thread]:
    """Those of loaders that earlier tests forgot, once these are collected: to be left out of what comes."""
    gc.collect()
    return penstock_threads()


def collect_garbage() -> None:
    """What earlier tests forgot ends now, and not in the midst of what is counted next."""
    if not penstock_threads() - set(_held):
        return
    gc.collect()
    end = time.monotonic() + _MOMENT_S  # those that somebody still holds do not end
    while penstock_threads() - set(_held) and time.monotonic() < end:
        time.sleep(0.005)
    _held.update(penstock_threads())


def left_running(before: set[threading.Thread], prefix: str = "penstock") -> list[str]:
    """The names of those that are new and do not end: what was forgotten is ended by itself, a moment later."""
    end = time.monotonic() + _PATIENCE_S
    while (left := penstock_threads(prefix) - before) and time.monotonic() < end:
        time.sleep(0.005)
    return sorted(thread.name for thread in left)
