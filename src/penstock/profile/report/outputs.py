"""The outputs of the profile that is being recorded: each takes a snapshot unless one is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.profile.record.session import snapshot as take
from penstock.profile.snapshot import Snapshot

if TYPE_CHECKING:
    from penstock.profile.report.live import LiveView


def table(snapshot: Snapshot | None = None, **options: Any) -> str:
    """The stages as a table, the longest total first; options: `lang="zh"`, `detail=False`, `limit`, `title`."""
    from penstock.profile.report.table import table as render

    return render(take(events=False) if snapshot is None else snapshot, **options)


def print_timing_stats(epoch: int | None = None, *, lang: Any = "en", snapshot: Snapshot | None = None) -> None:
    """Print the table of all spans so far; with `epoch`, the line and the table of that epoch, which has ended.

    The tables of the last sixteen epochs are kept; of an earlier one, and of a snapshot, the line alone is known.
    """
    from penstock.profile.record.session import of_epoch
    from penstock.profile.report.table import epoch_line
    from penstock.profile.report.table import table as render

    taken = take(events=False) if snapshot is None else snapshot
    if epoch is None:
        print(render(taken, lang=lang))
        return
    ended = [each for each in taken.epochs if each.epoch == epoch]
    if not ended:
        known = ", ".join(str(each.epoch) for each in taken.epochs[-10:])
        hint = f"epochs that have ended: {known}" if known else "profile.mark_epoch() tells that an epoch has ended"
        raise UsageError(f"epoch {epoch!r} has not ended", hint=hint)
    for each in ended:
        print(epoch_line(each.epoch, each.duration_ns, wait_ns=each.wait_ns, steps=each.steps, lang=lang))
    alone = of_epoch(epoch) if snapshot is None else None
    if alone is not None:
        print(render(alone, lang=lang))


def export_trace(path: str | os.PathLike[str], snapshot: Snapshot | None = None) -> Path:
    """Write the last events of all threads for Perfetto or chrome://tracing."""
    from penstock.profile.report.trace import export_trace as export

    return export(take() if snapshot is None else snapshot, path)


def export_html(path: str | os.PathLike[str], snapshot: Snapshot | None = None, **options: Any) -> Path:
    """Write one HTML page that needs nothing else: timeline of the step, stages, data wait and memory over time."""
    from penstock.profile.report.page import export_html as export

    return export(take() if snapshot is None else snapshot, path, **options)


def live(**options: Any) -> LiveView:
    """`with profile.live(): train()` shows the stages of the last seconds in the terminal."""
    from penstock.profile.report.live import LiveView

    return LiveView(lambda: take(events=False), **options)


def callback(since: Snapshot | None = None, *, snapshot: Snapshot | None = None, **options: Any) -> dict[str, float]:
    """The profile as a flat dict for wandb.log or TensorBoard; since an earlier snapshot, or since the beginning."""
    from penstock.profile.report.callback import scalars

    return scalars(take(events=False) if snapshot is None else snapshot, since=since, **options)
