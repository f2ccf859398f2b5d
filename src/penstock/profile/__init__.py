"""Where the time of a training step goes: spans over threads and processes, outputs, and a verdict that is checked.

Two functions, `record` and `verdict`, have the names of sub-packages. `from penstock.profile.record.spans import span`
finds the sub-package; `profile.record` is the function.
"""

from __future__ import annotations

from penstock.profile.record.counters import count, gauge
from penstock.profile.record.gpu import gpu_span
from penstock.profile.record.machine import tell_machine
from penstock.profile.record.registry import register
from penstock.profile.record.session import load, mark_epoch, reset, save, snapshot
from penstock.profile.record.spans import disable, enable, is_enabled, log_timing, record, span
from penstock.profile.record.steps import add_wait, data_wait, mark_step
from penstock.profile.report.callback import callback
from penstock.profile.report.live import live
from penstock.profile.report.page import export_html
from penstock.profile.report.table import print_timing_stats, table
from penstock.profile.report.trace import export_trace
from penstock.profile.snapshot import Snapshot, SpanStats
from penstock.profile.torch.attach import attach, detach
from penstock.profile.verdict.verdict import verdict

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
