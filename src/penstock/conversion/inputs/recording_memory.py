"""How much memory the conversion of a recording takes: what its columns, its rows and its reader hold at once."""

from __future__ import annotations

from dataclasses import astuple

from penstock.conversion.cameras.depth_camera import depth_bytes
from penstock.conversion.inputs.columns import CameraColumn, Columns, VectorColumn
from penstock.conversion.inputs.pairing import Paired
from penstock.conversion.settings import Settings
from penstock.plan.conversion_memory import CameraLoad, Load, MemoryPlan, Reads, VectorLoad, plan_memory
from penstock.recordings.recording import Recording, Topic


def plan_recording_memory(
    recording: Recording,
    settings: Settings,
    columns: Columns,
    paired: Paired,
    budget_bytes: int,
    threads: int,
    rows_before: int,
    episodes: int,
) -> MemoryPlan:
    """Share out the budget for one recording; refuses what does not fit."""
    images = recording.largest_reads([camera.topic for camera in columns.cameras])
    load = Load(
        cameras=tuple(_load(camera, recording) for camera in columns.cameras),
        vectors=tuple(_vector_load(vector) for vector in columns.vectors),
        rows=paired.rows,
        index_bytes=recording.index_bytes,
        reads=Reads(*astuple(recording.largest_reads(used_topics(columns)))),
        chunk_size=settings.rosbag.chunk_size,
        threads=threads,
        streams=len(paired.picks),
        decoded=tuple(_stream_load(camera) for camera in columns.cameras if camera.stream is not None),
        image_bytes=images.message_bytes,
        rows_before=rows_before,
        episodes=episodes,
        input_bytes=recording.size_bytes,
    )
    return plan_memory(load, budget_bytes)


def _stream_load(camera: CameraColumn) -> CameraLoad:
    """The decoder of a stream; `stored_as` is what it reads."""
    height, width = camera.recorded_px
    return CameraLoad(width, height, camera.kind, width * height // 3)


def used_topics(columns: Columns) -> list[Topic]:
    return [camera.topic for camera in columns.cameras] + [
        part.topic for vector in columns.vectors for part in vector.parts
    ]


def _load(camera: CameraColumn, recording: Recording) -> CameraLoad:
    height, width = max(camera.recorded_px, camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    typical = recording.size_bytes // max(sum(topic.count for topic in recording.topics), 1)
    if camera.depth is not None:
        stored, decoding = depth_bytes(camera.depth)
        return CameraLoad(width, height, camera.stored_as, width * height * stored, decoding)
    return CameraLoad(width, height, camera.stored_as, max(typical, width * height // 3))


def _vector_load(vector: VectorColumn) -> VectorLoad:
    """The numbers as they are read: of a chain of transforms, those of each step."""
    return VectorLoad(vector.key, sum(part.size for part in vector.parts), vector.dtype)
