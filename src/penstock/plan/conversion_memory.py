"""How much memory a conversion will need, said before it starts; the report sets it beside what was measured."""

from __future__ import annotations

from penstock import units
from penstock.errors import BudgetExceeded
from penstock.lazy import dataclass
from penstock.recordings.recording import LargestReads

MIB = 2**20
# The interpreter with the libraries in use; benchmarks/convert.py shows predictions beside what was measured. Several
# inputs in one job leave some MiB more behind than one.
LIBRARIES_BYTES = 104 * MIB
VIDEO_LIBRARY_BYTES = 40 * MIB
# One open encoder, by codec: a part that does not depend on the picture, and picture buffers per frame held.
ENCODER_BYTES = {"h264": 24 * MIB, "hevc": 48 * MIB, "av1": 64 * MIB}
ENCODER_FRAMES = {"h264": 12, "hevc": 24, "av1": 48}
# One open decoder: what does not depend on the picture, and the frames that it keeps, with one thread.
DECODER_BYTES = 8 * MIB
DECODER_FRAMES = 8
STATISTICS_FRAMES = 3  # decoded pictures alive in the statistics lane
STATISTICS_WAITING = 10  # recorded pictures that wait for that lane, or are in its hands
PREPARED_PER_THREAD = 2  # pictures that are decoded ahead of their encoders
FETCH_MAX_BYTES = 16 * MIB
FETCH_MIN_BYTES = 4 * MIB
# Rows between two flushes hold at most this much: a fixed measure, since the row groups of a data set must not depend
# on the memory of the machine that wrote it.
FLUSH_BYTES = 48 * MIB
FLUSH_ROWS = 10_000


@dataclass(frozen=True)
class CameraLoad:
    """What the memory of a camera depends on."""

    width: int
    height: int
    stored_as: str  # copy, images, mjpeg, h264, hevc, av1
    picture_bytes: int  # one encoded picture as recorded
    pixel_bytes: int = 3  # what decoding takes for each pixel

    @property
    def decoded_bytes(self) -> int:
        return self.width * self.height * self.pixel_bytes


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
    rows_per_read: int = 1000
    least_bytes: int = 0  # the peak with the smallest buffers and one thread
    decoders_bytes: int = 0  # of videos that are read, not of pictures

    def parts(self) -> dict[str, int]:
        """What to reserve, by name."""
        parts = {
            "interpreter and libraries": self.interpreter_bytes,
            "read buffers": self.read_bytes,
            "index": self.index_bytes,
            "rows": self.rows_bytes,
            "pictures": self.pictures_bytes,
            "encoders": self.encoders_bytes,
        }
        return parts | {"decoders": self.decoders_bytes} if self.decoders_bytes else parts

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
    decoded: tuple[CameraLoad, ...] = (),
    row_extra_bytes: int = 0,
) -> MemoryPlan:
    """Share the budget out: buffers shrink to fit; what cannot shrink and does not fit is refused with the numbers.

    `decoded`: the videos that are read, with their codecs as `stored_as`; `row_extra_bytes`: a row besides its numbers.
    """
    encoded = [camera for camera in cameras if camera.stored_as in ENCODER_BYTES]
    interpreter = LIBRARIES_BYTES + (VIDEO_LIBRARY_BYTES if encoded or decoded else 0)
    encoders = sum(
        ENCODER_BYTES[camera.stored_as] + ENCODER_FRAMES[camera.stored_as] * camera.decoded_bytes for camera in encoded
    )
    decoders = sum(decoder_bytes(camera) for camera in decoded)
    picture = max((camera.decoded_bytes for camera in cameras), default=0)
    pictures = picture * STATISTICS_FRAMES + STATISTICS_WAITING * reads.message_bytes if cameras else 0
    fixed = interpreter + index_bytes + encoders + decoders + rows * 8 * max(len(cameras) + 1, 1)
    row_bytes = vector_values * (8 + 8 + 4) + row_extra_bytes
    row_bytes += sum(2 * camera.picture_bytes for camera in cameras if camera.stored_as == "images")
    rows_per_flush = flush_rows(chunk_size, rows, row_bytes)
    fixed += rows_per_flush * row_bytes
    least = fixed + pictures + _read_bytes(FETCH_MIN_BYTES, reads)
    if any(camera.stored_as != "copy" for camera in cameras):
        least += picture * max(PREPARED_PER_THREAD, len(cameras))
        room = budget_bytes - fixed - pictures - _read_bytes(FETCH_MIN_BYTES, reads)
        threads = max(1, min(threads, room // (PREPARED_PER_THREAD * picture)))
        pictures += picture * max(PREPARED_PER_THREAD * threads, len(cameras))
    spare = budget_bytes - fixed - pictures
    fetch = _fetch_bytes(spare, reads)
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
        least_bytes=least,
        decoders_bytes=decoders,
    )
    if plan.peak_bytes > budget_bytes:
        raise _too_large(plan, budget_bytes)
    return plan


def _too_large(plan: MemoryPlan, budget_bytes: int) -> BudgetExceeded:
    peak, parts = plan.peak_bytes, plan.parts()
    words = {"interpreter and libraries": "libraries"}
    held = {words.get(name, name): size for name, size in parts.items() if name not in ("index", "pictures")}
    shown = ", ".join(f"{name} {units.format_bytes(size)}" for name, size in held.items())
    needs, limit = units.format_bytes(peak), units.format_bytes(budget_bytes)
    return BudgetExceeded(
        f"this conversion needs {needs} and the budget is {limit} ({shown})",
        size=peak,
        limit=budget_bytes,
        hint=f"give --memory {units.format_bytes(_rounded_up(peak)).replace(' ', '')} or more, "
        "a smaller rosbag.chunk_size, or video=copy",
    )


def decoder_bytes(video: CameraLoad) -> int:
    """One open decoder of a video, whose codec is `stored_as`; a recorded H.265 stream is decoded twice."""
    return (2 if video.stored_as == "h265" else 1) * (DECODER_BYTES + DECODER_FRAMES * video.decoded_bytes)


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


def flush_rows(chunk_size: int | str, rows: int, row_bytes: int) -> int:
    """Rows between two flushes: as asked, but earlier where pictures in tables make the rows large."""
    fitting = max(1, min(FLUSH_ROWS, FLUSH_BYTES // max(row_bytes, 1)))
    asked = fitting if chunk_size == "auto" else int(chunk_size) or max(rows, 1)
    return max(1, min(asked, max(rows, 1), max(fitting, 1) if chunk_size else asked))


def _rounded_up(size: int) -> int:
    return -(-size // (32 * MIB)) * 32 * MIB
