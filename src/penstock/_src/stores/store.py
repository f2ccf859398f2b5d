"""What every store offers, whatever lies on disk: columns by row number, images as bytes or pixels, episodes as runs.

    store = penstock.open("datasets/run")
    store.columns["observation.images.cam_h"]         # Column(image, 480×640×3, mjpeg, by packets)
    store.numbers("action", np.array([0, 17, 5]))     # (3, 16)

A store may be used by any thread, and by children of a fork or a spawn: each process opens files for itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.closing import Closing
from penstock._src.system.files import Prefetch
from penstock._src.system.units import format_bytes, name_hint
from penstock.errors import ImageError, StoreError

ColumnKind = Literal["image", "depth", "numbers", "text"]

ImageArray = NDArray[Any]
"""One row of an image column. One dimension: the bytes of a JPEG or PNG. Three: RGB pixels (height, width, channels).
Depth has two: (height, width), uint16 or float32. Valid until the next one is asked for."""


@dataclass(frozen=True)
class Column:
    """One named stream of a store."""

    name: str
    kind: ColumnKind
    shape: tuple[int, ...]
    """Of one row; images are (height, width, channels), whatever the order on disk."""
    dtype: str
    encoding: str
    """"raw", "jpeg", "png", a video codec ("mjpeg", "av1", …), "numbers" or "text"."""
    way: str
    """How a row is reached: "file", "chunks", "unpacked chunks", "heap", "packets", "video", "table", "library",
    "record"."""
    why: str
    stored_bytes: int
    """On disk, all rows."""
    varies: bool = False
    """Whether images have sizes of their own; `shape` is then the largest of those that were looked at."""

    @property
    def row_bytes(self) -> int:
        """One row, decoded at full size."""
        return math.prod(self.shape) * (np.dtype(self.dtype).itemsize if self.kind != "text" else 0)

    @property
    def is_image(self) -> bool:
        return self.kind in ("image", "depth")

    # What `way` means for reading rows. Other words promise nothing.

    @property
    def is_read_directly(self) -> bool:
        """A row is one read at a known place: random access needs no table."""
        return self.way in ("file", "chunks")

    @property
    def is_read_as_stored(self) -> bool:
        """A row comes as its bytes lie on disk."""
        return self.way in ("file", "chunks", "heap", "packets")

    @property
    def is_decoded_while_read(self) -> bool:
        """Who has read an image has decoded it."""
        return self.way == "video"

    @property
    def keeps_blocks(self) -> bool:
        """A reader keeps unpacked blocks from row to row. Videos count the decoders of all cameras themselves."""
        return self.way == "table"

    @property
    def is_parsed(self) -> bool:
        """A row is a part of a record that is read and parsed whole: a table would take a pass over all of them."""
        return self.way == "record"

    @property
    def is_read_by_library(self) -> bool:
        """A row passes through h5py, which is slower."""
        return self.way == "library"


class Scratch:
    """Memory that one thread reads into, again and again; it grows to the largest row and stays."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        """The first `n_bytes` of it; what was taken before is overwritten."""
        if len(self._held) < n_bytes:
            self._held = np.empty(n_bytes, np.uint8)
        return self._held[:n_bytes]

    @property
    def n_bytes(self) -> int:
        return len(self._held)


class ImageSource(ABC):
    """The images of one column. Any number of threads may read at a time, each with a scratch of its own."""

    scratch_bytes: int
    """What one thread holds while it reads: the largest row as it is stored, decoders, chunks that are unpacked."""

    pixel_order: str = "rgb"
    """The order of the colours of raw pixels: "rgb" or "bgr"."""

    @abstractmethod
    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        """The images of these rows, in this order, each valid until the next. `rows` comes sorted by `keys`."""

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """What to sort rows by so that reading goes forward: file, then place in the file. Default: their numbers."""
        return rows

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows (sorted by `keys`) with equal numbers here are best read by one thread: those that one seek of a video
        serves, those of one packed chunk. Default: every row by itself."""
        return np.arange(len(rows), dtype=np.int64)

    def prefetch(self, rows: Sequence[int]) -> Prefetch | None:
        """These rows (sorted by `keys`) are read next: where a read takes long, their bytes are asked for now, many at
        once. Default: nothing is asked for ahead."""
        return None

    @property
    def largest_bytes(self) -> int:
        """What one row takes at most in the memory of `read_block`."""
        return self.scratch_bytes

    def read_block(self, rows: Sequence[int], memory: NDArray[np.uint8]) -> list[ImageArray | ImageError]:
        """The images of these rows in `memory`, which has `largest_bytes` for each of them, rounded up to 64.

        A row that alone cannot be used is its error; any other error is raised.
        """
        scratch, images = Scratch(), list[ImageArray | ImageError]()
        room = aligned(self.largest_bytes)
        while len(images) < len(rows):
            try:
                for image in self.read(rows[len(images) :], scratch):
                    if image.nbytes > room:
                        row = rows[len(images)]
                        raise StoreError(f"row {row:,}: an image of {image.nbytes:,} bytes, {room:,} were planned for")
                    kept = memory[len(images) * room :][: image.nbytes].view(image.dtype).reshape(image.shape)
                    kept[...] = image
                    images.append(kept)
            except ImageError as error:
                images.append(error)
        return images


@dataclass(frozen=True)
class PacketBlock:
    """Frames that lie together in memory: a piece and a key flag for each, and for how many more rows it stands."""

    pieces: list[memoryview]
    keys: list[bool]
    repeats: list[int]
    shifts: list[int] | None  # how many places after its own each is shown; None: in the order of the file

    @property
    def rows(self) -> int:
        return len(self.pieces) + sum(self.repeats)


class Packets(ABC):
    """The frames of one camera and episode as they are stored, to be moved into another file without decoding."""

    codec: str
    count: int
    key_rows: NDArray[np.int64]
    """Rows of the episode whose frames are key frames."""

    @property
    @abstractmethod
    def description(self) -> bytes:
        """The sample description (stsd) for another MP4 file."""

    @property
    @abstractmethod
    def pixel_format(self) -> str:
        """What a decoder makes of the frames, as FFmpeg calls it: "yuv420p"."""

    @abstractmethod
    def blocks(self, block_bytes: int) -> Generator[PacketBlock, None, None]:
        """All frames in the order of the file, about `block_bytes` at a time; a frame that is shown twice only once."""

    @abstractmethod
    def decoded(self, rows: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """RGB pixels of some rows of the episode, rising; one decoder with one thread."""


class Store(Closing, ABC):
    """Data on disk that can be read at random; a context manager. Opening reads metadata only."""

    path: Path
    kind: str
    """In words: "LeRobot v3.0", "replay HDF5", "robomimic HDF5", "ALOHA episodes"."""
    fps: float | None
    columns: Mapping[str, Column]
    """In the order of the file; numbers, images and texts."""
    episode_starts: NDArray[np.int64]
    """The first row of every episode, and at the end the number of rows: one more than episodes."""
    ends_terminal: NDArray[np.bool_] | None = None
    """Of every episode, whether its last row is terminal (nothing follows in the world, not only in the file)."""
    episode_numbers: NDArray[np.int64] | None = None
    """The numbers by which `episodes=` knows the episodes; None where they are 0, 1, 2, …"""
    has_doctor = False
    """Whether `penstock doctor` knows such data."""
    declares_index = False
    """Whether `index` is a column of the format, as in LeRobot: then it is not the row of the store."""
    roles: Mapping[str, str] = {}
    """What columns are for, where that is known: "action", "state", "reward", "terminal", "success", … → column."""
    joined_roles: Mapping[str, tuple[str, ...]] = {}
    """Roles that several columns have together, in this order: robomimic's state is a pose and a gripper."""
    notes: Sequence[str] = ()
    """What a user should know: columns that were left out, and why."""

    # What conversion asks besides; a store that knows nothing of these is converted all the same.
    robot_type: str | None = None
    fps_from: str = ""
    """Where `fps` was found, in words."""
    fps_hint: str = "fps=20, or what it was recorded at"
    """What to try where nothing says the rate."""
    episodes_from: str = ""
    """How the episodes were found, in words."""
    plural: str = "stores"
    lost: Mapping[str, int] = {}
    """Episodes that cannot be read at all → how many rows each has."""
    empty: Sequence[str] = ()
    """Episodes that were recorded without rows, in words; they are none of `episodes`."""
    problems: Mapping[str, str] = {}
    """Columns that no row can be read of, and why, where opening them was no error."""
    reading_bytes: int = 4 << 20
    """What the libraries that read hold, whatever is read."""

    @property
    def rows(self) -> int:
        return int(self.episode_starts[-1])

    @property
    def episodes(self) -> int:
        return len(self.episode_starts) - 1

    @abstractmethod
    def images(self, name: str) -> ImageSource:
        """The images of a column (image or depth)."""

    @abstractmethod
    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a numbers column, in any order and with repeats: (n, *shape), in the column's dtype."""

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """All rows of some numbers columns in order, about `block_bytes` at a time: (first row, {name: values})."""
        step = max(1, block_bytes // max(sum(self.column(name).row_bytes for name in names), 1))
        for start in range(0, self.rows, step):
            rows = np.arange(start, min(start + step, self.rows), dtype=np.int64)
            yield start, {name: self.numbers(name, rows) for name in names}

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        """Rows of a text column."""
        raise StoreError(f"{self.path}: {name!r} is not a text column")

    @abstractmethod
    def fingerprint(self, name: str) -> str:
        """A hex digest of what the column's rows depend on: files by name, size, time of change and a few KiB of each,
        and their order."""

    @abstractmethod
    def close(self) -> None:
        """Give files back; more than once is fine."""

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]:
        """Small: the words that open the store again."""

    def reopening(self) -> tuple[Path, dict[str, Any]] | None:
        """The path and the words with which `penstock.open` opens the store again; None: only this process can."""
        return None

    def column(self, name: str) -> Column:
        """A column by name; what is there, where it is not."""
        column = self.columns.get(name)
        if column is None:
            hint = name_hint(name, list(self.columns), "columns:")
            raise StoreError(f"{self.path} has no column {name!r}", hint=hint)
        return column

    def columns_for(self, role: str) -> tuple[str, ...]:
        """The columns that have a role, to be joined in this order; none where nothing is known."""
        return self.joined_roles.get(role) or ((self.roles[role],) if role in self.roles else ())

    def episode_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the episode that each row belongs to."""
        return np.asarray(np.searchsorted(self.episode_starts, rows, side="right") - 1, np.int64)

    def episode_number(self, position: int) -> int:
        """The number by which `episodes=` knows the episode at this position."""
        return position if self.episode_numbers is None else int(self.episode_numbers[position])

    def episode_label(self, position: int) -> str:
        """An episode in words, for messages."""
        return f"episode {self.episode_number(position)}"

    def row_number(self, row: int) -> int:
        """The number by which messages name a row: where it lies in its file or group."""
        return row

    def task(self, position: int) -> str | None:
        """What the episode at this position is about, where that is known."""
        return None

    def success(self, position: int) -> bool | None:
        """Whether the episode at this position succeeded, where something says so of the whole episode."""
        return None

    def scratch_bytes(self, names: Sequence[str]) -> int:
        """What reading these columns in order holds besides the rows that are asked for."""
        return max((self.images(name).scratch_bytes for name in names if self.columns[name].is_image), default=0)

    def packets(self, name: str, position: int) -> Packets | None:
        """The frames of an image column in the episode at this position, where they can be given as they are stored."""
        return None

    @property
    def size_bytes(self) -> int:
        """What there is to read."""
        return self.stored_bytes

    def file_of(self, row: int, name: str = "") -> Path:
        """Where to look for a row that is damaged, of a column where it is known."""
        return self.path

    @property
    def stored_bytes(self) -> int:
        return sum(column.stored_bytes for column in self.columns.values())

    @property
    def decoded_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns.values()) * self.rows

    def describe(self) -> str:
        """A table for people: every column, how it is stored, the way its rows are read, and why."""
        head = (
            f"{self.path}: {self.kind}, {self.rows:,} rows in {self._episodes_text()}"
            f"{f' at {self.fps:g} fps' if self.fps else ''}, {format_bytes(self.stored_bytes)} on disk, "
            f"{format_bytes(self.decoded_bytes)} decoded"
        )
        lines = [head]
        width = max((len(name) for name in self.columns), default=0)
        shown: set[tuple[str, str]] = set()
        for name, column in self.columns.items():
            shape = "×".join(str(size) for size in column.shape) or "1"
            coded = "" if column.encoding in ("numbers", "text") else f", {column.encoding}"
            what = f"{column.kind:<8}{'' if column.kind == 'text' else f'{shape} {column.dtype}{coded}'}"
            way = (column.way, column.why)
            why = "" if way in shown else f": {column.why}"  # once: what follows is read alike
            shown.add(way)
            lines.append(f"  {name:<{width}}  {what:<32}  {column.way}{why}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def __len__(self) -> int:
        return self.rows

    def _episodes_text(self) -> str:
        return "1 episode" if self.episodes == 1 else f"{self.episodes:,} episodes"

    def __repr__(self) -> str:
        return f"<{self.kind} {str(self.path)!r}: {self.rows:,} rows, {self._episodes_text()}>"


def aligned(size_bytes: int) -> int:
    """Rounded up, so that numbers of any size lie in a block as numpy wants them."""
    return -(-size_bytes // 64) * 64


def row_numbers(rows: Any, where: str, count: int | None = None) -> NDArray[np.int64]:
    """Rows as an array of one dimension; a mask or a fraction would be taken for other rows, and is refused.

    `count`: how many there are. A row that is not there is refused, too.
    """
    numbers = np.asarray(rows).reshape(-1)
    if len(numbers) and numbers.dtype.kind not in "iu":
        hint = "np.flatnonzero(mask) gives the rows of a mask" if numbers.dtype.kind == "b" else None
        raise StoreError(f"{where}: rows are whole numbers, not {numbers.dtype}", hint=hint)
    if (
        count is not None
        and len(numbers)
        and not 0 <= (least := int(numbers.min())) <= (most := int(numbers.max())) < count
    ):
        raise StoreError(f"{where}: row {least if least < 0 else most:,} was requested, there are {count:,}")
    return numbers.astype(np.int64, copy=False)
