"""One HDF5 file as a store that is read from its beginning to its end, as conversion does.

Nothing is surveyed beforehand: an episode is looked at when its rows are read, and what is wrong with a column costs
only those who ask for it. `Hdf5Store` is for rows in any order, out of thousands of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.caches import content_sample
from penstock._src.stores.hdf5.array import LARGEST_IMAGE_BYTES, Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.layout import (
    NO_TIMEOUTS,
    RATE_NAMES,
    Hdf5Layout,
    Member,
    episode_spans,
    episode_success,
    join,
    list_members,
    lost_demonstrations,
    recognise,
)
from penstock._src.stores.hdf5.rows import image_bytes
from penstock._src.stores.roles import ACTIONS, CENTRAL_ROLES, ENDS, SUCCESSES, TERMINALS, TIMEOUTS, find_roles
from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store
from penstock._src.system.closing import on_error
from penstock.errors import ImageError, LimitExceeded, StoreCorrupt, StoreError

_KINDS = {"aloha": "one episode (ALOHA / ACT)", "robomimic": "demonstrations (robomimic)", "replay": "replay steps"}
_LIBRARY_BYTES = 14 << 20  # h5py with its metadata cache: measured, rounded up

_TASK_NAMES = ("task", "language_instruction", "task_description", "instruction", "language", "language_raw")
_ENVIRONMENT_NAMES = ("env_name", "env")
_ROBOT_NAMES = ("robot_type", "robots", "robot")
_JSON_NAMES = ("env_args", "env_info", "problem_info", "ep_meta")
TEXT_NAMES = (*_TASK_NAMES, *_ROBOT_NAMES, "env", *_JSON_NAMES)
"""What a file is asked for when it is opened: `Hdf5File(path, texts=TEXT_NAMES)`."""


class Hdf5FileStore(Store):
    """One HDF5 file; `channels`, `pixels`, `mask` and `allow_external` are the `hdf5:` settings of a conversion."""

    plural = "HDF5 files"
    reading_bytes = _LIBRARY_BYTES

    def __init__(
        self,
        path: Path,
        *,
        channels: Literal["auto", "first", "last"] = "auto",
        pixels: str = "rgb",
        mask: str | None = None,
        allow_external: bool = False,
    ) -> None:
        self.path = path
        options = {"channels": channels, "pixels": pixels, "mask": mask, "allow_external": allow_external}
        self._again = partial(type(self), **options)  # type: ignore[arg-type]
        self._file = Hdf5File(path, allow_external=allow_external, texts=TEXT_NAMES)
        self._arrays: dict[str, Hdf5Array] = {}
        self._sources: dict[str, _FileImages] = {}
        with on_error(self.close):
            self._open(channels, pixels, mask)

    def _open(self, channels: Literal["auto", "first", "last"], pixels: str, mask: str | None) -> None:
        file, self.layout = self._file, recognise(self._file, channels)
        notes: list[str] = []
        self._spans = episode_spans(file, self.layout, mask, notes)
        self.episode_starts = np.cumsum([0, *(span.stop - span.start for span in self._spans)], dtype=np.int64)
        self._span_starts = np.array([span.start for span in self._spans], np.int64)
        self._facts = read_facts(file, self.layout)
        self.kind = f"HDF5 · {_label(self.layout)}"
        self.fps, self.fps_from = self._facts.rate_hz, self._facts.rate_from
        self.robot_type = self._facts.robot
        self.episodes_from = self.layout.why
        if self.layout.kind == "aloha" and self.layout.is_known:
            self.fps_hint = "fps=50 (ALOHA records at 50 Hz)"
        ends = [name for name in TERMINALS if self.layout.member(name) is not None]
        if self.layout.kind == "replay" and self.layout.first_of(TIMEOUTS) is None and len(ends) == 1:
            notes.append(NO_TIMEOUTS)
        if self.layout.masks and mask is None:
            shown = ", ".join(self.layout.masks[:8])
            notes.append(f"masks: {shown} (hdf5.mask=NAME takes the demonstrations of one)")
        self._notes = tuple(notes)
        self.lost = {} if mask else lost_demonstrations(file, self.layout)
        is_flat = self.layout.kind == "replay"  # flat steps have no place for what is known of an episode
        self._successes = [None if is_flat else episode_success(file, span.group) for span in self._spans]
        self._group: str | None = None
        self._first = next((span.group for span in self._spans if span.stop > span.start), self.layout.group)
        if self.layout.group != self._first:  # the first of a mask need not be the first of the file
            self.layout = replace(self.layout, members=list_members(file, self._first, channels)[0])
        self.pixels = pixels
        # Success of a whole episode is no column: `success` gives it.
        flags = {name for name in SUCCESSES if file.kind(join(self._first, name)) == "dataset"}
        flags = {name for name in flags if file.dataset(join(self._first, name)).size == 1}
        self._members = {member.name: member for member in self.layout.members if member.name not in flags}
        self.columns = {name: self._column(each) for name, each in self._members.items() if each.content != "other"}
        self.left_out = self._left_out()
        roles = find_roles(name for name, column in self.columns.items() if column.kind == "numbers")
        self.roles = {role: names[0] for role, names in roles.items() if len(names) == 1}
        self.joined_roles = {role: names for role, names in roles.items() if len(names) > 1}

    def _column(self, member: Member) -> Column:
        shape = member.row_shape
        if member.content == "pixels":
            shape = (*shape[1:], shape[0]) if member.channels == "first" else (*shape, 1) if len(shape) == 2 else shape
        kind = "numbers" if member.content == "numbers" else "depth" if member.content == "depth" else "image"
        encoding = member.content if member.content in ("jpeg", "png", "numbers") else "raw"
        stored = self.rows * member.values * np.dtype(member.dtype).itemsize
        return Column(member.name, kind, shape, member.dtype, encoding, "file", member.why, stored)  # type: ignore[arg-type]

    def _left_out(self) -> Mapping[str, str]:
        """What cannot be a column of the episodes; of what an episode needs, other numbers of rows are an error."""
        roles = find_roles(member.name for member in self._members.values() if member.content == "numbers")
        needed = {name for role in CENTRAL_ROLES for name in roles.get(role, ())} | set(ENDS)
        rows = self._array(self._first, self._central).count
        reasons: dict[str, str] = {}
        for name, member in self._members.items():
            if member.content == "other":
                reasons[name] = member.why
            elif member.rows != rows and not member.is_image and name not in needed:
                reasons[name] = f"it has {member.rows:,} rows, the episode {rows:,}"
        return reasons

    @property
    def _central(self) -> str:
        """The data set that says how many rows an episode has."""
        return (self.layout.first_of(ACTIONS) or self.layout.members[0]).name

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """As in every store; other files that were read are known once columns were."""
        return (*self._notes, *(f"reads {target} as well" for target in self._file.followed))

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def column(self, name: str) -> Column:
        path = join(self._first, name)
        if name in self._members and name not in self.columns:
            raise StoreError(f"{self.path}: {path} cannot be a feature: {self._members[name].why}")
        if name not in self.columns:
            beside = ", ".join(self._file.names(path.rpartition("/")[0] or "/")[:12])
            raise StoreError(
                f"{self.path}: there is no data set {path}", hint=f"beside it: {beside}" if beside else None
            )
        return self.columns[name]

    def episode_label(self, position: int) -> str:
        return self._spans[position].label

    def row_number(self, row: int) -> int:
        return int(self._local(np.array([row], np.int64))[1][0])

    def task(self, position: int) -> str | None:
        return self._facts.tasks.get(self._spans[position].group) or self._facts.task

    def success(self, position: int) -> bool | None:
        return self._successes[position]

    def check_episode(self, position: int, names: Sequence[str]) -> None:
        """Every data set of the episode has its rows; a shorter one is an error, not an episode that ends early."""
        group = self._spans[position].group
        central = self._array(group, self._central).count
        for name in names:
            array = self._array(group, name)
            if array.count != central:
                raise StoreError(
                    f"{self.path}: {array.name} has {array.count:,} rows, {self._central} has {central:,}",
                    hint="the recording is incomplete; leave the data set out under features:, or the file",
                )

    def scratch_bytes(self, names: Sequence[str]) -> int:
        arrays = [self._array(self._first, name) for name in names]
        scratch = max((array.scratch_bytes for array in arrays), default=0)
        # Each column keeps the chunk that it unpacked last, where the next rows lie in it, too.
        scratch += sum(array.chunk_bytes for array in arrays if array.way == "unpacked chunks")
        return scratch + max((array.row_bytes for array in arrays if not array.is_ragged), default=0)

    def chunk_rows(self, name: str) -> int:
        """Rows that are best read together."""
        return self._array(self._first, name).chunk_rows

    def images(self, name: str) -> ImageSource:
        if not self.column(name).is_image:
            raise StoreError(f"{self.path}: {name!r} is not an image column", hint="store.numbers gives its rows")
        if name not in self._sources:
            self._sources[name] = _FileImages(self._members[name], self._longest_bytes(name), self)
        return self._sources[name]

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        column = self.column(name)
        pieces = [array.rows(low, high) for array, low, high in self.pieces(name, rows)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty((0, *column.shape), column.dtype)])

    def fingerprint(self, name: str) -> str:
        digest = hashlib.sha256(f"{self.kind} {self.column(name)} {self.size_bytes}".encode())
        digest.update(content_sample(self.path, self.size_bytes))
        return digest.hexdigest()

    def close(self) -> None:
        self._arrays, self._sources = {}, {}  # with the chunks that they unpacked last
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, (self.path.absolute(),)

    def _longest_bytes(self, name: str) -> int:
        """The longest row; those of their own length are looked at in all groups."""
        first = Hdf5Array(self._file, join(self._first, name))
        if not first.is_ragged:
            return first.row_bytes
        groups = dict.fromkeys(span.group for span in self._spans if span.stop > span.start)
        return max(Hdf5Array(self._file, join(group, name)).longest_bytes(LARGEST_IMAGE_BYTES) for group in groups)

    def _local(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(episode, row of its group) of rows."""
        positions = np.searchsorted(self.episode_starts, rows, side="right") - 1
        return positions, rows - self.episode_starts[positions] + self._span_starts[positions]

    def pieces(self, name: str, rows: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[Hdf5Array, int, int]]:
        """The rows in their order: neighbours in one group as (data set, first, last + 1)."""
        positions, local = self._local(np.asarray(rows, np.int64))
        # Flat steps have one group; in other layouts every episode has its own.
        owner = np.zeros_like(positions) if self.layout.kind == "replay" else positions
        breaks = np.flatnonzero((np.diff(local) != 1) | (np.diff(owner) != 0)) + 1
        for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(local)], strict=True):
            if high > low:
                array = self._array(self._spans[int(positions[low])].group, name)
                yield array, int(local[low]), int(local[high - 1]) + 1

    def _array(self, group: str, name: str) -> Hdf5Array:
        """A data set of one group; it must be what the first group's was."""
        if group != self._group:
            self._group, self._arrays = group, {}
        if name not in self._arrays:
            array = Hdf5Array(self._file, join(group, name))
            self._check_like(array, self._members.get(name))
            self._arrays[name] = array
        return self._arrays[name]

    def _check_like(self, array: Hdf5Array, member: Member | None) -> None:
        if member is None or member.content == "other":
            return
        values = int(np.prod(array.row_shape, dtype=np.int64))
        if member.content == "numbers":
            if values != member.values or array.dtype.kind not in "biuf":
                raise StoreError(
                    f"{self.path}: {array.name} has {values:,} values of {array.dtype} a row, "
                    f"in the first episode {member.values:,}"
                )
            return
        same = array.is_ragged == member.ragged and str(array.dtype) == member.dtype
        if member.content in ("pixels", "depth"):
            same = same and array.row_shape == member.row_shape
        if not same:
            raise StoreError(
                f"{self.path}: {array.name} is {array.dtype} {array.row_shape}, "
                f"in the first episode {member.dtype} {member.row_shape}",
                hint="convert such episodes on their own",
            )


class _FileImages(ImageSource):
    """The images of one column."""

    def __init__(self, member: Member, longest_bytes: int, store: Hdf5FileStore) -> None:
        self._member, self._longest_bytes, self._store = member, longest_bytes, store
        self.pixel_order = store.pixels
        self._chunk_rows = store.chunk_rows(member.name)
        self.scratch_bytes = longest_bytes + store.scratch_bytes((member.name,))

    @property
    def largest_bytes(self) -> int:
        return self._longest_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            (image,) = self.read_block([row], scratch.take(self._longest_bytes))
            if isinstance(image, ImageError):
                raise image
            yield image

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._chunk_rows == 1 or not len(rows):
            return rows
        local = rows - int(rows[0]) + self._store.row_number(int(rows[0]))  # of one episode
        return local // self._chunk_rows

    def read_block(self, rows: Sequence[int], memory: NDArray[np.uint8]) -> list[ImageArray | ImageError]:
        images: list[ImageArray | ImageError] = []
        at = 0
        for array, first, last in self._store.pieces(self._member.name, rows):
            if array.is_ragged:
                images += [self._ragged(array, row) for row in range(first, last)]
                continue
            # A later group may have padded its rows less or more than the first.
            if array.row_bytes > self._longest_bytes:
                raise StoreError(
                    f"{array.file.path}: rows of {array.name} have {array.row_bytes:,} bytes, those of the first "
                    f"episode {self._longest_bytes:,}",
                    hint="convert such episodes on their own",
                )
            size = (last - first) * array.row_bytes
            block = memory[at : at + size].reshape(last - first, array.row_bytes)
            array.rows(first, last, block.reshape(-1).view(array.dtype).reshape(last - first, *array.row_shape))
            images += [self._image(row, array) for row in block]
            at += size
        return images

    def _image(self, row: NDArray[np.uint8], array: Hdf5Array) -> ImageArray:
        """The bytes of a row as what they show; those of planes are put in the order of pixels first."""
        if self._member.content in ("jpeg", "png"):
            return row[: image_bytes(row.data)]
        shape = array.row_shape
        if self._member.content == "depth":
            return row.view(array.dtype).reshape(shape[:2])
        if self._member.channels == "first":
            row[:] = np.ascontiguousarray(row.reshape(shape).transpose(1, 2, 0)).reshape(-1)
            shape = (*shape[1:], shape[0])
        return row.reshape(shape if len(shape) == 3 else (*shape, 1))

    def _ragged(self, array: Hdf5Array, row: int) -> ImageArray | ImageError:
        try:
            data = next(iter(array.ragged(row, row + 1, self._longest_bytes)))
        except (ImageError, LimitExceeded, StoreCorrupt) as error:  # one row of its own length is lost alone
            return ImageError(error.message)
        return data[: image_bytes(data.data)]


def _label(layout: Hdf5Layout) -> str:
    if layout.kind == "robomimic" and layout.first_of(ACTIONS) is None:
        return "demonstrations without actions (old robosuite)"
    return _KINDS[layout.kind] if layout.is_known else "one episode (layout not known)"


@dataclass(frozen=True)
class RecordingFacts:
    """Rate, task and robot, where the file names them; tasks of single demonstrations by their group."""

    rate_hz: float | None = None
    rate_from: str = ""
    task: str | None = None
    robot: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)


def read_facts(file: Hdf5File, layout: Hdf5Layout) -> RecordingFacts:
    """From the attributes that recorders write, and from the JSON that robomimic and robosuite keep in some."""
    nodes = ["/", "data"] if layout.groups[0].startswith("data/") else ["/", "observations"]
    groups = [group for group in layout.groups if group]
    known = _known(file, nodes, groups)
    rate_hz, rate_from = None, ""
    for node in nodes:
        for name in RATE_NAMES:
            value = known[node].get(name)
            if rate_hz is None and isinstance(value, (int, float)) and 0 < value < 100_000:
                rate_hz, rate_from = float(value), f"{name} of {node}"
    task = next((text for node in nodes if (text := _task(known[node])) is not None), None)
    environment = next(
        (known[node][name] for node in nodes for name in _ENVIRONMENT_NAMES if known[node].get(name)), None
    )
    robot = next((known[node][name] for node in nodes for name in _ROBOT_NAMES if known[node].get(name)), None)
    if isinstance(robot, list):
        robot = "_".join(str(each) for each in robot)
    tasks = {group: text for group in groups if (text := _task(known[group])) is not None}
    if task is None and isinstance(environment, str):
        task = environment
    return RecordingFacts(rate_hz, rate_from, task, str(robot) if robot else None, tasks)


def _task(known: Mapping[str, Any]) -> str | None:
    for name in (*_TASK_NAMES, "lang"):
        value = known.get(name)
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _known(file: Hdf5File, nodes: list[str], groups: list[str]) -> dict[str, dict[str, Any]]:
    """By node: attributes, what their JSON holds, and data sets of one text."""
    known: dict[str, dict[str, Any]] = {}
    for node in (*nodes, *groups):
        wanted = (*_TASK_NAMES, "ep_meta") if node in groups else (*RATE_NAMES, *TEXT_NAMES)
        held = known.setdefault(node, {})
        for name in wanted:
            value = file.attribute(node, name)
            if value is None and name in _TASK_NAMES:
                value = file.text(f"{node.strip('/')}/{name}".strip("/"))
            if value is None:
                continue
            if name in _JSON_NAMES:
                _flatten(_json(value), held, 0)
            else:
                held.setdefault(name, value)
    return known


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _flatten(tree: Any, known: dict[str, Any], depth: int) -> None:
    if not isinstance(tree, Mapping) or depth > 4:
        return
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, known, depth + 1)
        else:
            known.setdefault(str(name), value)
