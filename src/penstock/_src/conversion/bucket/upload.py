"""Finished files go to the bucket while the conversion goes on: one after the other, in bounded memory."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.bucket.place import BucketSet
from penstock._src.conversion.sink import Sink
from penstock._src.lerobot import layout
from penstock._src.lerobot.write.resume import free_local_bytes
from penstock._src.profile.record.spans import span
from penstock._src.system.files import write_all
from penstock.errors import RemoteChanged

if TYPE_CHECKING:
    from penstock._src.conversion.commit.writer import DataSetWriter

_PIECE_BYTES = 8 << 20
_PIECES_IN_FLIGHT = 2
_MOST_WAITING = 4  # files; a conversion that is faster than the network waits for it
_WAIT_S = 0.2
UPLOAD_BYTES = 48 << 20  # the pieces under way, the one that is read, and the client


class Uploads:
    """The files of one run: which are in the bucket, and a thread that brings others there.

    What was brought there is in a file with a line for each, before the local bytes are given back: a run that was
    killed goes on with the others.
    """

    def __init__(
        self, place: BucketSet, root: Path, done_path: Path, claim: Callable[[str, Path], None] | None = None
    ) -> None:
        """`claim` is called with the name and the path of each file before it is sent."""
        self._place, self._root, self._done_path, self._claim = place, root, done_path, claim
        self.done: dict[str, int] = dict(_read_lines(done_path))  # sizes by name
        self._waiting: deque[str] = deque()
        self._known = set(self.done)
        self._sink: Sink | None = None
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._is_stopped: Callable[[], bool] = lambda: False
        self._thread = threading.Thread(target=self._run, name="penstock-upload", daemon=True)

    def __enter__(self) -> Uploads:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def follow(self, writer: DataSetWriter, is_stopped: Callable[[], bool]) -> None:
        """Take what a writer finishes, and what it has finished before; `is_stopped`: the user asked to stop."""
        self._sink, self._is_stopped = writer.sink, is_stopped
        writer.on_committed = self._committed
        if (last := writer.journal.last_episode()) is not None:
            self._add(writer.sink.finished(last.to_json()))  # type: ignore[attr-defined]

    def check(self) -> None:
        """Raise what went wrong."""
        if self._error is not None:
            raise self._error

    def finish(self, names: Iterable[str], check_stop: Callable[[], None]) -> None:
        """Bring all of these files to the bucket; no other follows."""
        self._add(names)
        while not self._wait(0):
            check_stop()
        self.check()

    def add_done(self, sizes: Mapping[str, int]) -> None:
        """These files are in the bucket: others brought them there."""
        fresh = {name: size_bytes for name, size_bytes in sizes.items() if name not in self.done}
        if fresh:
            self._note(fresh)
            self._known.update(fresh)
            self.done.update(fresh)

    def left_bytes(self, names: Iterable[str]) -> int:
        return sum((self._root / name).stat().st_size for name in names if name not in self.done)

    def _committed(self, last: Mapping[str, Any]) -> None:
        """Called within a commit: errors are raised by `check`."""
        if self._sink is not None:
            self._add(self._sink.finished(last))  # type: ignore[attr-defined]
        while not self._wait(_MOST_WAITING) and not self._is_stopped():
            continue

    def _add(self, names: Iterable[str]) -> None:
        fresh = [name for name in names if name not in self._known]
        self._known.update(fresh)
        with self._changed:
            self._waiting.extend(fresh)
            self._changed.notify_all()

    def _wait(self, most: int) -> bool:
        """Whether no more than so many files wait, after a moment at the latest; also when nothing will change."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._waiting) <= most or self._error is not None, _WAIT_S)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._ended)
                    if self._ended:
                        return
                    name = self._waiting[0]
                with span("32_upload"):
                    self._upload(name)
                with self._changed:
                    self._waiting.popleft()
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _upload(self, name: str) -> None:
        path = self._root / name
        if self._claim is not None:
            self._claim(name, path)
        size_bytes = send(self._place, name, path, lambda: self._ended)
        self._note({name: size_bytes})
        free_local_bytes(path)
        self.done[name] = size_bytes

    def _note(self, sizes: Mapping[str, int]) -> None:
        with layout.writing(self._done_path, "cannot be written"):
            descriptor = os.open(self._done_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                write_all(descriptor, b"".join(json.dumps(each).encode() + b"\n" for each in sizes.items()))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def check_there(self, sizes: Mapping[str, int]) -> None:
        """All files of the run are in the bucket, as long as they were; `sizes` are those of its objects."""
        for name, size_bytes in self.done.items():
            if sizes.get(name) != size_bytes:
                url, there = self._place.url_of(name), sizes.get(name)
                what = "is gone" if there is None else f"has {there:,} bytes instead of {size_bytes:,}"
                raise RemoteChanged(
                    f"{url}: {what} since this conversion wrote it",
                    url=url,
                    hint="nobody else may write below the output; --overwrite starts again",
                )


def send(place: BucketSet, name: str, path: Path, is_ended: Callable[[], bool]) -> int:
    """Bring a file to the bucket under a name of the data set, in bounded memory; its size."""
    client, key = place.client, place.key(name)
    with layout.writing(path, "cannot be read"), path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes <= _PIECE_BYTES:
            client.put(key, file.read())
            return size_bytes
        with client.writer(key, buffer_bytes=_PIECE_BYTES, in_flight=_PIECES_IN_FLIGHT) as target:
            while (piece := file.read(_PIECE_BYTES)) and not is_ended():
                target.write(piece)
            if is_ended():  # the object must not appear
                raise InterruptedError
    return size_bytes


def _read_lines(path: Path) -> list[tuple[str, int]]:
    """What was brought to the bucket; what a killed process left of a line is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return [(name, size_bytes) for name, size_bytes in map(json.loads, whole.splitlines())]
