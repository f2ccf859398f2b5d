"""HDF5 files opened without trust: what a link, a storage or a filter is, is known before it is followed.

    with Hdf5File("episode_0.hdf5") as file:
        file.names("observations/images")          # ["cam_high", "cam_left_wrist"]
        data = file.dataset("observations/qpos")   # an h5py.Dataset whose bytes lie in this file

A file may be used by any thread, and by children after a fork: each process opens it for itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock._src.formats.content import foreign_content
from penstock._src.formats.registry import HDF5_MAGIC
from penstock._src.recordings.split import natural_key
from penstock._src.system.closing import Closing
from penstock._src.system.files import ReadErrors, as_path, for_library, open_source
from penstock.errors import ExternalRefused, MissingExtra, StoreCorrupt, StoreError

if TYPE_CHECKING:
    import h5py

NodeKind = Literal["group", "dataset"]

# What h5py raises for a file that contradicts itself depends on where the library noticed.
LIBRARY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError)

_BUILT_IN_FILTERS = frozenset((1, 2, 3, 4, 5, 6, 32000))  # deflate, shuffle, fletcher32, szip, nbit, scaleoffset, lzf
_FILTER_NAMES = {
    1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 305: "lzo", 307: "bzip2",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2",
}  # fmt: skip
_MOST_OPENED = 256  # data sets, and groups, that one file holds open
_MOST_LINKS = 32  # soft links that may lead from one to the next
_LARGEST_PLAIN_BYTES = 4 << 20  # of an attribute, or of a data set of one value
_ALLOW = "if you trust the file, allow_external=True (of a conversion: hdf5.allow_external=true) reads it"


def filter_name(code: int) -> str:
    return _FILTER_NAMES.get(code, f"filter {code}")


class Hdf5File(Closing):
    """An HDF5 file, read-only; a context manager. `allow_external` lets links and storage lead to other files.

    The library opens it when it is first asked something: a survey in a child has looked at it before, since a damaged
    file can crash the library (see `guard`). `stamp`: the size and time of change that the file had then.
    """

    _closed = True  # until it is open

    def __init__(self, path: Path | str, *, allow_external: bool = False, stamp: tuple[int, int] | None = None) -> None:
        self.path = as_path(path)
        self.allow_external = allow_external
        self.followed: dict[str, None] = {}  # other files that were read, when allowed
        self.source = open_source(self.path, _ERRORS)
        """For reads of bytes whose place is known, beside the library and its lock."""
        self.size_bytes = self.source.size_bytes
        self._stamp = stamp
        self._owner = os.getpid()
        self._file: h5py.File | None = None
        self._opened: dict[str, h5py.Dataset] = {}
        self._groups: dict[str, Any] = {}
        self._closed = False

    def close(self) -> None:
        """Give the file back; what was read from it stays valid."""
        if self._closed:
            return
        self._closed = True
        if self._owner != os.getpid():
            _disown_handles((self._file, self._opened, self._groups))
            return
        self._opened.clear()
        self._groups.clear()
        if self._file is not None:
            with library_errors(self.path, "cannot be closed"):
                self._file.close()
        self.source.close()

    def __del__(self) -> None:
        self.close()

    def check(self) -> None:
        """The file is what it was when it was surveyed."""
        now = self.source.identity()
        if self._stamp is not None and now[:2] != self._stamp:
            grown = f": {now.size_bytes:,} bytes, it had {self._stamp[0]:,}" if now[0] != self._stamp[0] else ""
            raise StoreCorrupt(
                f"{self.path} was changed since the store was opened{grown}", hint="open the store again"
            )

    @cached_property
    def has_user_block(self) -> bool:
        return bool(self._root().userblock_size)

    def kind(self, name: str) -> NodeKind | None:
        """What lies under a name: a group, a data set, or nothing that can be read."""
        node = self.find(name)
        return None if node is None else _kind(node)

    def names(self, group: str = "/") -> list[str]:
        """The members of a group in natural order (demo_2 before demo_10); nothing where there is no group."""
        import h5py

        node = self.find(group)
        if not isinstance(node, h5py.h5g.GroupID):
            return []
        with library_errors(self.path, f"{group} cannot be listed"):
            return sorted((str(name) for name in h5py.Group(node)), key=natural_key)

    def dataset(self, name: str) -> h5py.Dataset:
        """A data set whose bytes lie in this file, packed by filters that are there to unpack them."""
        import h5py

        node = self.find(name)
        if not isinstance(node, h5py.h5d.DatasetID):
            raise StoreError(f"{self.path}: {name} is {'no data set' if node is not None else 'not there'}")
        with library_errors(self.path, f"{name} cannot be opened"):
            self._check_storage(node, name)
            return h5py.Dataset(node, readonly=True)

    def opened(self, name: str) -> h5py.Dataset:
        """As `dataset`; it stays open, for the rows that follow."""
        with library_lock():
            self._root()  # a child of a fork forgets what its parent held
            dataset = self._opened.get(name)
            if dataset is None:
                if len(self._opened) >= _MOST_OPENED:
                    self._opened.pop(next(iter(self._opened)), None)
                dataset = self._opened[name] = self.dataset(name)
            return dataset

    def is_local(self, dataset: h5py.Dataset) -> bool:
        """Whether the data set lies in this very file, as a whole."""
        import h5py

        if not self.allow_external:
            return True  # `dataset` refuses others
        if dataset.is_virtual:
            return False
        own = os.fsencode(self._root().filename)
        return bool(h5py.h5f.get_name(dataset.id) == own) and not dataset.id.get_create_plist().get_external_count()

    def attributes(self, node: str, names: Sequence[str]) -> dict[str, Any]:
        """Those of these attributes that are there, as plain data: numbers or texts, no other kinds."""
        import h5py

        found: dict[str, Any] = {}
        owner = self.find(node)
        with library_errors(self.path, f"the attributes of {node} cannot be read"):
            for name in names if owner is not None and h5py.h5a.get_num_attrs(owner) else ():
                if h5py.h5a.exists(owner, name.encode()):
                    handle = h5py.h5a.open(owner, name.encode())
                    is_plain = isinstance(handle.get_type(), _plain_types())
                    if is_plain and handle.get_storage_size() <= _LARGEST_PLAIN_BYTES:
                        holder = h5py.Dataset if _kind(owner) == "dataset" else h5py.Group
                        found[name] = _plain(holder(owner).attrs[name])
        return found

    def single(self, name: str) -> Any:
        """The value of a data set that is one number or one text, as plain data; None where it is not."""
        if self.kind(name) != "dataset":
            return None
        with library_errors(self.path, f"{name} cannot be read"):
            data = self.dataset(name)
            is_plain = data.size == 1 and isinstance(data.id.get_type(), _plain_types())
            return _plain(data[()]) if is_plain and data.nbytes <= _LARGEST_PLAIN_BYTES else None

    def filters(self, dataset: h5py.Dataset) -> tuple[int, ...]:
        """What chunks were packed with, by the filters' numbers in the order in which they were applied."""
        plist = dataset.id.get_create_plist()
        return tuple(int(plist.get_filter(i)[0]) for i in range(plist.get_nfilters()))

    def _root(self) -> h5py.File:
        if self._closed:
            raise StoreError(f"{self.path} is closed already")
        if self._owner != os.getpid():
            # A child of a fork: the library's handle and its caches are the parent's, so they are left alone.
            _disown_handles((self._file, self._opened, self._groups))
            self._file, self._opened, self._groups = None, {}, {}
            self._owner = os.getpid()
        if self._file is None:
            self._file = _open_library(self.path, self.size_bytes)
        return self._file

    def find(self, name: str) -> Any:
        """The node under a name, or None; every link on the way is looked at before it is followed."""
        import h5py

        with library_errors(self.path, f"{name} cannot be found"):
            root = self._root().id
            if self.allow_external:
                return self._walk(root, root, name, name, 0)
            above, _, base = name.strip("/").rpartition("/")
            group = self._groups.get(above)  # most questions are about groups that were asked about before
            if group is None:
                group = self._walk(root, root, above, name, 0)
                if not isinstance(group, h5py.h5g.GroupID):
                    return None
                if len(self._groups) >= _MOST_OPENED:
                    self._groups.clear()
                self._groups[above] = group
            return self._walk(root, group, base, name, 0)

    def _walk(self, root: Any, start: Any, path: str, requested: str, hops: int) -> Any:
        import h5py

        node = h5py.h5g.open(root, b"/") if path.startswith("/") or start is root else start
        for part in (part for part in path.split("/") if part not in ("", ".")):
            if not isinstance(node, h5py.h5g.GroupID):
                return None
            name = part.encode("utf-8", "surrogateescape")
            if not node.links.exists(name):
                return None
            link = node.links.get_info(name).type
            if link == h5py.h5l.TYPE_HARD:
                node = h5py.h5o.open(node, name)
            elif link == h5py.h5l.TYPE_SOFT:
                if hops >= _MOST_LINKS:
                    raise StoreCorrupt(
                        f"{self.path}: {requested}: more than {_MOST_LINKS} soft links follow one another"
                    )
                target = bytes(node.links.get_val(name)).decode("utf-8", "surrogateescape")
                node = self._walk(root, node, target, requested, hops + 1)
                if node is None:
                    return None
            else:
                node = self._external_node(node, name, link == h5py.h5l.TYPE_EXTERNAL, requested)
                root = h5py.h5i.get_file_id(node)
        return node

    def _external_node(self, node: Any, name: bytes, is_external: bool, requested: str) -> Any:
        """An external link, or one of a class that only another program knows."""
        import h5py

        if not is_external:
            raise ExternalRefused(
                f"{self.path}: {requested} is a link of a class that HDF5 itself does not know", target="unknown"
            )
        file, inner = (os.fsdecode(bytes(part)) for part in node.links.get_val(name))
        target = f"{file}:{inner}"
        if not self.allow_external:
            raise ExternalRefused(
                f"{self.path}: {requested} is an external link to {target}", target=target, hint=_ALLOW
            )
        self.followed[file] = None
        return h5py.h5o.open(node, name)

    def _check_storage(self, node: Any, name: str) -> None:
        """Before the first question about its shape: for a virtual data set, even that opens other files."""
        import h5py

        plist = node.get_create_plist()
        if plist.get_layout() == h5py.h5d.VIRTUAL:
            sources = sorted({str(plist.get_virtual_filename(i)) for i in range(plist.get_virtual_count())})
            self._refuse_or_note(name, "a virtual data set that reads", sources)
        elif plist.get_external_count():
            sources = sorted({os.fsdecode(plist.get_external(i)[0]) for i in range(plist.get_external_count())})
            self._refuse_or_note(name, "stored outside, in", sources)
        for i in range(plist.get_nfilters()):
            code = int(plist.get_filter(i)[0])
            if code not in _BUILT_IN_FILTERS or not h5py.h5z.filter_avail(code):
                self._need_plugin(name, code)

    def _refuse_or_note(self, name: str, what: str, sources: list[str]) -> None:
        target = ", ".join(sources)
        if not self.allow_external:
            raise ExternalRefused(f"{self.path}: {name} is {what} {target}", target=target, hint=_ALLOW)
        self.followed.update(dict.fromkeys(sources))

    def _need_plugin(self, name: str, code: int) -> None:
        import h5py

        known = _FILTER_NAMES.get(code)
        if code in _BUILT_IN_FILTERS:
            raise StoreError(f"{self.path}: {name} is packed with {known}, which this build of HDF5 lacks")
        try:
            import hdf5plugin  # noqa: F401 - importing it registers its filters
        except ImportError:
            if known is None:
                raise StoreError(f"{self.path}: {name} is packed with filter {code}, which nobody here knows") from None
            raise MissingExtra("hdf5plugin", "hdf5plugin", f"{self.path}: {name}, packed with {known}") from None
        if not h5py.h5z.filter_avail(code):
            raise StoreError(f"{self.path}: {name} is packed with filter {code}, which hdf5plugin does not know")


class _Library:
    """One lock for all that the library is asked here: it has but one itself. New in every child of a fork."""

    lock = threading.RLock()


def _in_child() -> None:
    _Library.lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)


def library_lock() -> threading.RLock:
    """Held while the library is asked; never while bytes are read or unpacked."""
    return _Library.lock


# Handles of parents, kept so that no destructor of a child touches them.
_strangers: list[Any] = []


def _disown_handles(handles: object) -> None:
    """In a child of a fork: the library's handles here are the parent's, and are never closed."""
    _strangers.append(handles)


@contextlib.contextmanager
def library_errors(path: Path | str, doing: str) -> Iterator[None]:
    """Whatever the library says of a broken file becomes ours."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise StoreCorrupt(f"{path}: {doing}: {first_line(error)}", hint="the file is damaged") from error


def first_line(error: BaseException) -> str:
    text = str(error.args[0]) if error.args and isinstance(error.args[0], str) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


class _FileErrors(ReadErrors):
    def cannot_open(self, path: Path, error: OSError) -> Exception:
        return StoreError(f"{path} cannot be read: {error.strerror or error}")


_ERRORS = _FileErrors(StoreError, StoreCorrupt)


def _open_library(path: Path, size_bytes: int) -> h5py.File:
    import h5py

    file = for_library(path)
    if isinstance(file, str) and not h5py.is_hdf5(file):
        start = _head(path)
        if start == HDF5_MAGIC:
            raise StoreCorrupt(f"{path} is cut: its {size_bytes:,} bytes end inside the header of an HDF5 file")
        if (foreign := foreign_content(path, "hdf5")) is not None:
            raise StoreError(f"{path} is {foreign.what}, not an HDF5 file", hint=foreign.hint)
        raise StoreError(f"{path} is not an HDF5 file: its {size_bytes:,} bytes start with {start.hex(' ')}")
    try:
        return h5py.File(file, "r", locking="best-effort")
    except LIBRARY_ERRORS as error:
        raise _why_not_opened(path, size_bytes, first_line(error)) from error


def _head(path: Path) -> bytes:
    with open_source(path, _ERRORS) as source:
        return source.read(0, len(HDF5_MAGIC))


def _why_not_opened(path: Path, size_bytes: int, text: str) -> StoreError:
    cut = re.search(r"stored_eof = (\d+)", text)
    if "truncated file" in text and cut:
        return StoreCorrupt(
            f"{path} is cut: it has {size_bytes:,} of {int(cut[1]):,} bytes",
            hint="copy it again, or look for the recorder's own copy",
        )
    if "already open for write" in text or "consistency flags" in text:
        return StoreCorrupt(
            f"{path} was left open for writing: its recorder still runs, or died",
            hint="wait for the recorder; after a crash, `h5clear -s` on a copy of the file",
        )
    if "lock" in text:
        return StoreError(f"{path} is being written by another process: {text}", hint="wait for it to end")
    return StoreCorrupt(f"{path} cannot be opened: {text}", hint="the file is damaged; copy it again")


def _kind(node: Any) -> NodeKind | None:
    import h5py

    if isinstance(node, h5py.h5g.GroupID):
        return "group"
    return "dataset" if isinstance(node, h5py.h5d.DatasetID) else None


def _plain_types() -> tuple[type, ...]:
    import h5py

    return h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeEnumID, h5py.h5t.TypeStringID


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
