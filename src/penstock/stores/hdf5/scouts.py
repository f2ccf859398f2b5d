"""Children that survey the HDF5 files of a store, several at a time when there are thousands; and what they found."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from penstock import errors
from penstock.errors import ExternalRefused, PenstockError, StoreCorrupt, StoreError
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.spots import Asked, Facts, Like, Line, like_from
from penstock.stores.hdf5.survey import Surveyor

TIMEOUT_S = 120.0
"""For one file: a child that says nothing for so long does not come back."""

_MODULE = "penstock.stores.hdf5.survey_child"
_FEW_FILES = 128  # one child surveys so many in less time than a second one takes to start
_MOST_CHILDREN = 4
_ALLOW = "if you trust the file, penstock.open(…, allow_external=True) reads it"


@dataclass(frozen=True)
class Survey:
    """The files of a store, and its parts: the groups that are or hold episodes, in order."""

    kind: str
    why: str
    fps: float | None
    notes: tuple[str, ...]
    masks: tuple[str, ...]
    columns: tuple[Facts, ...]
    ways: tuple[Any, ...]
    """By column: how often which (way, why) was met."""
    paths: tuple[Path, ...]
    stamps: Any
    """(size, time of change in ns) by file: int64 (files, 2)."""
    part_file: Any
    part_group: tuple[str, ...]
    part_rows: Any
    spots: Any
    """int64 (parts, columns, 5): offset, row bytes, chunk rows, chunk bytes, stored bytes."""

    def packed(self) -> Line:
        """For another process: what `unpacked` takes."""
        spots = (self.spots.shape, zlib.compress(self.spots.tobytes(), 1))
        return {**vars(self), "paths": [str(path.absolute()) for path in self.paths], "spots": spots}


def unpacked(packed: Line) -> Survey:
    """The survey of another process."""
    shape, held = packed["spots"]
    spots = np.frombuffer(zlib.decompress(held), np.int64).reshape(shape)
    return Survey(**{**packed, "paths": tuple(Path(path) for path in packed["paths"]), "spots": spots})


def survey_files(paths: Sequence[Path], asked: Asked, *, check: bool = True) -> Survey:
    """Survey files in children, so that none can hurt this process; `check=False` trusts them, and does it here."""
    stamps = [_stamp(path) for path in paths]
    lines: list[Line] = []
    if not check:
        lines += _survey_here(paths, asked)
    elif len(paths) <= _FEW_FILES:
        lines += _survey_in_child(list(enumerate(paths)), asked, None)
    else:
        numbered = list(enumerate(paths))
        first, like = _survey_first(numbered, asked)
        lines += first
        rest = numbered[len({line["file"] for line in first}) :]
        children = min(_MOST_CHILDREN, len(os.sched_getaffinity(0)), -(-len(rest) // _FEW_FILES))
        step = -(-len(rest) // max(children, 1))
        with ThreadPoolExecutor(max(children, 1)) as pool:
            jobs = [
                pool.submit(lambda share: list(_survey_in_child(share, asked, like)), rest[at : at + step])
                for at in range(0, len(rest), step)
            ]
            for job in jobs:
                lines += job.result()
    return _assembled(paths, stamps, lines)


def _survey_here(paths: Sequence[Path], asked: Asked) -> Iterator[Line]:
    surveyor = Surveyor(asked)
    for number, path in enumerate(paths):
        try:
            with Hdf5File(path, allow_external=asked.allow_external, tried=True) as file:
                for line in surveyor.survey(file):
                    yield {"file": number, **line}
        except ExternalRefused as error:
            error.hint = _ALLOW
            raise


def _survey_first(numbered: list[tuple[int, Path]], asked: Asked) -> tuple[list[Line], Like | None]:
    """Files up to the first that has rows: what the others are compared with."""
    lines: list[Line] = []
    like: Like | None = None
    for each in numbered:
        found = list(_survey_in_child([each], asked, None))
        lines += found
        if any(line.get("rows") for line in found):
            like = next(like_from(line["like"]) for line in found if line.get("like"))
            break
    return lines, like


def _survey_in_child(files: list[tuple[int, Path]], asked: Asked, like: Like | None) -> Iterator[Line]:
    """The lines of one child about these files, each file whole or an error in its name."""
    paths = dict(files)
    job = {
        "files": [[number, str(path.absolute())] for number, path in files],
        "asked": asdict(asked),
        "like": None if like is None else like.as_plain(),
    }
    at, done = files[0][0], -1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
    with tempfile.TemporaryFile() as complaints:  # a pipe that nobody empties would stop the child
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
                env=environment, start_new_session=True,  # Ctrl-C is for the parent; the child ends by itself
            )  # fmt: skip
        except OSError as error:
            raise StoreError(f"{files[0][1]} cannot be looked at: no child could be started: {error}") from error
        try:
            _give(child.stdin, json.dumps(job).encode())
            for text in _texts(child.stdout):
                if text is None:
                    raise _never_came_back(paths[at], _damaged(paths))
                line = json.loads(text)
                if "at" in line:
                    at = line["at"]
                elif "done" in line:
                    done = line["done"]
                elif "error" in line:
                    raise _error_from(line["error"])
                else:
                    yield line
            if done != files[-1][0]:
                raise _ended(child.wait(TIMEOUT_S), complaints, paths[at], _damaged(paths))
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _damaged(paths: dict[int, Path]) -> str:
    return "the file is damaged" + ("; episodes=[…] opens the others" if len(paths) > 1 else "")


def _give(pipe: IO[bytes] | None, job: bytes) -> None:
    if pipe is None:
        return
    try:
        pipe.write(job)
        pipe.close()
    except BrokenPipeError:
        pass  # the child has ended already: what it said, or its exit, tells why


def _texts(pipe: IO[bytes] | None) -> Iterator[bytes | None]:
    """Lines of a child; None once, where it says nothing for too long."""
    rest = b""
    while pipe is not None:
        if not select.select([pipe], [], [], TIMEOUT_S)[0]:
            yield None
            return
        block = os.read(pipe.fileno(), 1 << 16)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _ended(code: int, complaints: IO[bytes], path: Path, hint: str) -> PenstockError:
    """Why a child ended before it was done."""
    if code == -signal.SIGXCPU:
        return _never_came_back(path, hint)
    if code < 0:
        return StoreCorrupt(f"{path} cannot be read: it crashes HDF5 ({signal.Signals(-code).name})", hint=hint)
    complaints.seek(0)
    said = complaints.read(1 << 20).decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
    return StoreCorrupt(f"{path} cannot be read: {said[-1]}", hint=hint)


def _never_came_back(path: Path, hint: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path} cannot be read: HDF5 does not come back from it", hint=hint)


def _error_from(plain: Line) -> PenstockError:
    """An error of a child, as it was raised there."""
    kind = getattr(errors, str(plain["class"]), StoreCorrupt)
    carried = dict(plain["carried"])
    if kind is ExternalRefused:
        carried["hint"] = _ALLOW
    error: PenstockError = kind.__new__(kind, carried.get("message", ""))
    error.__dict__.update(carried)
    return error


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    return found.st_size, found.st_mtime_ns


def _assembled(paths: Sequence[Path], stamps: list[tuple[int, int]], lines: list[Line]) -> Survey:
    """Lines as arrays; the columns are those of the first file that has rows."""
    heads = [line for line in lines if "kind" in line]
    filled = {line["file"] for line in lines if line.get("rows")}
    models = [head for head in heads if head.get("like")]
    model = next((head for head in models if head["file"] in filled), models[0])
    like = like_from(model["like"])
    columns = like.columns
    parts = [line for line in lines if "group" in line]
    notes = [*model["notes"], *_besides(paths, parts, like), *_lost(paths, heads)]
    ways: list[Counter[tuple[str, str]]] = [Counter() for _ in columns]
    spots = np.full((len(parts), len(columns), 5), -1, np.int64)
    for number, part in enumerate(parts):
        for column, spot in enumerate(part["spots"]):
            spots[number, column] = spot[:5]
            ways[column][spot[5], spot[6]] += 1
    return Survey(
        model["kind"], model["why"], model["fps"], tuple(notes), tuple(model["masks"]), columns, tuple(ways),
        tuple(paths), np.array(stamps, np.int64).reshape(-1, 2),
        np.array([part["file"] for part in parts], np.int32), tuple(sys.intern(part["group"]) for part in parts),
        np.array([part["rows"] for part in parts], np.int64), spots,
    )  # fmt: skip


def _besides(paths: Sequence[Path], parts: Sequence[Line], like: Like) -> list[str]:
    """A note for each data set that some parts have and the first one lacks."""
    having: dict[str, list[Line]] = {}
    for part in parts:
        for name in part.get("besides", ()):
            having.setdefault(name, []).append(part)
    lacking = _place(paths, Path(like.path), like.group)
    return [
        f"{name} is left out: {lacking} has none, {_place(paths, paths[found[0]['file']], found[0]['group'])} "
        + (f"and {len(found) - 1:,} more have" if len(found) > 1 else "has")
        for name, found in having.items()
    ]


def _lost(paths: Sequence[Path], heads: Sequence[Line]) -> list[str]:
    """What files say of groups that are no episodes."""
    return [
        note if len(paths) == 1 else f"{paths[head['file']].name}: {note}" for head in heads for note in head["lost"]
    ]


def _place(paths: Sequence[Path], path: Path, group: str) -> str:
    """An episode in words, as short as tells it from the others."""
    if not group:
        return path.name
    return group if len(paths) == 1 else f"{group} of {path.name}"
