"""What machines share below an output in a bucket: penstock/shards, beside the files that the data set will have.

A task writes on its own machine. Videos that are finished leave it for the chunk of their group, rows follow in one
object, and result.json, written once, publishes the group. Whoever commits reads only those two.

Two attempts at a group use the same names. So each file is claimed before it is sent, by the digest of its bytes:

    <work>/claims/videos/KEY/chunk-012/file-000.mp4

An attempt that has other bytes begins anew with other names. Before `claims` goes, `open` is removed, and whoever
claims a file looks for that afterwards: so nobody writes over a file of a data set that was published.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.bucket import publish, staging
from penstock._src.conversion.bucket.place import SHARDS_DIR, BucketSet, chunk_of, describe_run, dump_json
from penstock._src.conversion.bucket.run import Shared, directory_of
from penstock._src.conversion.bucket.upload import UPLOAD_BYTES, Uploads, send
from penstock._src.conversion.commit.journal import JOURNAL_PATH, Journal
from penstock._src.conversion.report import REPORT_PATH, Report, read_report
from penstock._src.conversion.shards.shard_storage import PLAN, Attempt, Published, ShardStorage, result_name
from penstock._src.lerobot import layout
from penstock._src.system.files import RemotePath
from penstock._src.system.files.remote.requests import Pending, pool
from penstock.errors import DataSetCorrupt, Interrupted, RemoteMissing, RemoteTaken

if TYPE_CHECKING:
    from penstock._src.conversion.commit.writer import DataSetWriter
    from penstock._src.conversion.job import Job
    from penstock._src.conversion.shards.plan import ShardPlan

_PIECE_BYTES = 8 << 20
_ROWS_NAME = "rows.zip"


class BucketAttempt(Attempt):
    """A directory in the cache of this machine, from which finished files go to the bucket."""

    upload_bytes = UPLOAD_BYTES

    def __init__(self, storage: BucketShardStorage, name: str) -> None:
        self._storage, self._name = storage, name
        self._directory = storage.tasks_directory / uuid.uuid4().hex
        self.root = self._directory / "set"
        self._uploads = Uploads(storage.set, self.root, self._directory / "uploaded.jsonl", self._claim)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> BucketAttempt:
        with layout.writing(self._directory, "cannot make the directory"):
            _remove_dead(self._storage.tasks_directory)
            self._held.callback(os.close, _make_locked(self._directory))
        self._held.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._held.enter_context(self._uploads)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        with contextlib.suppress(OSError):
            self._storage.tasks_directory.rmdir()

    def follow(self, writer: DataSetWriter, is_stopped: Callable[[], bool]) -> None:
        self._uploads.follow(writer, is_stopped)

    def check(self) -> None:
        self._uploads.check()

    def publish(self, result: Mapping[str, Any], check_stop: Callable[[], None]) -> bool:
        files, others = publish.names_in(self.root)
        self._uploads.finish(files, check_stop)
        rows = self._directory / _ROWS_NAME
        with layout.writing(rows, "cannot be written"), zipfile.ZipFile(rows, "w") as packed:
            for name in others:
                packed.write(self.root / name, name)
        storage, rows_name = self._storage, f"{self._name}/{_ROWS_NAME}"
        send(storage.set, storage.full(rows_name), rows, lambda: False)
        self._check_open()
        tree = {"result": dict(result), "rows": rows_name, "videos": self._uploads.done}
        target = result_name(*_work_and_group(self._name))
        try:
            storage.set.client.put(storage.key(target), dump_json(tree), if_absent=True)
        except RemoteTaken:
            storage.remove(rows_name)
            return False
        return True

    def _claim(self, name: str, path: Path) -> None:
        """Take the name of a file for its bytes: RemoteTaken where another attempt has it for others."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        claim = f"{_work_and_group(self._name)[0]}/claims/{name}"
        self._storage.set.client.put(self._storage.key(claim), digest.hexdigest().encode(), if_absent=True)
        try:
            self._check_open()
        except Interrupted:
            self._storage.remove(claim)
            raise

    def _check_open(self) -> None:
        if self._storage.is_asked_to_stop(_work_and_group(self._name)[0]):
            raise Interrupted(f"{self._storage.where}: the conversion was stopped, or committed by another machine")


class BucketShardStorage(ShardStorage):
    """Objects below an output in a bucket."""

    look_every_s = 5.0

    def __init__(self, out: RemotePath) -> None:
        self._out = out
        self.set = BucketSet(out)
        self.tasks_directory = directory_of(out).with_name(f"{directory_of(out).name}.tasks")
        self.where = self.set.url_of(SHARDS_DIR)
        self._fetching: dict[int, Pending[Published]] = {}

    def full(self, name: str) -> str:
        """A name as the data set has it."""
        return f"{SHARDS_DIR}/{name}"

    def key(self, name: str) -> str:
        return self.set.key(self.full(name))

    def read(self, names: Sequence[str]) -> list[dict[str, Any] | None]:
        return pool().run_all([partial(self.set.read_json, self.full(name)) for name in names])

    def put(self, name: str, tree: Mapping[str, Any], *, once: bool = False) -> None:
        with contextlib.suppress(RemoteTaken):
            self.set.client.put(self.key(name), dump_json(tree), if_absent=once)

    def has(self, name: str) -> bool:
        try:
            self.set.client.head(self.key(name))
        except RemoteMissing:
            return False
        return True

    def remove(self, name: str) -> None:
        self.set.client.delete([self.key(name)])

    def attempt(self, name: str) -> BucketAttempt:
        return BucketAttempt(self, name)

    def discard(self, attempt: str) -> None:
        pass  # its machine clears up, and the next attempt writes the same names

    def published(self, work: str) -> set[int]:
        found = (name.rsplit("/", 2)[1:] for name in self.set.list_files(self.full(work)))
        return {int(group) for group, name in found if name == "result.json"}

    def fetch(self, work: str, group: int, following: Sequence[int] = ()) -> Published:
        for number in (group, *following):
            if number not in self._fetching:
                self._fetching[number] = pool().submit(partial(self._fetch, work, number))
        return self._fetching.pop(group).result()

    def _fetch(self, work: str, group: int) -> Published:
        """The rows, and videos of which only names and sizes are there."""
        name = self.full(result_name(work, group))
        tree = self.set.read_json(name)
        if tree is None:
            raise DataSetCorrupt(f"{self.set.url_of(name)}: is gone")
        root = directory_of(self._out) / "groups" / f"{group:06d}"
        shutil.rmtree(root, ignore_errors=True)
        key, rows = self.key(tree["rows"]), root.with_suffix(".zip")
        info = self.set.client.head(key)
        with layout.writing(root, "cannot be written"):
            root.mkdir(parents=True)
            with rows.open("wb") as file:
                for begin in range(0, info.size_bytes, _PIECE_BYTES):
                    end = min(begin + _PIECE_BYTES, info.size_bytes)
                    file.write(self.set.client.read(key, begin, end, info.etag))
            with zipfile.ZipFile(rows) as packed:
                packed.extractall(root)
            rows.unlink()
            for video, size_bytes in tree["videos"].items():
                path = layout.path_in(root, video)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                os.truncate(path, size_bytes)
        return Published(tree["result"], root, tree["videos"])

    @contextlib.contextmanager
    def check_output(self, job: Job, *, append: bool, overwrite: bool) -> Iterator[Journal | None]:
        staging.check_job(job, is_shared=True)
        current, listing = self.set.current(), self.set.list_files()
        if not append:
            staging.check_free(self.set, current, listing, overwrite=overwrite)
            yield None
            return
        staging.check_ours(self.set, current, listing)
        with staging.metadata_of(self.set, current, JOURNAL_PATH) as root:
            yield Journal.read(root)

    def new_run(self) -> Mapping[str, Any]:
        current = self.set.current()
        return {"run": uuid.uuid4().hex, "base": None if current is None else current.etag}

    def shared(self, plan: ShardPlan) -> Shared:
        assert plan.run is not None
        base, count = plan.run["base"], len(plan.groups)
        (known,) = self.read([f"{plan.work}/chunks.json"])
        if known is None:
            first = self.set.take_chunks(describe_run(plan.run["run"], base), count=count)
            known = {"first": first}
            self.put(f"{plan.work}/chunks.json", known)
        first = int(known["first"])
        return Shared(plan.work, base, plan.is_append, first, first + count - 1, plan.groups[0].number)

    def committed(self, plan: ShardPlan | None) -> Report | None:
        current = self.set.current()
        if current is None or not staging.is_ours(current, self.set.list_files()):
            return None
        if plan is not None:
            shared = self.shared(plan)
            chunks = map(chunk_of, self.set.files_of(current, {}).files) if current.number is not None else ()
            if not any(chunk is not None and shared.first <= chunk <= shared.last for chunk in chunks):
                try:
                    publish.check_base(self.set, shared.base, current)
                except RemoteTaken:  # it will never be published
                    self.remove_all(plan)
                    raise
                return None
            publish.complete(self.set)
        with staging.metadata_of(self.set, current, REPORT_PATH) as root:
            return read_report(root)

    def begin(self, work: str) -> None:
        super().begin(work)
        if not self.has(PLAN):  # committed or given up meanwhile: whoever did it removes `open` last
            self.ask_to_stop(work)
            raise Interrupted(f"{self.where}: the conversion was committed or given up by another machine")

    def remove_all(self, plan: ShardPlan | None) -> None:
        if plan is None:
            return
        (there,) = self.read([PLAN])
        if there is not None and there["run"] == plan.run:  # else others share something new
            self.remove(PLAN)
        self.ask_to_stop(plan.work)
        self.set.delete(self.set.list_files(self.full(plan.work)))


def _work_and_group(attempt: str) -> tuple[str, int]:
    work, _, name = attempt.rpartition("/")
    return work, int(name.partition(".")[0])


def _make_locked(directory: Path) -> int:
    """A directory and a lock on it, which goes with its process; the descriptor."""
    directory.mkdir(parents=True)
    fresh = directory / "fresh"
    handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(handle, fcntl.LOCK_EX)
    fresh.rename(directory / "lock")
    return handle


def _remove_dead(directory: Path) -> None:
    """What killed tasks left on this machine."""
    for lock in directory.glob("*/lock"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
