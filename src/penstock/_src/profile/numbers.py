"""Numbers that a user's code tells: numpy's, and tensors of one element, become plain ones at the door.

A tensor that is kept would hold the graph behind it, and no file takes what is no plain number.
"""

from __future__ import annotations

import operator
from math import inf
from typing import Any

from penstock.errors import UsageError


def real_number(value: Any, call: str) -> float:
    """A float; infinity where none holds it. `call` names who asks: `gauge(name, value)`."""
    try:
        if isinstance(value, str):
            raise TypeError("a text is none")
        # Not float() alone: torch warns of it where there is a graph.
        return float(getattr(value, "item", lambda: value)())
    except OverflowError:
        return inf
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{call}: a number is needed, not a {type(value).__name__}: {error}"
        raise UsageError(message, hint="of a tensor with several elements, tell one number: value.mean()") from error


def whole_number(value: Any, call: str) -> int:
    """An int."""
    try:
        return int(operator.index(value))
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{call}: a whole number is needed, not a {type(value).__name__}"
        raise UsageError(message, hint="int(value) makes one of a float or a text") from error
