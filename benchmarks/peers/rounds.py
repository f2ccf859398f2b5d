"""How a contender is run: it gets ready, says so, and then plays one round for every line on its standard input.

    echo | python naive_replay.py replay.hdf5

Every answer is one JSON object on one line. Between rounds a contender does nothing, so that others can be timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_answers = os.fdopen(os.dup(1), "w")  # what libraries print must not stand between the answers
os.dup2(2, 1)


def serve(play: Callable[[], dict[str, Any]], **about: Any) -> None:
    """Play a round for every line that comes, until there are no more."""
    print(json.dumps({"ready": True, **about}), file=_answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(play()), file=_answers, flush=True)


def timed(batches: Iterator[Any], *, warmup: int, count: int, samples: int) -> dict[str, Any]:
    """Take `count` batches after `warmup` that are not counted: what was prefetched for nothing is used up by then."""
    for _ in range(warmup):
        next(batches)
    clock = Clock()
    for _ in range(count):
        batch = next(batches)
        del batch
    return clock.rate(count * samples)


class Clock:
    """Time since it was made: on the wall, and of all threads of this process (of workers beside it nothing)."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def rate(self, samples: int) -> dict[str, Any]:
        seconds, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu
        return {"samples": samples, "seconds": seconds, "per_s": samples / seconds, "cpu_s": cpu_s}
