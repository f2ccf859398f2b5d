"""Where the time of a training step goes: spans over threads and processes, outputs, and a verdict that is checked.

from penstock import profile
with profile.span("decode"):
    ...
profile.print_timing_stats()
"""

from penstock._src.profile.record.gpu import gpu_span
from penstock._src.profile.record.session import load, mark_epoch, reset, save, snapshot
from penstock._src.profile.record.spans import count, disable, enable, gauge, is_enabled, log_timing, span
from penstock._src.profile.record.steps import data_wait, leave_out, mark_step
from penstock._src.profile.report.callback import callback
from penstock._src.profile.report.live import live
from penstock._src.profile.report.page import export_html
from penstock._src.profile.report.table import epoch_line, print_timing_stats, table
from penstock._src.profile.report.trace import export_trace
from penstock._src.profile.stats import Snapshot, SpanStats
from penstock._src.profile.torch.attach import attach, detach
from penstock._src.profile.verdict.verdict import verdict

__all__ = [
    "Snapshot",
    "SpanStats",
    "attach",
    "callback",
    "count",
    "data_wait",
    "detach",
    "disable",
    "enable",
    "epoch_line",
    "export_html",
    "export_trace",
    "gauge",
    "gpu_span",
    "is_enabled",
    "leave_out",
    "live",
    "load",
    "log_timing",
    "mark_epoch",
    "mark_step",
    "print_timing_stats",
    "reset",
    "save",
    "snapshot",
    "span",
    "table",
    "verdict",
]
