"""Cameras that were recorded as H.264 or H.265: moved as they are where every row takes the next image, else decoded.

An image of such a stream can only be decoded after those before it, back to a key frame. So an episode reads, besides
the messages of its rows, whatever its decoder needs; and where one message is damaged, the rest of its group is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.camera import CameraConversion, refusal
from penstock._src.conversion.cameras.workers import ImageChanged
from penstock._src.conversion.inputs.columns import CameraColumn, RecordingColumns
from penstock._src.conversion.inputs.pairing import CameraRuns, PairedRows
from penstock._src.conversion.settings import Settings

if TYPE_CHECKING:
    from penstock._src.media.h26x.stream_index import StreamIndex


@dataclass(frozen=True, eq=False)
class StreamFeed:
    """What one camera's stream gives to the rows of one episode."""

    index: StreamIndex
    numbers: NDArray[np.int64]  # the messages that are read, in the order of the stream
    runs: NDArray[np.int64]  # the images in the order of the rows, and
    lengths: NDArray[np.int64]  # for how many rows each stands
    reaches: NDArray[np.int64]  # by row: the last message that the rows up to it need
    first_row: int
    in_order: bool  # images take the times of the messages in the order in which they are shown
    reason: str | None  # why the images are encoded anew; None: they are moved as they are

    @property
    def lookahead(self) -> int:
        """Messages that a decoder may need besides, before it shows an image."""
        return 2 * self.index.delay + 1 if self.index.delay else 0


class FeedCursor:
    """Walks through a feed, flush by flush."""

    def __init__(self, feed: StreamFeed) -> None:
        self.feed = feed
        self._place = 0

    def runs(self, start: int, stop: int) -> CameraRuns:
        """The messages to read for these rows."""
        feed = self.feed
        reaches = feed.reaches[start - feed.first_row : stop - feed.first_row]
        end = int(np.searchsorted(feed.numbers, reaches[-1], side="right")) + feed.lookahead
        if stop == feed.first_row + len(feed.reaches):
            end = len(feed.numbers)
        numbers = feed.numbers[self._place : max(end, self._place)]
        self._place += len(numbers)
        rows = np.minimum(np.searchsorted(reaches, numbers), len(reaches) - 1)
        return CameraRuns(numbers, rows, [1] * len(numbers), 0)


def plan_feed(column: CameraColumn, paired: PairedRows, rows: range, settings: Settings) -> StreamFeed:
    """Which messages an episode reads of a stream, and whether they can be moved as they are."""
    index = _index_of(column)
    picks = _picks(column, paired, rows)
    begins = np.flatnonzero(np.concatenate(([True], picks[1:] != picks[:-1])))
    reason = why_encoded(column, paired, rows)
    if reason is not None and column.only_copied:  # messages turned out to be unusable after the plan was made
        raise refusal(f"rows {rows.start:,}–{rows.stop - 1:,}", column.key, reason)
    numbers = picks if reason is None else _needed(index, picks, paired.unusable.get(column.topic.id, frozenset()))
    _refuse_other_size(column, index, numbers)
    return StreamFeed(
        index=index,
        numbers=numbers,
        runs=picks[begins],
        lengths=np.diff(np.append(begins, len(picks))),
        reaches=np.maximum.accumulate(picks),
        first_row=rows.start,
        in_order=(column.source.time or settings.time) == "log",
        reason=reason,
    )


def why_encoded(column: CameraColumn, paired: PairedRows, rows: range) -> str | None:
    """Why the images of an episode must be encoded anew; None where they can be moved as they are."""
    from penstock._src.media.h26x.stream_order import KEY, REORDERED

    index = _index_of(column)
    if column.output != "copy":
        return f"video={column.output} was asked for"
    if column.resized:
        return "they are resized"
    picks = _picks(column, paired, rows)
    steps = np.diff(picks)
    odd = np.flatnonzero(steps != 1)
    if len(odd):
        at = int(odd[0])
        step = int(steps[at])
        if step == 0:
            return f"row {rows.start + at + 1:,} shows message {int(picks[at]):,} again"
        if step < 0:
            return f"row {rows.start + at + 1:,} goes back from message {int(picks[at]):,} to {int(picks[at + 1]):,}"
        return f"the rows leave out messages, the first after message {int(picks[at]):,}"
    used = slice(int(picks[0]), int(picks[-1]) + 1)
    if index.has(REORDERED)[used].any():
        return "its images do not come in the order in which they are shown (B-frames)"
    if not index.has(KEY)[picks[0]]:
        key = index.key_at_or_before(int(picks[0]))
        return f"the episode begins at message {int(picks[0]):,}, between two key frames (the one before is {key})"
    changes = np.flatnonzero(np.diff(index.versions[used]))
    if len(changes):
        return f"its parameter sets change at message {int(picks[0]) + 1 + int(changes[0]):,}"
    if not index.sets[int(index.versions[picks[0]])].picture.progressive:
        return "it is interlaced"
    return None


def unusable_picks(column: CameraColumn, paired: PairedRows, rows: range) -> list[tuple[int, str | None]]:
    """Messages that the scan found unusable and that rows would take, with all beside them; None: its chunk is lost."""
    from penstock._src.media.h26x.stream_index import BEFORE_KEY, MISSING, UNUSABLE, depends_on

    index = _index_of(column)
    bad = index.has(UNUSABLE)
    hit = np.flatnonzero(bad[_picks(column, paired, rows)])
    if not len(hit):
        return []
    # Runs of unusable messages: a row that cannot have one would otherwise be given the next.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], bad, [False])).astype(np.int8)))
    picked = _picks(column, paired, rows)[hit]
    touched = sorted({int(run) for run in (np.searchsorted(edges, picked, side="right") - 1) // 2})
    unusable: list[tuple[int, str | None]] = []
    for run in touched:
        first, stop = int(edges[2 * run]), int(edges[2 * run + 1])
        why = index.why(first)
        others = why if why == BEFORE_KEY else depends_on(first)
        for number in range(first, stop):
            reason = index.reasons.get(number, why if number == first else others)
            unusable.append((number, None if index.flags[number] & MISSING else reason))
    return unusable


def conversion_of(column: CameraColumn, paired: PairedRows, episodes: Sequence[range]) -> CameraConversion:
    """What becomes of a camera's images, for the plan."""
    if column.stream is None:
        return column.conversion(sum(map(len, episodes)))
    spans = [rows for rows in episodes if len(rows)]
    encoded = [rows for rows in spans if why_encoded(column, paired, rows) is not None]
    some = "" if len(encoded) == len(spans) else f" ({len(encoded):,} of {len(spans):,} episodes)"
    return CameraConversion(column.key, column.kind, column.stored_as, column.size_px, sum(map(len, encoded)), some)


def refuse_encoding(column: CameraColumn, path: Path, paired: PairedRows, episodes: Sequence[range]) -> None:
    """Where only copies are wanted, refuse a camera whose images would have to be encoded."""
    if column.stream is None:
        column.refuse_encoding(path)
        return
    if not column.only_copied:
        return
    for number, rows in enumerate(episodes):
        if len(rows) and (reason := why_encoded(column, paired, rows)) is not None:
            raise refusal(f"{path}: episode {number} (rows {rows.start:,}–{rows.stop - 1:,})", column.key, reason)


def stream_notes(columns: RecordingColumns, paired: PairedRows, episodes: Sequence[range]) -> list[str]:
    """What became of every video stream, and why."""
    notes: list[str] = []
    spans = [rows for rows in episodes if len(rows)]
    for camera in columns.cameras:
        if camera.stream is None or not spans:
            continue
        name = f"{camera.key}: {camera.kind.upper()[0]}.{camera.kind[1:]} video"
        reasons = Counter(filter(None, (why_encoded(camera, paired, rows) for rows in spans)))
        encoded = sum(reasons.values())
        target = "JPEG" if camera.stored_as in ("images", "mjpeg") else camera.stored_as
        if not encoded:
            notes.append(f"{name} moved as it is")
            continue
        why, _ = reasons.most_common(1)[0]
        some = f" ({encoded:,} of {len(spans):,} episodes)" if len(spans) > 1 else ""
        notes.append(f"{name} decoded and encoded as {target}, because {why}{some}")
    return notes


def _index_of(column: CameraColumn) -> StreamIndex:
    assert column.stream is not None
    return column.stream


def _picks(column: CameraColumn, paired: PairedRows, rows: range) -> NDArray[np.int64]:
    return np.asarray(paired.picks[column.key].left[rows.start : rows.stop], dtype=np.int64)


def _needed(index: StreamIndex, picks: NDArray[np.int64], gone: frozenset[int]) -> NDArray[np.int64]:
    """From the key frame before each image up to it; whole groups where images are shown out of order."""
    from penstock._src.media.h26x.stream_index import UNUSABLE
    from penstock._src.media.h26x.stream_order import KEY, LEADING

    wanted = np.zeros(len(index.flags), np.bool_)
    wanted[picks] = True
    keys = np.flatnonzero((index.flags & (KEY | UNUSABLE)) == KEY)
    stops = np.append(keys[1:], len(index.flags))
    groups = sorted({int(group) for group in np.searchsorted(keys, np.flatnonzero(wanted), side="right") - 1})
    leads = [group - 1 for group in groups if group and index.has(LEADING)[keys[group] : stops[group]].any()]
    chosen = sorted({*groups, *leads})
    usable = ~index.has(UNUSABLE)
    usable[list(gone)] = False
    parts: list[NDArray[np.int64]] = []
    for group in chosen:
        numbers = np.arange(keys[group], stops[group], dtype=np.int64)
        if not index.delay and group in groups:
            numbers = numbers[: int(np.flatnonzero(wanted[numbers])[-1]) + 1]
        if group - 1 not in chosen:
            numbers = numbers[~index.has(LEADING)[numbers]]  # predicted from what is not read
        parts.append(numbers[usable[numbers]])
    return np.concatenate(parts)


def _refuse_other_size(column: CameraColumn, index: StreamIndex, numbers: NDArray[np.int64]) -> None:
    sizes = [each.picture.size_px for each in index.sets]
    other = np.array([size != column.recorded_px for size in sizes])
    wrong = np.flatnonzero(other[index.versions[numbers]])
    if len(wrong):
        number = int(numbers[wrong[0]])
        height, width = sizes[int(index.versions[number])]
        raise ImageChanged(
            f"{column.name}: message {number:,} is {column.kind} {width}×{height}, "
            f"the first was {column.recorded_px[1]}×{column.recorded_px[0]}",
            hint="split the recording where the camera changed, and convert the parts on their own",
        )
