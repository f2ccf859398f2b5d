"""Penstock feeds robot-learning data of any size to a GPU through a memory budget that the user sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.budget import Budget
    from penstock.conversion.job import convert
    from penstock.conversion.report import Report
    from penstock.errors import PenstockError

# Loaded at first use: importing penstock imports no other package.
_HOMES = {
    "Budget": "penstock.budget",
    "PenstockError": "penstock.errors",
    "Report": "penstock.conversion.report",
    "convert": "penstock.conversion.job",
}

__all__ = ["Budget", "PenstockError", "Report", "__version__", "convert"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
