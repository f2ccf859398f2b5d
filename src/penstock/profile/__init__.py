"""Where the time of a training step goes: spans over threads and processes, outputs, and a verdict that is checked."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.profile.counters import count, gauge
from penstock.profile.epochs import mark_epoch
from penstock.profile.marks import add_wait, data_wait, mark_step
from penstock.profile.snapshot import Snapshot, SpanStats
from penstock.profile.spans import disable, enable, is_enabled, log_timing, record, span
from penstock.profile.taking import load, reset, save, snapshot, tell_machine

if TYPE_CHECKING:
    from penstock.profile.attach import attach, detach
    from penstock.profile.doors import callback, export_html, export_trace, live, print_timing_stats, table
    from penstock.profile.gpu import gpu_span
    from penstock.profile.subject import register
    from penstock.profile.verdict import verdict

# Loaded at first use: the loader wants spans, not pages and verdicts.
_HOMES = {
    "attach": "attach",
    "callback": "doors",
    "detach": "attach",
    "export_html": "doors",
    "export_trace": "doors",
    "gpu_span": "gpu",
    "live": "doors",
    "print_timing_stats": "doors",
    "register": "subject",
    "table": "doors",
    "verdict": "verdict",
}

counter = count
wait = data_wait

__all__ = [
    "Snapshot",
    "SpanStats",
    "add_wait",
    "attach",
    "callback",
    "count",
    "counter",
    "data_wait",
    "detach",
    "disable",
    "enable",
    "export_html",
    "export_trace",
    "gauge",
    "gpu_span",
    "is_enabled",
    "live",
    "load",
    "log_timing",
    "mark_epoch",
    "mark_step",
    "print_timing_stats",
    "record",
    "register",
    "reset",
    "save",
    "snapshot",
    "span",
    "table",
    "tell_machine",
    "verdict",
    "wait",
]


class _Package(ModuleType):
    """Keeps `profile.table` a function when somebody imports the module of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{self.__name__}.{_HOMES[name]}"), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted(__all__)


sys.modules[__name__].__class__ = _Package
