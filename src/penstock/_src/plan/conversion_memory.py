"""How much memory a conversion will need, predicted before it starts; the report compares it with the measured peak."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from penstock._src.lerobot.stats import are_pooled
from penstock._src.system import memory, units
from penstock.errors import BudgetExceeded

MIB = 2**20
# The interpreter with the libraries in use; benchmarks/budget.py shows predictions beside what was measured. Several
# inputs in one job leave some MiB more behind than one.
LIBRARIES_BYTES = 82 * MIB
IMAGE_LIBRARY_BYTES = 18 * MIB
VIDEO_LIBRARY_BYTES = 20 * MIB
# One open encoder, by codec: a part that does not depend on the image, and image buffers per frame held.
ENCODER_BYTES = {"h264": 4 * MIB, "hevc": 28 * MIB, "av1": 21 * MIB}
ENCODER_FRAMES = {"h264": 14, "hevc": 40, "av1": 27}
# One open decoder: what does not depend on the image, and the frames that it keeps, with one thread.
DECODER_BYTES = 8 * MIB
DECODER_FRAMES = 8
STATISTICS_FRAMES = 3  # decoded images alive in the statistics thread
STATISTICS_WAITING = 10  # recorded images that wait for that thread, or are in use by it
PREPARED_PER_THREAD = 2  # images that are decoded ahead of their encoders
FETCH_MAX_BYTES = 16 * MIB
FETCH_MIN_BYTES = 4 * MIB
# Rows between two flushes hold at most this much: a fixed measure, since the row groups of a data set must not depend
# on the memory of the machine that wrote it. Only with chunk_size=auto they do, where the budget is too small for it.
FLUSH_BYTES = 48 * MIB
FLUSH_ROWS = 10_000
FLUSH_VALUE_BYTES = 20
# Rows that are read and paired together: the messages of so many rows, and their numbers as float64 in some copies.
READ_ROWS = 1000
READ_BYTES = 2 * MIB
READ_COPIES = 3
# What Arrow holds of the column that it writes, for each number, of the first ones and of more; and what it keeps where
# it has an allocator of its own.
ARROW_BYTES = 2 * MIB
ARROW_VALUE_BYTES = 7
ARROW_FIRST_VALUES = 3_000_000
ARROW_MORE_VALUE_BYTES = 4
ARROW_KEPT_BYTES = 16 * MIB
ARROW_KEPT_TIMES = 3
# Statistics: sorted buffers of so many rows, of each number, for the episode and for the data set (quantiles.py), some
# more while two of them become one; and the numbers that are looked at together.
SKETCH_ROWS = 1024
SKETCH_PASSING = 3
STATISTICS_VALUES = 1 << 17
STATISTICS_COLUMNS = 8
STATISTICS_COPIES = 2
# A row of the alignment: its time, and for each stream the messages that it takes.
ROW_BYTES = 16
PICK_BYTES = 16
# A frame in the tables of its video file: while it is written, and once more when the file is finished.
FRAME_BYTES = 40
VIDEO_FILE_BYTES = 200 * MIB
# An episode of many: its row group in the open data file, and its part in the tables that closing writes; both are
# bounded (lerobot/tables.py). Measured with 5 to 2,000 episodes.
EPISODE_BYTES = 24 << 10
EPISODES_MOST_BYTES = 28 * MIB
WIDE_VALUES = 1024  # so many numbers in a row are worth a word where memory is short


class Reads(NamedTuple):
    """What reading may have to hold at once, whatever its memory limit."""

    message_bytes: int  # the largest message or image
    chunk_bytes: int = 0  # a chunk that is unpacked or checked as a whole; 0 where messages are read by themselves
    passing_bytes: int = 0  # held besides while one is read: the stored chunk, a database's own copies


class CameraDemand(NamedTuple):
    """What the memory of a camera depends on."""

    width: int
    height: int
    stored_as: str  # copy, images, mjpeg, h264, hevc, av1
    image_bytes: int  # one encoded image as recorded
    pixel_bytes: int = 3  # what decoding takes for each pixel

    @property
    def decoded_bytes(self) -> int:
        return self.width * self.height * self.pixel_bytes


class VectorDemand(NamedTuple):
    """What the memory of a numeric feature depends on."""

    key: str
    values: int  # numbers in a row
    dtype: str = "float32"

    @property
    def row_bytes(self) -> int:
        return self.values * np.dtype(self.dtype).itemsize

    @property
    def sketched_row_bytes(self) -> int:
        """A row in a buffer of the statistics."""
        kept = 1 if are_pooled((self.values,)) else self.values
        return kept * (4 if self.dtype in ("float16", "float32") else 8)


class MemoryPlan(NamedTuple):
    """The parts of the predicted peak; `peak_bytes` is their sum."""

    interpreter_bytes: int
    fetch_bytes: int  # the memory limit of the reader
    read_bytes: int  # what it will hold: one message or chunk larger than that has to pass, too
    index_bytes: int
    rows_bytes: int
    images_bytes: int
    encoders_bytes: int
    rows_per_flush: int
    rows_per_read: int
    rows_per_split: int  # of an episode that split_episodes cuts: as `rows_per_flush`, whatever the budget
    threads: int
    least_bytes: int = 0  # the peak with the smallest buffers and one thread
    decoders_bytes: int = 0  # of videos that are read, not of images
    statistics_bytes: int = 0
    episodes_bytes: int = 0

    def parts(self) -> dict[str, int]:
        """What to reserve, by name."""
        parts = {
            "interpreter and libraries": self.interpreter_bytes,
            "read buffers": self.read_bytes,
            "index": self.index_bytes,
            "rows": self.rows_bytes,
            "statistics": self.statistics_bytes,
            "episodes": self.episodes_bytes,
            "images": self.images_bytes,
            "encoders": self.encoders_bytes,
            "decoders": self.decoders_bytes,
        }
        return {name: size for name, size in parts.items() if size}

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts().values())

    @property
    def joining_bytes(self) -> int:
        """What a process holds of this input that joins what others have converted."""
        return self.rows_bytes + self.statistics_bytes


class MemoryDemand(NamedTuple):
    """What a conversion holds at once, as far as its input says.

    `streams`: topics that rows take messages of; `decoded`: the videos that are read, with their codecs as `stored_as`;
    `row_extra_bytes`: a row besides its numbers, and `row_copy_bytes`: what it takes once more on its way;
    `image_bytes`: the largest recorded image; `rows_before` and `rows_after`: of the data set, without this input
    and with it; `input_bytes`: what there is to read.
    """

    cameras: tuple[CameraDemand, ...]
    vectors: tuple[VectorDemand, ...]
    rows: int
    index_bytes: int
    reads: Reads
    chunk_size: int | str
    threads: int
    streams: int = 0
    decoded: tuple[CameraDemand, ...] = ()
    row_extra_bytes: int = 0
    row_copy_bytes: int = 0
    image_bytes: int | None = None
    rows_before: int = 0
    rows_after: int = 0
    input_bytes: int = FETCH_MAX_BYTES
    episodes: int = 1  # of the whole job, as far as that is known
    field_part: str = "ranges[0:1000]"  # how a part of a feature is named; "" where none can be

    @property
    def values(self) -> int:
        return sum(vector.values for vector in self.vectors)

    @property
    def in_table_bytes(self) -> int:
        """A row besides its numbers, while it waits to be written."""
        images = sum(2 * camera.image_bytes for camera in self.cameras if camera.stored_as == "images")
        return images + self.row_extra_bytes


def plan_memory(demand: MemoryDemand, budget_bytes: int) -> MemoryPlan:
    """Share the budget out: buffers shrink to fit; what cannot shrink and does not fit is refused with the numbers."""
    plan = _shared(demand, budget_bytes)
    if plan.peak_bytes > budget_bytes:
        raise _too_large(demand, plan, budget_bytes)
    return plan


def _shared(demand: MemoryDemand, budget_bytes: int) -> MemoryPlan:
    measured = flush_rows(demand.chunk_size, demand.rows, demand.values * FLUSH_VALUE_BYTES + demand.in_table_bytes)
    plan = _with_rows(demand, budget_bytes, measured)
    if demand.chunk_size != "auto" or plan.peak_bytes <= budget_bytes:
        return plan
    # What rows hold does not fall with their number alone, so the largest number that fits is looked for.
    low, high = 1, measured
    while low < high:
        middle = (low + high + 1) // 2
        if _with_rows(demand, budget_bytes, middle).peak_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return _with_rows(demand, budget_bytes, low)._replace(rows_per_split=measured)


def _with_rows(demand: MemoryDemand, budget_bytes: int, rows_per_flush: int) -> MemoryPlan:
    encoded = [camera for camera in demand.cameras if camera.stored_as in ENCODER_BYTES]
    encoders = sum(
        ENCODER_BYTES[camera.stored_as] + ENCODER_FRAMES[camera.stored_as] * camera.decoded_bytes for camera in encoded
    )
    decoded = max((camera.decoded_bytes for camera in demand.cameras), default=0)
    recorded = demand.reads.message_bytes if demand.image_bytes is None else demand.image_bytes
    images = decoded * STATISTICS_FRAMES + STATISTICS_WAITING * recorded if demand.cameras else 0
    rows_per_read = max(1, min(READ_ROWS, rows_per_flush, READ_BYTES // (8 * max(demand.values, 1))))
    rows_bytes = _rows_bytes(demand, rows_per_flush, rows_per_read)
    plan = MemoryPlan(
        interpreter_bytes=LIBRARIES_BYTES
        + (IMAGE_LIBRARY_BYTES if demand.cameras else 0)
        + (VIDEO_LIBRARY_BYTES if encoded or demand.decoded else 0),
        fetch_bytes=FETCH_MIN_BYTES,
        read_bytes=_read_bytes(FETCH_MIN_BYTES, demand.reads),
        index_bytes=_index_bytes(demand),
        rows_bytes=rows_bytes,
        images_bytes=images,
        encoders_bytes=encoders,
        rows_per_flush=rows_per_flush,
        rows_per_read=rows_per_read,
        rows_per_split=rows_per_flush,
        threads=1,
        decoders_bytes=sum(decoder_bytes(camera) for camera in demand.decoded),
        statistics_bytes=_statistics_bytes(demand, rows_bytes),
        episodes_bytes=min((demand.episodes - 1) * EPISODE_BYTES, EPISODES_MOST_BYTES),
    )
    if any(camera.stored_as != "copy" for camera in demand.cameras):
        ahead = decoded * max(PREPARED_PER_THREAD, len(demand.cameras))
        room = budget_bytes - plan.peak_bytes
        threads = max(1, min(demand.threads, room // (PREPARED_PER_THREAD * decoded)))
        more = decoded * max(PREPARED_PER_THREAD * threads, len(demand.cameras))
        plan = plan._replace(threads=threads, images_bytes=images + more, least_bytes=plan.peak_bytes + ahead)
    else:
        plan = plan._replace(threads=demand.threads, least_bytes=plan.peak_bytes)
    spare = budget_bytes - plan.peak_bytes + plan.read_bytes
    fetch = _fetch_bytes(spare, demand.reads, demand.input_bytes)
    return plan._replace(fetch_bytes=fetch, read_bytes=_read_bytes(fetch, demand.reads))


def _index_bytes(demand: MemoryDemand) -> int:
    """Where messages lie, which of them each row takes, and where the frames of the open video files lie."""
    frames = 0
    for camera in demand.cameras:
        if camera.stored_as != "images":
            in_file = VIDEO_FILE_BYTES // max(camera.image_bytes, 1)
            frames += max(demand.rows, min(demand.rows_before + demand.rows, in_file))
    return demand.index_bytes + demand.rows * (ROW_BYTES + PICK_BYTES * demand.streams) + frames * FRAME_BYTES


def _rows_bytes(demand: MemoryDemand, rows_per_flush: int, rows_per_read: int) -> int:
    """The rows of a flush as they are stored, and the most of what is then done with them: reading, Arrow, sums."""
    values = rows_per_flush * max((vector.values for vector in demand.vectors), default=1)
    more = max(0, values - ARROW_FIRST_VALUES)
    arrow = ARROW_BYTES + (values - more) * ARROW_VALUE_BYTES + more * ARROW_MORE_VALUE_BYTES
    if memory.arrow_keeps_freed():
        arrow = ARROW_KEPT_BYTES + ARROW_KEPT_TIMES * arrow
    row = sum(vector.row_bytes for vector in demand.vectors) + demand.in_table_bytes + demand.row_copy_bytes
    read = rows_per_read * demand.values * 8 * READ_COPIES
    looked_at = max(min(STATISTICS_VALUES, values), rows_per_flush * STATISTICS_COLUMNS) * 8 * STATISTICS_COPIES
    return rows_per_flush * row + max(read, arrow, looked_at)


def _statistics_bytes(demand: MemoryDemand, rows_bytes: int) -> int:
    """The sketches of the episode and of the data set before it; the rows are gone when the one enters the other."""
    row = sum(each.sketched_row_bytes for each in demand.vectors)
    after = max(demand.rows_after, demand.rows_before + demand.rows)
    held = _sketched_rows(demand.rows)
    if after > demand.rows:
        held += _sketched_rows(after)
    merging = min(demand.rows, SKETCH_ROWS)
    if after >= 2 * SKETCH_ROWS:
        merging += SKETCH_PASSING * SKETCH_ROWS
    return held * row + max(0, merging * row - rows_bytes)


def _sketched_rows(rows: int) -> int:
    """Rows that the buffers of a sketch hold, at most: one that fills up, and one for each doubling."""
    return min(rows, SKETCH_ROWS) + SKETCH_ROWS * (rows // SKETCH_ROWS).bit_length()


def _too_large(demand: MemoryDemand, plan: MemoryPlan, budget_bytes: int) -> BudgetExceeded:
    """Parts in whole MiB that add up to the sum; of the ways out those that help."""
    words = {"interpreter and libraries": "libraries"}
    parts = {words.get(name, name): math.ceil(size / MIB) for name, size in plan.parts().items()}
    needs = sum(parts.values()) * MIB
    shown = " + ".join(f"{name} {size:,}" for name, size in parts.items())
    limit = units.format_bytes(budget_bytes)
    wide = max(demand.vectors, key=lambda vector: vector.values, default=None)
    about = ""
    ways = [f"give --memory {_rounded_up(needs) // MIB}MiB or more"]
    smaller = {
        "rosbag.chunk_size=auto": demand._replace(chunk_size="auto"),
        "video=copy": demand._replace(cameras=tuple(_copied(camera) for camera in demand.cameras)),
    }
    ways += [word for word, less in smaller.items() if _shared(less, budget_bytes).peak_bytes <= budget_bytes]
    if wide is not None and wide.values >= WIDE_VALUES:
        about = f"; {wide.key} has {wide.values:,} numbers in a row"
        if demand.field_part:
            ways.append(f"take a part of it (features.{wide.key}.field, such as {demand.field_part})")
        ways.append(f"'leave_out=[{wide.key}]' to convert without it")
    return BudgetExceeded(
        f"this conversion needs {needs // MIB:,} MiB and the budget is {limit} (in MiB: {shown}){about}",
        size=needs,
        limit=budget_bytes,
        hint=", ".join(ways[:-1]) + f", or {ways[-1]}" if len(ways) > 1 else ways[0],
    )


def _copied(camera: CameraDemand) -> CameraDemand:
    """The camera with video=copy; what was not recorded as JPEG becomes that."""
    return camera._replace(stored_as="mjpeg" if camera.stored_as != "copy" else "copy")


def decoder_bytes(video: CameraDemand) -> int:
    """One open decoder of a video, whose codec is `stored_as`; a recorded H.265 stream is decoded twice."""
    return (2 if video.stored_as == "h265" else 1) * (DECODER_BYTES + DECODER_FRAMES * video.decoded_bytes)


def _fetch_bytes(spare_bytes: int, reads: Reads, input_bytes: int) -> int:
    """Room for neighbouring chunks where it is there: rows at their border take from both in turn."""
    usual = max(FETCH_MIN_BYTES, min(FETCH_MAX_BYTES, spare_bytes // 3, input_bytes))
    roomy = max(usual, 3 * reads.chunk_bytes)
    fitting = (size for size in (roomy, usual) if _read_bytes(size, reads) <= spare_bytes)
    return next(fitting, FETCH_MIN_BYTES)


def _read_bytes(fetch_bytes: int, reads: Reads) -> int:
    """What fetch holds with the limit `fetch_bytes`: two messages and one chunk always pass."""
    if not reads.chunk_bytes:
        return max(fetch_bytes, 2 * reads.message_bytes) + reads.passing_bytes
    half = fetch_bytes // 2
    return max(half, 2 * reads.message_bytes) + max(half, reads.chunk_bytes) + reads.passing_bytes


def flush_rows(chunk_size: int | str, rows: int, row_bytes: int) -> int:
    """Rows between two flushes: as asked, but earlier where images in tables make the rows large."""
    fitting = max(1, min(FLUSH_ROWS, FLUSH_BYTES // max(row_bytes, 1)))
    wanted = fitting if chunk_size == "auto" else int(chunk_size) or max(rows, 1)
    return max(1, min(wanted, max(rows, 1), max(fitting, 1) if chunk_size else wanted))


def _rounded_up(size: int) -> int:
    return -(-size // (8 * MIB)) * 8 * MIB
