"""What a pass really holds: images that outlive their block, decoded images, chunks and messages of any size."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.cameras import workers as cameras
from penstock._src.conversion.report import NoProgress
from penstock._src.plan.conversion_memory import (
    PREPARED_PER_THREAD,
    CameraDemand,
    MemoryDemand,
    MemoryPlan,
    Reads,
    VectorDemand,
    plan_memory,
)
from penstock.errors import BudgetExceeded
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, STATE

MIB = 2**20


def flat(value: int, side: int = 256) -> bags.Raw:
    return bags.raw(np.full((side, side, 3), value, np.uint8), "rgb8")


def test_a_raw_image_that_is_repeated_after_its_block_was_used_again(tmp_path: Path) -> None:
    """A slow raw camera beside a fast one: its image is repeated long after its buffer has other pixels in it."""
    import av

    values = [40 + 30 * n for n in range(6)]
    tape = [
        *bags.camera(CAM_H, bags.times(30, 2.5)),
        *bags.messages("/slow/image", bags.times(2, 2.5), lambda n: flat(values[n])),
        *bags.messages("/blinking/image", bags.times(30, 2.5), lambda n: flat(255 * (n % 2))),
    ]
    bag = bags.write(tmp_path / "run.bag", tape)
    out = tmp_path / "out"
    penstock.convert(bag, out, video="h264", timeline=CAM_H, tolerance="2s", rosbag={"chunk_size": 4})
    (file,) = datasets.video_files(out, "observation.images.slow")
    with av.open(str(file)) as container:
        shown = [float(frame.to_ndarray(format="rgb24").mean()) for frame in container.decode(video=0)]
    slow = np.array([message.time_ns for message in bags.of(tape, "/slow/image")])
    rows = [message.time_ns for message in bags.of(tape, CAM_H)]
    wanted = [values[int(np.argmin(np.abs(slow - at)))] for at in rows]
    assert np.abs(np.array(shown) - wanted).max() < 4


@pytest.mark.parametrize("video", ["mjpeg", "h264"])
def test_only_so_many_images_are_decoded_at_once(video: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of small JPEGs holds hundreds of images; decoded they would be many times the budget."""
    bag = bags.write(tmp_path / "run.bag", bags.robot(4))
    lock, alive, most = threading.Lock(), 0, 0
    worker = cameras.JpegWorker if video == "mjpeg" else cameras.VideoWorker
    prepare, store = worker.prepare, worker.store

    def counted_prepare(self: cameras.CameraWorker, frame: cameras.RepeatedFrame) -> object:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        return prepare(self, frame)  # type: ignore[arg-type]

    def counted_store(self: cameras.CameraWorker, frames: list[cameras.RepeatedFrame], prepared: list[object]) -> None:
        nonlocal alive
        store(self, frames, prepared)  # type: ignore[arg-type]
        with lock:
            alive -= len(frames)

    monkeypatch.setattr(worker, "prepare", counted_prepare)
    monkeypatch.setattr(worker, "store", counted_store)
    monkeypatch.setattr("penstock._src.conversion.job.read_cpu_limit", lambda: type("Cpus", (), {"count": 2}))
    report = penstock.convert(bag, tmp_path / "out", video=video)
    assert report.frames == 120
    assert 0 < most <= PREPARED_PER_THREAD * 2


# ── what reading holds ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
def test_a_bag_says_what_reading_it_holds(compression: str, tmp_path: Path) -> None:
    tape = bags.robot(2) + bags.messages("/map", bags.times(1, 1), lambda n: bags.Text("x" * 300_000))
    bag = bags.write(tmp_path / "run.bag", tape, compression=compression, chunk_bytes=100_000)
    largest = max(len(bags.payload(message, 1)) for message in bags.of(tape, CAM_H))
    with recordings.open(bag) as recording:
        reads = recording.largest_reads([recording.topic(CAM_H)])
        everything = recording.largest_reads(recording.topics)
    assert largest <= reads.message_bytes < largest + 4096
    assert everything.message_bytes > 300_000
    if compression == "none":
        assert (reads.chunk_bytes, reads.passing_bytes) == (0, 0)
    else:
        assert 100_000 <= reads.chunk_bytes <= everything.chunk_bytes
        assert everything.chunk_bytes >= 300_000
        assert 0 < reads.passing_bytes <= reads.chunk_bytes


@pytest.mark.parametrize("kind", ["db3dir", "mcapdir"])
def test_ros2_recordings_say_what_reading_them_holds(kind: str, tmp_path: Path) -> None:
    tape = bags.robot(1)
    path = bags.write(tmp_path / f"run.{kind}", tape)
    largest = max(len(bags.payload(message, 2)) for message in bags.of(tape, CAM_H))
    with recordings.open(path) as recording:
        reads = recording.largest_reads([recording.topic(CAM_H), recording.topic(STATE)])
    assert largest <= reads.message_bytes < largest + 4096


def plan(reads: Reads, budget_bytes: int, stored_as: str = "copy", threads: int = 4) -> MemoryPlan:
    demand = MemoryDemand(
        cameras=(CameraDemand(1920, 1080, stored_as, 200_000),),
        vectors=(VectorDemand("action", 8),),
        rows=1000,
        index_bytes=MIB,
        reads=reads,
        chunk_size=1000,
        threads=threads,
    )
    return plan_memory(demand, budget_bytes)


def test_a_chunk_larger_than_the_buffers_is_in_the_prediction() -> None:
    packed = Reads(message_bytes=MIB // 4, chunk_bytes=64 * MIB, passing_bytes=40 * MIB)
    tight, roomy = plan(packed, 256 * MIB), plan(packed, 1024 * MIB)
    assert tight.read_bytes >= 104 * MIB
    assert roomy.fetch_bytes >= 192 * MIB
    with pytest.raises(BudgetExceeded):
        plan(packed, 180 * MIB)


def test_a_message_larger_than_the_buffers_is_in_the_prediction() -> None:
    large = Reads(message_bytes=25 * MIB)
    assert plan(large, 1024 * MIB).read_bytes >= 50 * MIB
    with pytest.raises(BudgetExceeded):
        plan(large, 180 * MIB)


def test_many_threads_shrink_to_the_budget() -> None:
    small = Reads(message_bytes=MIB // 4)
    assert plan(small, 512 * MIB, "mjpeg", threads=128).threads < 128
    assert plan(small, 8192 * MIB, "mjpeg", threads=128).threads == 128


def test_a_packed_chunk_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 255, 65_533, dtype=np.uint8).tobytes() for _ in range(8)]
    comments = b"".join(b"\xff\xfe\xff\xff" + piece for piece in noise)
    image = bags.jpeg(0)[:2] + comments + bags.jpeg(0)[2:]
    tape = bags.messages(CAM_H, bags.times(30, 4), lambda n: bags.Jpeg(image)) + bags.joints(STATE, bags.times(50, 4))
    bag = bags.write(tmp_path / "run.bag", tape, compression="lz4", chunk_bytes=48 * MIB)
    with pytest.raises(BudgetExceeded):
        penstock.convert(bag, tmp_path / "out", memory="180MiB")


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Listens(NoProgress):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self.seen.append((done_bytes, total_bytes))


@pytest.mark.parametrize("split", [False, True])
def test_progress_goes_forward_to_the_end_and_not_beyond(split: bool, tmp_path: Path) -> None:
    broken = bags.change(bags.robot(4), CAM_H, 70, bags.with_content(bags.Jpeg(b"no image")))
    sources = [bags.write(tmp_path / "a.bag", bags.robot(4)), bags.write(tmp_path / "b.bag", broken)]
    progress = Listens()
    penstock.convert(
        sources, tmp_path / "out", progress=progress, split_episodes=split, rosbag={"chunk_size": 20}, fps=30
    )
    done = [each for each, _ in progress.seen]
    assert done == sorted(done)
    assert 0.8 < done[-1] / progress.seen[0][1] <= 1
