"""The camera half of an episode: images are prepared in parallel and stored in order, a few enter the statistics."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.cameras.camera import Camera, CameraImage
from penstock._src.conversion.cameras.workers import (
    BytesWorker,
    CameraWorker,
    CopyWorker,
    DepthWorker,
    ImageCheck,
    JpegWorker,
    RepeatedFrame,
    VideoWorker,
    to_pixels,
)
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.settings import Encoding
from penstock._src.plan.conversion_memory import PREPARED_PER_THREAD
from penstock._src.profile.record.spans import span
from penstock._src.system.closing import on_error
from penstock.errors import ImageError, LimitExceeded, MessageError, PenstockError

Step = Callable[[], object]


class TaskThread:
    """Jobs are done in the order they were put; `put` waits while `depth` of them are waiting."""

    def __init__(self, name: str, depth: int = 2) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._room = threading.Semaphore(depth + 1)  # one is under way
        self._error: BaseException | None = None

    def put(self, job: Step, after: Step) -> None:
        """Do `job` in its turn; `after`, which gives buffers back, follows even a job that failed or never began."""
        with on_error(after):
            self._raise()
        self._room.acquire()
        self._thread.submit(self._do, job, after)

    def drain(self) -> None:
        """Wait until everything that was put is done."""
        self._thread.submit(int).result()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _do(self, job: Step, after: Step) -> None:
        # After a failure the rest is taken from the queue undone, so that the reader never waits for ever.
        try:
            try:
                if self._error is None:
                    job()
            finally:
                after()
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._room.release()

    def __enter__(self) -> TaskThread:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # What still waits after a failure of the reader is dropped, not done.
        self._error = self._error or error
        self._thread.shutdown()


class PassThreads(contextlib.ExitStack):
    """Who helps a pass: a thread that writes, a thread that decodes for the statistics, and a pool that encodes."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.pool = self.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="penstock-encode"))
        self.writing = self.enter_context(TaskThread("penstock-write", depth=6))
        self.statistics = self.enter_context(TaskThread("penstock-statistics", depth=8))

    def load_arrow(self) -> None:
        """The first flush will need it; loading it meanwhile costs the pass nothing."""
        self.statistics.put(lambda: importlib.import_module("pyarrow.parquet"), lambda: None)


PREPARE, STORE = "32_prepare_images", "33_store_images"  # stages of a profile: images of one block
UNUSABLE = (ImageError, MessageError, LimitExceeded)
# Images that are decoded for the statistics of an episode: more from a long one, and a bounded number from any.
_ROWS_PER_SAMPLE, _FEWEST_SAMPLES, _MOST_SAMPLES = 300, 8, 64


class UnusableImage(NamedTuple):
    """A message or an image that cannot be used, and why; `owner` is the number of its topic, or the camera's key."""

    owner: Any
    name: str
    number: int
    reason: str


class UnusableImageFound(Exception):
    """The pass met what cannot be used: the episode has to be made again without it."""

    def __init__(self, images: Sequence[UnusableImage]) -> None:
        super().__init__(f"{len(images)} unusable")
        self.images = tuple(images)


NoteBad = Callable[[int, int, PenstockError], None]  # camera, image, why it cannot be used


class ImagePass:
    """The cameras of one episode, from checked images to their files; `bad` stops the storing, not the looking."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        workers: Sequence[CameraWorker],
        episode: EpisodeWriter,
        pool: PassThreads,
        threads: int,
        bad: Sequence[object],
        note_bad: NoteBad,
    ) -> None:
        self.cameras, self.workers = tuple(cameras), tuple(workers)
        self.checks = [ImageCheck(camera) for camera in cameras]
        self.all_copied = all(type(worker) is CopyWorker for worker in workers)
        self._episode, self._pool, self._threads = episode, pool, threads
        self._bad, self._note_bad = bad, note_bad

    def put(self, frames: Sequence[list[RepeatedFrame]], after: Callable[[], None]) -> None:
        """Store each camera's images in the writing thread; `after` gives back the buffer that they lie in."""
        if self._bad and self.all_copied:
            after()
        else:  # after a bad image the others are still decoded, so that one pass finds all that cannot be
            self._pool.writing.put(lambda: self._store(frames), after)

    def repeat(self, owner: int, rows: int) -> None:
        """Show the camera's last image in more rows."""
        # In the writing thread, where it is known whether the image before was stored.
        self._pool.writing.put(lambda: None if self._bad else self.workers[owner].repeat(rows), lambda: None)

    def sample(self, owner: int, number: int, image: CameraImage) -> None:
        """Decode an image for the statistics, from a copy: the buffer goes its own way."""
        held = image._replace(data=memoryview(bytes(image.data)))
        self._pool.statistics.put(lambda: self._add_sample(owner, number, held), lambda: None)

    def take_images(self, rows: int | None = None) -> dict[str, list[bytes]]:
        """The images of the rows since the last call, for cameras whose images lie in the table."""
        kept = {worker.column.key: table for worker in self.workers if (table := worker.table) is not None}
        if kept:
            self._pool.writing.drain()
        return {key: worker.take(rows) for key, worker in kept.items()}

    def finish(self) -> None:
        """Wait until every image is stored and counted."""
        self._pool.writing.put(self._finish_workers, lambda: None)
        self._pool.writing.drain()
        self._pool.statistics.drain()

    def _store(self, frames: Sequence[list[RepeatedFrame]]) -> None:
        """In the writing thread: prepare in parallel what needs it, then store each camera's images in order."""
        busy = [(worker, own_frames) for worker, own_frames in zip(self.workers, frames, strict=True) if own_frames]
        if all(type(worker) is CopyWorker for worker, _ in busy):
            if self._bad:
                return
            with span(STORE):
                for worker, own_frames in busy:
                    worker.store(own_frames, [])
            return
        # A block may hold a thousand small JPEGs, and only so many decoded ones are in the budget.
        step = max(1, PREPARED_PER_THREAD * self._threads // len(busy))
        for start in range(0, max(len(own_frames) for _, own_frames in busy), step):
            self._store_some([(worker, own_frames[start : start + step]) for worker, own_frames in busy])

    def _store_some(self, busy: Sequence[tuple[CameraWorker, list[RepeatedFrame]]]) -> None:
        flat = [(worker, frame) for worker, own_frames in busy for frame in own_frames]
        with span(PREPARE):
            prepared = list(self._pool.pool.map(lambda pair: self._prepare(*pair), flat))
        if self._bad:
            for worker, own_frames in busy:
                worker.check_usable(own_frames)
            return
        results = iter(prepared)
        work = [(worker, own_frames, [next(results) for _ in own_frames]) for worker, own_frames in busy]
        with span(STORE):
            for _ in self._pool.pool.map(lambda entry: entry[0].store(entry[1], entry[2]), work):
                pass

    def _prepare(self, worker: CameraWorker, frame: RepeatedFrame) -> Any:
        try:
            return worker.prepare(frame)
        except UNUSABLE as error:
            self._note_bad(self.workers.index(worker), frame.number, error)
            return None

    def _finish_workers(self) -> None:
        if not self._bad:
            for worker in self.workers:
                worker.finish()

    def _add_sample(self, owner: int, number: int, image: CameraImage) -> None:
        column = self.cameras[owner]
        try:
            pixels = to_pixels(column, image)
        except UNUSABLE as error:  # whole by its markers, and yet no image
            self._note_bad(owner, number, error)
        else:
            self._episode.add_image_sample(column.key, pixels)


def sampled_rows(rows: range, image_samples: int | None) -> NDArray[np.int64]:
    """Rows whose images are decoded for the statistics, spread evenly over the episode."""
    automatic = min(max(len(rows) // _ROWS_PER_SAMPLE, _FEWEST_SAMPLES), _MOST_SAMPLES)
    count = min(image_samples or automatic, len(rows))
    return np.linspace(rows.start, rows.stop - 1, num=count).astype(np.int64)


def make_worker(camera: Camera, episode: EpisodeWriter, encoding: Encoding, fps: int, threads: int) -> CameraWorker:
    """Who stores the images of a camera, as its column says."""
    if camera.is_metric:
        return DepthWorker(camera, encoding.quality)
    if camera.stored_as == "images":
        return BytesWorker(camera, encoding.quality)
    sink = episode.video(camera.key)
    if camera.copied:
        return CopyWorker(camera, sink)
    if camera.stored_as == "mjpeg":
        return JpegWorker(camera, sink, encoding.quality)
    from penstock._src.media.video.encode import VideoEncoder
    from penstock._src.media.video.hardware import encoder_settings

    chosen = encoder_settings(
        camera.stored_as, crf=encoding.crf, gop=encoding.gop, preset=encoding.preset, device=encoding.device
    )
    height, width = camera.size_px
    return VideoWorker(camera, sink, VideoEncoder(chosen, width, height, fps, threads=threads))
