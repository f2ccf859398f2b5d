"""Durations and sizes for people."""

from __future__ import annotations


def format_duration(duration_ns: int) -> str:
    """ "4.0 ms", "33.1 s", "5 min 40 s"."""
    seconds = duration_ns / 1e9
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def format_mib(size_bytes: int) -> str:
    """ "143 MiB", "0.5 MiB"."""
    mib = size_bytes / (1 << 20)
    return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"
