"""Values between the training process and the engine that it has started itself, as bytes.

The only place that unpickles: what comes here was packed by the other end of a socket without a name, which no other
process can open. Nothing that was read from a file or a network is ever unpacked.
"""

from __future__ import annotations

import pickle
from typing import Any

from penstock.errors import PenstockError

CannotPack = pickle.PicklingError


def pack(value: Any) -> bytes:
    """A value as bytes; stores travel as what opens them again, errors whole."""
    return pickle.dumps(value)


def pack_error(error: BaseException | None) -> bytes:
    """An error; where it cannot travel, its text."""
    try:
        data = pack(error)
        unpack(data)  # some errors can be packed and not unpacked
        return data
    except Exception:
        return pack(PenstockError(f"{type(error).__name__}: {error}"))


def unpack(data: bytes) -> Any:
    """What the other process has packed."""
    return pickle.loads(data)
