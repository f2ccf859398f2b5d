"""Where the time of a training step goes: spans over threads and processes, outputs, and a verdict that is checked.

The function `record` has the name of a sub-package. `from penstock.profile.record.spans import span` finds the
sub-package; `profile.record` is the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The sub-package `record` is imported here, so that no later import of it hides the function.
from penstock.profile.record.spans import disable, enable, is_enabled, log_timing, record, span

if TYPE_CHECKING:
    from penstock.profile.diagnosis.verdict import verdict
    from penstock.profile.record.counters import count, gauge
    from penstock.profile.record.counters import count as counter
    from penstock.profile.record.gpu import gpu_span
    from penstock.profile.record.machine import tell_machine
    from penstock.profile.record.registry import register
    from penstock.profile.record.session import load, mark_epoch, reset, save, snapshot
    from penstock.profile.record.steps import add_wait, data_wait, mark_step
    from penstock.profile.record.steps import data_wait as wait
    from penstock.profile.report.callback import callback
    from penstock.profile.report.live import live
    from penstock.profile.report.page import export_html
    from penstock.profile.report.table import print_timing_stats, table
    from penstock.profile.report.trace import export_trace
    from penstock.profile.stats import Snapshot, SpanStats
    from penstock.profile.torch.attach import attach, detach

# Loaded at first use: a command that only records spans pays for nothing else.
_HOMES = {
    "Snapshot": "stats",
    "SpanStats": "stats",
    "add_wait": "record.steps",
    "attach": "torch.attach",
    "callback": "report.callback",
    "count": "record.counters",
    "counter": "record.counters:count",
    "data_wait": "record.steps",
    "detach": "torch.attach",
    "export_html": "report.page",
    "export_trace": "report.trace",
    "gauge": "record.counters",
    "gpu_span": "record.gpu",
    "live": "report.live",
    "load": "record.session",
    "mark_epoch": "record.session",
    "mark_step": "record.steps",
    "print_timing_stats": "report.table",
    "register": "record.registry",
    "reset": "record.session",
    "save": "record.session",
    "snapshot": "record.session",
    "table": "report.table",
    "tell_machine": "record.machine",
    "verdict": "diagnosis.verdict",
    "wait": "record.steps:data_wait",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.profile' has no attribute {name!r}")
    home, _, inner = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(f"penstock.profile.{home}"), inner or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
