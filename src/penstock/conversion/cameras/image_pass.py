"""The camera half of an episode: pictures are prepared in parallel and stored in order, a few enter the statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.camera import (
    BytesWorker,
    CameraWorker,
    CopyWorker,
    DepthWorker,
    JpegWorker,
    PictureCheck,
    Shot,
    VideoWorker,
    to_pixels,
)
from penstock.conversion.cameras.column import Camera
from penstock.conversion.cameras.lane import Crew
from penstock.conversion.commit.episode import EpisodeWriter
from penstock.conversion.mapping.first_messages import Picture
from penstock.conversion.settings import Encoding
from penstock.errors import ImageError, LimitExceeded, MessageError, PenstockError
from penstock.plan.conversion_memory import PREPARED_PER_THREAD
from penstock.profile.record.spans import span

PREPARE, STORE = "32_prepare_pictures", "33_store_pictures"  # stages of a profile: pictures of one block
UNUSABLE = (ImageError, MessageError, LimitExceeded)
# Pictures that are decoded for the statistics of an episode: more from a long one, and a bounded number from any.
_ROWS_PER_SAMPLE, _FEWEST_SAMPLES, _MOST_SAMPLES = 300, 8, 64

NoteBad = Callable[[int, int, PenstockError], None]  # camera, picture, why it cannot be used


class PicturePass:
    """The cameras of one episode, from checked pictures to their files; `bad` stops the storing, not the looking."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        workers: Sequence[CameraWorker],
        episode: EpisodeWriter,
        crew: Crew,
        threads: int,
        bad: Sequence[object],
        note_bad: NoteBad,
    ) -> None:
        self.cameras, self.workers = tuple(cameras), tuple(workers)
        self.checks = [PictureCheck(camera) for camera in cameras]
        self.all_copied = all(type(worker) is CopyWorker for worker in workers)
        self._episode, self._crew, self._threads = episode, crew, threads
        self._bad, self._note_bad = bad, note_bad

    def put(self, shots: Sequence[list[Shot]], after: Callable[[], None]) -> None:
        """Store each camera's pictures in the writing lane; `after` gives back the buffer that they lie in."""
        if self._bad and self.all_copied:
            after()
        else:  # after a bad picture the others are still decoded, so that one pass finds all that cannot be
            self._crew.writing.put(lambda: self._store(shots), after)

    def repeat(self, owner: int, rows: int) -> None:
        """Show the camera's last picture in more rows."""
        # In the writing lane, where it is known whether the picture before was stored.
        self._crew.writing.put(lambda: None if self._bad else self.workers[owner].repeat(rows), lambda: None)

    def sample(self, owner: int, number: int, picture: Picture) -> None:
        """Decode a picture for the statistics, from a copy: the buffer goes its own way."""
        held = picture._replace(data=memoryview(bytes(picture.data)))
        self._crew.statistics.put(lambda: self._add_sample(owner, number, held), lambda: None)

    def take_images(self, rows: int | None = None) -> dict[str, list[bytes]]:
        """The pictures of the rows since the last call, for cameras whose pictures lie in the table."""
        kept = {worker.column.key: table for worker in self.workers if (table := worker.table) is not None}
        if kept:
            self._crew.writing.drain()
        return {key: worker.take(rows) for key, worker in kept.items()}

    def finish(self) -> None:
        """Wait until every picture is stored and counted."""
        self._crew.writing.put(self._finish_workers, lambda: None)
        self._crew.writing.drain()
        self._crew.statistics.drain()

    def _store(self, shots: Sequence[list[Shot]]) -> None:
        """In the writing lane: prepare in parallel what needs it, then store each camera's pictures in order."""
        busy = [(worker, taken) for worker, taken in zip(self.workers, shots, strict=True) if taken]
        if all(type(worker) is CopyWorker for worker, _ in busy):
            if self._bad:
                return
            with span(STORE):
                for worker, taken in busy:
                    worker.store(taken, [])
            return
        # A block may hold a thousand small JPEGs, and only so many decoded ones are in the budget.
        step = max(1, PREPARED_PER_THREAD * self._threads // len(busy))
        for start in range(0, max(len(taken) for _, taken in busy), step):
            self._store_some([(worker, taken[start : start + step]) for worker, taken in busy])

    def _store_some(self, busy: Sequence[tuple[CameraWorker, list[Shot]]]) -> None:
        flat = [(worker, shot) for worker, taken in busy for shot in taken]
        with span(PREPARE):
            prepared = list(self._crew.pool.map(lambda pair: self._prepare(*pair), flat))
        if self._bad:
            for worker, taken in busy:
                worker.look(taken)
            return
        results = iter(prepared)
        work = [(worker, taken, [next(results) for _ in taken]) for worker, taken in busy]
        with span(STORE):
            for _ in self._crew.pool.map(lambda entry: entry[0].store(entry[1], entry[2]), work):
                pass

    def _prepare(self, worker: CameraWorker, shot: Shot) -> Any:
        try:
            return worker.prepare(shot)
        except UNUSABLE as error:
            self._note_bad(self.workers.index(worker), shot.number, error)
            return None

    def _finish_workers(self) -> None:
        if not self._bad:
            for worker in self.workers:
                worker.finish()

    def _add_sample(self, owner: int, number: int, picture: Picture) -> None:
        column = self.cameras[owner]
        try:
            pixels = to_pixels(column, picture)
        except UNUSABLE as error:  # whole by its markers, and yet no picture
            self._note_bad(owner, number, error)
        else:
            self._episode.add_image_sample(column.key, pixels)


def sampled_rows(rows: range, image_samples: int | None) -> NDArray[np.int64]:
    """Rows whose pictures are decoded for the statistics, spread evenly over the episode."""
    automatic = min(max(len(rows) // _ROWS_PER_SAMPLE, _FEWEST_SAMPLES), _MOST_SAMPLES)
    count = min(image_samples or automatic, len(rows))
    return np.linspace(rows.start, rows.stop - 1, num=count).astype(np.int64)


def make_worker(camera: Camera, episode: EpisodeWriter, encoding: Encoding, fps: int, threads: int) -> CameraWorker:
    """Who stores the pictures of a camera, as its column says."""
    if camera.is_metric:
        return DepthWorker(camera, encoding.quality)
    if camera.stored_as == "images":
        return BytesWorker(camera, encoding.quality)
    sink = episode.video(camera.key)
    if camera.copied:
        return CopyWorker(camera, sink)
    if camera.stored_as == "mjpeg":
        return JpegWorker(camera, sink, encoding.quality)
    from penstock.media.video.encode import VideoEncoder
    from penstock.media.video.hardware import encoder_settings

    chosen = encoder_settings(
        camera.stored_as, crf=encoding.crf, gop=encoding.gop, preset=encoding.preset, device=encoding.device
    )
    height, width = camera.size_px
    return VideoWorker(camera, sink, VideoEncoder(chosen, width, height, fps, threads=threads))
