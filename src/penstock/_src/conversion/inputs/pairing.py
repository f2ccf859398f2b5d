"""Which message of which topic every row takes: the columns of one recording, aligned before any payload is read.

And the messages that a run of rows needs, each once, in the order in which the rows need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align import Alignment, FixedTimeline, RowPick, TopicStream, TopicTimeline, align
from penstock._src.conversion.inputs.columns import RecordingColumns
from penstock._src.conversion.settings import FIXED, Settings, TopicSource
from penstock._src.recordings.recording import Recording, Topic
from penstock.errors import AlignError

if TYPE_CHECKING:
    from penstock._src.recordings.values.transforms import EdgeMessages

TIMELINE = "timeline"

# Message numbers that turned out to be unusable, by topic id: the alignment is made again without them.
Unusable = Mapping[int, frozenset[int]]


class PairedRows(NamedTuple):
    """The rows of one recording: `picks` holds one entry per camera and one per part of a vector."""

    fps: int
    rows: int
    picks: Mapping[str, RowPick]
    alignment: Alignment
    unusable: Unusable


def pair(recording: Recording, columns: RecordingColumns, settings: Settings, unusable: Unusable) -> PairedRows:
    """Align every column of a recording; message numbers in the result are those of the recording."""
    kept: dict[str, NDArray[np.int32] | None] = {}
    streams: list[TopicStream] = []
    for name, topic, source, messages in _all_sources(columns):
        stream, numbers = _stream(recording, name, topic, source, settings, unusable, messages)
        streams.append(stream)
        kept[name] = numbers
    timeline: FixedTimeline | TopicTimeline
    if settings.timeline == FIXED and settings.fps is not None:
        timeline = FixedTimeline(fps=settings.fps)
    else:
        main = recording.topic(str(settings.timeline))
        whole = [(name, topic) for name, topic, _, messages in _all_sources(columns) if messages is None]
        owner = next((name for name, topic in whole if topic.id == main.id), None)
        if owner is None:
            owner = TIMELINE
            streams.append(_stream(recording, owner, main, TopicSource(main.name), settings, unusable)[0])
        timeline = TopicTimeline(stream=owner, stride=settings.stride, fps=settings.fps)
    try:
        alignment = align(streams, timeline, sample_drop=settings.sample_drop)
    except AlignError as error:
        raise AlignError(f"{recording.path}: {error.message}", hint=error.hint) from error
    picks = {name: _recorded_pick(alignment.picks[name], numbers) for name, numbers in kept.items()}
    return PairedRows(alignment.fps, len(alignment.row_times_ns), picks, alignment, unusable)


def _all_sources(columns: RecordingColumns) -> list[tuple[str, Topic, TopicSource, EdgeMessages | None]]:
    sources: list[tuple[str, Topic, TopicSource, EdgeMessages | None]] = [
        (camera.key, camera.topic, camera.source, None) for camera in columns.cameras
    ]
    for vector in columns.vectors:
        for part in vector.parts:
            sources.append((part.stream, part.topic, part.source, part.messages))
    return sources


def _stream(
    recording: Recording,
    name: str,
    topic: Topic,
    source: TopicSource,
    settings: Settings,
    unusable: Unusable,
    messages: EdgeMessages | None = None,
) -> tuple[TopicStream, NDArray[np.int32] | None]:
    clock = source.time or settings.time
    numbers: NDArray[np.int32] | None = None
    if messages is not None:
        numbers = messages.numbers
        times = messages.stamps_ns if clock == "header" else recording.times_ns(topic)[numbers]
    else:
        times = recording.header_times_ns(topic) if clock == "header" else recording.times_ns(topic)
    if bad := unusable.get(topic.id):
        mask = ~np.isin(np.arange(len(times)) if numbers is None else numbers, list(bad))
        numbers = (np.arange(len(times), dtype=np.int32) if numbers is None else numbers)[mask]
        times = times[mask]
    tolerance = settings.tolerance if source.tolerance is None else source.tolerance
    stream = TopicStream(
        name=name,
        times_ns=times,
        policy=source.policy or "nearest",
        tolerance_ns=tolerance,
        offset_ns=source.time_offset,
        missing=source.missing or settings.missing,
        is_static=messages is not None and messages.is_static,
    )
    return stream, numbers


def _recorded_pick(pick: RowPick, numbers: NDArray[np.int32] | None) -> RowPick:
    if numbers is None:
        return pick
    right = None if pick.right is None else numbers[pick.right]
    return replace(pick, left=numbers[pick.left], right=right)


class CameraRuns(NamedTuple):
    """A camera's share of a run of rows: distinct messages and how many rows each stands for."""

    numbers: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    lengths: list[int]
    held_rows: int  # leading rows that still show the last image of the run before


class VectorNeeds(NamedTuple):
    """A vector part's share: distinct messages, and for each row where its value (or two) lies among them."""

    pick: RowPick
    numbers: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Requests:
    """What to fetch; `owners[k]` is the position of the share that asked for message k, `slots[k]` its place there."""

    topic_ids: NDArray[np.int32]
    numbers: NDArray[np.int64]
    owners: list[int]
    slots: list[int]

    def __len__(self) -> int:
        return len(self.owners)


def camera_runs(pick: RowPick, start: int, stop: int, last_number: int | None) -> CameraRuns:
    left = np.asarray(pick.left[start:stop], dtype=np.int64)
    begins = np.flatnonzero(np.concatenate(([True], left[1:] != left[:-1])))
    lengths = np.diff(np.append(begins, len(left)))
    held = 0
    if last_number is not None and int(left[0]) == last_number:
        held = int(lengths[0])
        begins, lengths = begins[1:], lengths[1:]
    return CameraRuns(left[begins], begins, lengths.tolist(), held)


def vector_needs(pick: RowPick, start: int, stop: int) -> VectorNeeds:
    pick = pick[start:stop]
    if pick.right is None:
        numbers, first, places = _distinct(pick.left)
        return VectorNeeds(pick, numbers, first, places, None)
    numbers, first, places = _distinct(np.stack((pick.left, pick.right), axis=1).reshape(-1))
    return VectorNeeds(pick, numbers, first // 2, places[0::2], places[1::2])


def _distinct(values: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct values, where each is first, and each value's place among them (np.unique loads 13 ms of numpy.ma)."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    is_new = np.concatenate(([True], ranked[1:] != ranked[:-1]))
    places = np.empty(len(values), dtype=np.int64)
    places[order] = np.cumsum(is_new) - 1
    return ranked[is_new].astype(np.int64), order[is_new], places


def merge(shares: Sequence[CameraRuns | VectorNeeds], topic_ids: Sequence[int]) -> Requests:
    """One list for the reader, row by row: what belongs together in time lies together in the file."""
    counts = [len(share.numbers) for share in shares]
    rows = np.concatenate([share.first_rows for share in shares])
    owners = np.repeat(np.arange(len(shares)), counts)
    slots = np.concatenate([np.arange(count) for count in counts])
    numbers = np.concatenate([share.numbers for share in shares])
    order = np.lexsort((owners, rows))
    ids = np.repeat(np.asarray(topic_ids, dtype=np.int32), counts)
    return Requests(ids[order], numbers[order], owners[order].tolist(), slots[order].tolist())
