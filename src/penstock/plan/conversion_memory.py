"""How much memory a conversion will need, said before it starts; the report sets it beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import units
from penstock.errors import BudgetExceeded
from penstock.recordings.recording import LargestReads

MIB = 2**20
# What the libraries add to the interpreter once they are in use, measured by benchmarks/convert.py --memory-model.
LIBRARIES_BYTES = 96 * MIB
VIDEO_LIBRARY_BYTES = 40 * MIB
# One open encoder, by codec: a part that does not depend on the picture, and picture buffers per frame held.
ENCODER_BYTES = {"h264": 24 * MIB, "hevc": 48 * MIB, "av1": 64 * MIB}
ENCODER_FRAMES = {"h264": 12, "hevc": 24, "av1": 48}
STATISTICS_FRAMES = 3  # decoded pictures alive in the statistics lane
STATISTICS_WAITING = 10  # recorded pictures that wait for that lane, or are in its hands
PREPARED_PER_THREAD = 2  # pictures that are decoded ahead of their encoders
FETCH_MAX_BYTES = 16 * MIB
FETCH_MIN_BYTES = 4 * MIB


@dataclass(frozen=True)
class CameraLoad:
    """What the memory of a camera depends on."""

    width: int
    height: int
    stored_as: str  # copy, images, mjpeg, h264, hevc, av1
    picture_bytes: int  # one encoded picture as recorded

    @property
    def decoded_bytes(self) -> int:
        return self.width * self.height * 3


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of the predicted peak; `peak_bytes` is their sum."""

    interpreter_bytes: int
    fetch_bytes: int  # what the reader is told to keep to
    read_bytes: int  # what it will hold: one message or chunk larger than that has to pass, too
    index_bytes: int
    rows_bytes: int
    pictures_bytes: int
    encoders_bytes: int
    rows_per_flush: int
    threads: int

    def parts(self) -> dict[str, int]:
        """What to reserve, by name."""
        return {
            "interpreter and libraries": self.interpreter_bytes,
            "read buffers": self.read_bytes,
            "index": self.index_bytes,
            "rows": self.rows_bytes,
            "pictures": self.pictures_bytes,
            "encoders": self.encoders_bytes,
        }

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts().values())


def plan_memory(
    *,
    budget_bytes: int,
    cameras: tuple[CameraLoad, ...],
    vector_values: int,
    rows: int,
    index_bytes: int,
    reads: LargestReads,
    chunk_size: int | str,
    threads: int,
) -> MemoryPlan:
    """Share the budget out: buffers shrink to fit; what cannot shrink and does not fit is refused with the numbers."""
    encoded = [camera for camera in cameras if camera.stored_as in ENCODER_BYTES]
    interpreter = LIBRARIES_BYTES + (VIDEO_LIBRARY_BYTES if encoded else 0)
    encoders = sum(
        ENCODER_BYTES[camera.stored_as] + ENCODER_FRAMES[camera.stored_as] * camera.decoded_bytes for camera in encoded
    )
    decoded = max((camera.decoded_bytes for camera in cameras), default=0)
    pictures = decoded * STATISTICS_FRAMES + STATISTICS_WAITING * reads.message_bytes if cameras else 0
    fixed = interpreter + index_bytes + encoders + rows * 8 * max(len(cameras) + 1, 1)
    if any(camera.stored_as != "copy" for camera in cameras):
        room = budget_bytes - fixed - pictures - _read_bytes(FETCH_MIN_BYTES, reads)
        threads = max(1, min(threads, room // (PREPARED_PER_THREAD * decoded)))
        pictures += decoded * max(PREPARED_PER_THREAD * threads, len(cameras))
    spare = budget_bytes - fixed - pictures
    fetch = _fetch_bytes(spare, reads)
    row_bytes = vector_values * (8 + 8 + 4) + sum(
        2 * camera.picture_bytes for camera in cameras if camera.stored_as == "images"
    )
    rows_per_flush = _rows_per_flush(chunk_size, rows, row_bytes, max(spare - _read_bytes(fetch, reads), 0))
    plan = MemoryPlan(
        interpreter_bytes=interpreter,
        fetch_bytes=fetch,
        read_bytes=_read_bytes(fetch, reads),
        index_bytes=index_bytes + rows * 8 * max(len(cameras) + 1, 1),
        rows_bytes=rows_per_flush * row_bytes,
        pictures_bytes=pictures,
        encoders_bytes=encoders,
        rows_per_flush=rows_per_flush,
        threads=threads,
    )
    if plan.peak_bytes > budget_bytes:
        raise BudgetExceeded(
            f"this conversion needs {units.format_bytes(plan.peak_bytes)} and the budget is "
            f"{units.format_bytes(budget_bytes)} (libraries {units.format_bytes(interpreter)}, encoders "
            f"{units.format_bytes(encoders)}, read buffers {units.format_bytes(plan.read_bytes)}, rows "
            f"{units.format_bytes(plan.rows_bytes)})",
            size=plan.peak_bytes,
            limit=budget_bytes,
            hint=f"give --memory {units.format_bytes(_rounded_up(plan.peak_bytes)).replace(' ', '')} or more, "
            "a smaller rosbag.chunk_size, or video=copy",
        )
    return plan


def _fetch_bytes(spare_bytes: int, reads: LargestReads) -> int:
    """Room for neighbouring chunks where it is there: rows at their border take from both in turn."""
    usual = max(FETCH_MIN_BYTES, min(FETCH_MAX_BYTES, spare_bytes // 3))
    roomy = max(usual, 3 * reads.chunk_bytes)
    return roomy if _read_bytes(roomy, reads) <= spare_bytes else usual


def _read_bytes(fetch_bytes: int, reads: LargestReads) -> int:
    """What fetch holds when told to keep to `fetch_bytes`: two messages and one chunk always pass."""
    if not reads.chunk_bytes:
        return max(fetch_bytes, 2 * reads.message_bytes) + reads.passing_bytes
    half = fetch_bytes // 2
    return max(half, 2 * reads.message_bytes) + max(half, reads.chunk_bytes) + reads.passing_bytes


def _rows_per_flush(chunk_size: int | str, rows: int, row_bytes: int, spare_bytes: int) -> int:
    """`auto` takes a quarter of what is left; pictures in tables are flushed earlier than asked when they must."""
    fitting = max(1, spare_bytes // 4 // max(row_bytes, 1))
    if chunk_size == "auto":
        return min(max(fitting, 1), 10_000, max(rows, 1))
    asked = int(chunk_size) or max(rows, 1)
    return max(1, min(asked, max(rows, 1), fitting if chunk_size else asked))


def _rounded_up(size: int) -> int:
    return -(-size // (32 * MIB)) * 32 * MIB
