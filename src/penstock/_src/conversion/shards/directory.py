"""What machines share beside an output on a file system that all of them see: OUT.penstock-shards."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.commit import output
from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.report import Report, read_report
from penstock._src.conversion.shards.shard_storage import Attempt, Published, ShardStorage, result_name
from penstock._src.lerobot import layout
from penstock._src.lerobot.layout import SHARDS_SUFFIX
from penstock._src.system.files import fsync_path, replacing, write_file
from penstock.errors import DataSetCorrupt, OutputExists

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job
    from penstock._src.conversion.shards.plan import ShardPlan

_IS_THERE = (errno.EEXIST, errno.ENOTEMPTY)


class DirectoryAttempt(Attempt):
    """A directory, which gets the name of its group when it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, result: Mapping[str, Any], check_stop: Callable[[], None]) -> bool:
        target = self.root.with_name(self.root.name.partition(".")[0])
        with layout.writing(target, "cannot publish the group"):
            _write_json(self.root / "result.json", {"result": result})
            fsync_path(self.root)
            try:
                os.rename(self.root, target)
            except OSError as error:
                if error.errno not in _IS_THERE:
                    raise
                return False
            fsync_path(target.parent)
        return True


class DirectoryShardStorage(ShardStorage):
    """A directory beside the output."""

    look_every_s = 1.0

    def __init__(self, out: Path) -> None:
        self._out = out
        self.root = shards_of(out)
        self.where = str(self.root)

    def read(self, names: Sequence[str]) -> list[dict[str, Any] | None]:
        return [_read_json(self.root / name) for name in names]

    def put(self, name: str, tree: Mapping[str, Any], *, once: bool = False) -> None:
        path = self.root / name
        with layout.writing(path, "cannot be written"):
            if name.endswith(".progress"):  # of a task that may outlive the directory, and must not make it anew
                _write_json(path, tree, fsync=False)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            if once:
                _write_json_once(path, tree)
            else:
                _write_json(path, tree)

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[DirectoryAttempt]:
        try:
            yield DirectoryAttempt(self.root / name)
        finally:
            self.discard(name)

    def discard(self, attempt: str) -> None:
        shutil.rmtree(self.root / attempt, ignore_errors=True)

    def published(self, work: str) -> set[int]:
        found = (path.parent.name for path in (self.root / work).glob("*/result.json"))
        return {int(name) for name in found if name.isdecimal()}

    def fetch(self, work: str, group: int, following: Sequence[int] = ()) -> Published:
        path = self.root / result_name(work, group)
        tree = _read_json(path)
        if tree is None:
            raise DataSetCorrupt(f"{path}: is gone")
        return Published(tree["result"], path.parent)

    @contextlib.contextmanager
    def check_output(self, job: Job, *, append: bool, overwrite: bool) -> Iterator[Journal | None]:
        if not append:
            output.check_free(self._out, overwrite=overwrite)
            yield None
            return
        if not output.is_ours(self._out):
            raise OutputExists(f"{self._out}: there is nothing to append to", hint="leave --append out to begin it")
        yield Journal.read(self._out)

    def is_begun(self) -> bool:
        return output.partial_of(self._out).exists()

    def committed(self, plan: ShardPlan | None) -> Report | None:
        if not output.is_ours(self._out):
            return None
        if plan is None or any(note.get("shards") == plan.work for note in Journal.read(self._out).notes()):
            return read_report(self._out)
        return None

    def remove_all(self, plan: ShardPlan | None) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def shards_of(out: Path) -> Path:
    """The directory that the tasks of an output share."""
    real = Path(os.path.realpath(out))
    return real.with_name(real.name + SHARDS_SUFFIX)


def _write_json(path: Path, tree: Mapping[str, Any], *, fsync: bool = True) -> None:
    """A small file, whole or not at all."""
    with replacing(path, fsync=False) as fresh:
        write_file(fresh, [json.dumps(tree, allow_nan=False).encode()], fsync=fsync)


def _write_json_once(path: Path, tree: Mapping[str, Any]) -> None:
    """As `_write_json`, unless the file is there already."""
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        write_file(fresh, [json.dumps(tree, allow_nan=False).encode()], fsync=True)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        except OSError:  # a file system without second names
            if not path.exists():
                os.replace(fresh, path)
        fsync_path(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataSetCorrupt(f"{path}: cannot be read: {error}") from error
