"""Random numbers that go on as if nobody had drawn any in between: a trial must not change what is trained."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def preserved_rng_state() -> Iterator[None]:
    """Afterwards the generators that everybody shares (Python's, numpy's, torch's) stand where they stood."""
    kept = list(_kept())
    try:
        yield
    finally:
        for give_back, state in kept:
            give_back(state)


def _kept() -> Iterator[tuple[Callable[[Any], Any], Any]]:
    yield random.setstate, random.getstate()
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    if numpy is not None:
        yield numpy.set_state, numpy.get_state()
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "get_rng_state"):  # not there, or just being imported
        return
    yield torch.set_rng_state, torch.get_rng_state()
    if torch.cuda.is_initialized():
        yield torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()
