"""Where the results of tasks lie until they are part of the data set: one directory beside the output.

    OUT.penstock-shards/plan.json              of `--shard`: what is converted, for all shards (plan.py)
    OUT.penstock-shards/<work>/000012.<uuid>   one attempt at group 12, which writes nowhere else
    OUT.penstock-shards/<work>/000012.<uuid>.progress   how far it is
    OUT.penstock-shards/<work>/000012          the attempt that was whole first: renamed in one step
    OUT.penstock-shards/<work>/stop            asks all tasks to end

<work> is made of the settings and the inputs: what an attempt of another call still writes is nobody's result.
Everything that machines share passes through here, so another kind of storage is another module like this one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock._src.lerobot import layout
from penstock._src.lerobot.layout import SHARDS_SUFFIX
from penstock._src.system.files import fsync_path, replacing, write_file
from penstock.errors import DataSetCorrupt, DataSetError

PLAN = "plan.json"
_RESULT, _STOP = "result.json", "stop"
_IS_THERE = (errno.EEXIST, errno.ENOTEMPTY)


def shards_of(out: Path) -> Path:
    """The directory that the tasks of an output share."""
    real = Path(os.path.realpath(out))
    return real.with_name(real.name + SHARDS_SUFFIX)


def work_of(out: Path, identity: Mapping[str, Any], batches: Sequence[Sequence[Mapping[str, Any]]], task: str) -> Path:
    """Where the groups of one conversion lie: other settings or inputs have another place."""
    known = {name: identity[name] for name in ("penstock", "settings", "strict")}
    text = json.dumps({**known, "batches": [list(batch) for batch in batches], "task": task}, sort_keys=True)
    return shards_of(out) / hashlib.sha256(text.encode()).hexdigest()[:16]


def new_attempt(work: Path, group: int) -> Path:
    """A directory that no other attempt has; it is not made yet."""
    return work / f"{group:06d}.{uuid.uuid4().hex}"


def result_of(work: Path, group: int) -> Path:
    return work / f"{group:06d}"


def publish(attempt: Path, result: Mapping[str, Any]) -> bool:
    """Make a whole attempt the result of its group; False where another one was first, and this one is removed."""
    write_json(attempt / _RESULT, result)
    fsync_path(attempt)
    target = attempt.with_name(attempt.name.partition(".")[0])
    with layout.writing(target, "cannot publish the group"):
        try:
            os.rename(attempt, target)
        except OSError as error:
            if error.errno not in _IS_THERE:
                raise
            discard(attempt)
            return False
        fsync_path(target.parent)
    return True


def is_published(work: Path, group: int) -> bool:
    return (result_of(work, group) / _RESULT).is_file()


def read_result(work: Path, group: int) -> dict[str, Any]:
    return read_json(result_of(work, group) / _RESULT)


def discard(directory: Path) -> None:
    """Remove an attempt or a result; what cannot be removed is in nobody's way."""
    shutil.rmtree(directory, ignore_errors=True)


def write_progress(attempt: Path, progress: Mapping[str, Any]) -> None:
    """How far an attempt is; nothing depends on it."""
    with contextlib.suppress(OSError, DataSetError):
        write_json(_progress_of(attempt), progress, fsync=False)


def end_progress(attempt: Path) -> None:
    with contextlib.suppress(OSError):
        _progress_of(attempt).unlink()


def _progress_of(attempt: Path) -> Path:
    return attempt.with_name(f"{attempt.name}.progress")


def read_progress(attempt: Path) -> dict[str, Any] | None:
    """The last progress of an attempt; None where it wrote none, or is published or gone."""
    try:
        return dict(json.loads(_progress_of(attempt).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def ask_to_stop(work: Path) -> None:
    with layout.writing(work / _STOP, "cannot be written"):
        work.mkdir(parents=True, exist_ok=True)
        (work / _STOP).touch()


def is_asked_to_stop(work: Path) -> bool:
    return (work / _STOP).exists()


def begin(work: Path) -> None:
    """Make the place, and let tasks run that were asked to stop before."""
    with layout.writing(work, "cannot make the directory"):
        work.mkdir(parents=True, exist_ok=True)
        (work / _STOP).unlink(missing_ok=True)


def write_json(path: Path, tree: Mapping[str, Any], *, fsync: bool = True) -> None:
    """A small file, whole or not at all."""
    with layout.writing(path, "cannot be written"), replacing(path, fsync=False) as fresh:
        write_file(fresh, [json.dumps(tree, allow_nan=False).encode()], fsync=fsync)


def write_json_once(path: Path, tree: Mapping[str, Any]) -> None:
    """As `write_json`, unless the file is there already: of several writers the first wins."""
    with layout.writing(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
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


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataSetCorrupt(f"{path}: cannot be read: {error}") from error
