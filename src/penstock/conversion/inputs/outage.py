"""Broken messages come in runs: what lies beside one is looked at, so that one more pass suffices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from penstock.conversion.cameras.camera import PictureChanged, PictureCheck
from penstock.conversion.inputs.columns import CameraColumn, Columns, VectorPart
from penstock.conversion.inputs.episode import DAMAGED, UNUSABLE, Bad
from penstock.recordings.recording import Recording

# Reads one message; raises when it cannot be used.
_Check = Callable[[memoryview, int], object]


def whole_outages(
    recording: Recording, columns: Columns, found: Sequence[Bad], known: Mapping[int, frozenset[int]]
) -> list[Bad]:
    """The messages found, each once, and their broken neighbours up to the first good one on either side."""
    checks = _checks(columns)
    counts = {topic.id: topic.count for topic in recording.topics}
    outages = {(bad.topic_id, bad.number): bad for bad in found}
    for bad in list(outages.values()):
        for step in (-1, 1):
            number = bad.number + step
            while 0 <= number < counts[bad.topic_id]:
                if (bad.topic_id, number) in outages or number in known.get(bad.topic_id, frozenset()):
                    break  # what lies behind it was looked at from there, or will be
                reason = _look(recording, bad.topic_id, number, checks[bad.topic_id])
                if reason is None:
                    break
                outages[bad.topic_id, number] = Bad(bad.topic_id, bad.topic, number, reason)
                number += step
    return sorted(outages.values(), key=lambda each: (each.topic, each.number))


def _checks(columns: Columns) -> dict[int, list[_Check]]:
    """What every topic's messages must pass, for each feature that takes them."""
    checks: dict[int, list[_Check]] = {}
    for camera in columns.cameras:
        checks.setdefault(camera.topic.id, []).append(partial(_read_picture, camera, PictureCheck(camera)))
    for vector in columns.vectors:
        for part in vector.parts:
            checks.setdefault(part.topic.id, []).append(partial(_read_vector, part))
    return checks


def _read_picture(camera: CameraColumn, check: PictureCheck, payload: memoryview, number: int) -> None:
    check(camera.reader(payload), number)


def _read_vector(part: VectorPart, payload: memoryview, number: int) -> None:
    part.reader(payload)


def _look(recording: Recording, topic_id: int, number: int, checks: Sequence[_Check]) -> str | None:
    for block in recording.fetch(np.array([topic_id], dtype=np.int32), np.array([number], dtype=np.int64)):
        payload = block.payloads[0]
        try:
            if payload is None:
                return DAMAGED
            for check in checks:
                check(payload, number)
        except PictureChanged:
            return None  # whole, and an error of its own where a row needs it
        except UNUSABLE as error:
            return error.message
        finally:
            block.release()
    return None
