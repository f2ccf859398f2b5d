"""Which message of which topic every row takes: the columns of one recording, aligned before any payload is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from penstock.align import Alignment, FixedTimeline, Pick, Stream, TopicTimeline, align
from penstock.conversion.inputs.columns import Columns
from penstock.conversion.settings import FIXED, Settings, Source
from penstock.errors import AlignError
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values.transforms import EdgeMessages

TIMELINE = "timeline"

# Message numbers that turned out to be unusable, by topic id: the alignment is made again without them.
Unusable = Mapping[int, frozenset[int]]


@dataclass(frozen=True)
class Paired:
    """The rows of one recording: `picks` holds one entry per camera and one per part of a vector."""

    fps: int
    rows: int
    picks: Mapping[str, Pick]
    alignment: Alignment
    unusable: Unusable = field(default_factory=dict)


def pair(recording: Recording, columns: Columns, settings: Settings, unusable: Unusable) -> Paired:
    """Align every column of a recording; message numbers in the result are those of the recording."""
    kept: dict[str, NDArray[np.int32] | None] = {}
    streams: list[Stream] = []
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
            streams.append(_stream(recording, owner, main, Source(main.name), settings, unusable)[0])
        timeline = TopicTimeline(stream=owner, stride=settings.stride, fps=settings.fps)
    try:
        alignment = align(streams, timeline, sample_drop=settings.sample_drop)
    except AlignError as error:
        raise AlignError(f"{recording.path}: {error.message}", hint=error.hint) from error
    picks = {name: _original(alignment.picks[name], numbers) for name, numbers in kept.items()}
    return Paired(alignment.fps, len(alignment.row_times_ns), picks, alignment, unusable)


def _all_sources(columns: Columns) -> list[tuple[str, Topic, Source, EdgeMessages | None]]:
    found: list[tuple[str, Topic, Source, EdgeMessages | None]] = [
        (camera.key, camera.topic, camera.source, None) for camera in columns.cameras
    ]
    for vector in columns.vectors:
        for part in vector.parts:
            found.append((part.stream, part.topic, part.source, part.messages))
    return found


def _stream(
    recording: Recording,
    name: str,
    topic: Topic,
    source: Source,
    settings: Settings,
    unusable: Unusable,
    messages: EdgeMessages | None = None,
) -> tuple[Stream, NDArray[np.int32] | None]:
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
    stream = Stream(
        name=name,
        times_ns=times,
        policy=source.policy or "nearest",
        tolerance_ns=tolerance,
        offset_ns=source.time_offset,
        missing=source.missing or settings.missing,
        is_static=messages is not None and messages.is_static,
    )
    return stream, numbers


def _original(pick: Pick, numbers: NDArray[np.int32] | None) -> Pick:
    if numbers is None:
        return pick
    right = None if pick.right is None else numbers[pick.right]
    return replace(pick, left=numbers[pick.left], right=right)
