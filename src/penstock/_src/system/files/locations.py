"""Where bytes are: a local path, or a URL of a registered scheme; and what opens them.

`as_path` makes a `Path` of either. The path of a URL knows its parts, lists, exists and opens as a local one does, so
that a reader joins names and asks `is_file()` without knowing where it reads.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import importlib
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PosixPath
from typing import IO, Any, BinaryIO, Protocol, TypeVar

from penstock._src.system.files.source import ByteSource, Identity, LocalSource, ReadErrors
from penstock.errors import PenstockError, UsageError

T = TypeVar("T")
_COPY_BYTES = 1 << 20
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)", re.DOTALL)  # Path makes one slash of two


class FileSystem(Protocol):
    """What a scheme gives. Every call may raise OSError; a name that is not there is FileNotFoundError."""

    def open(self, url: str, errors: ReadErrors | None) -> ByteSource:
        """The bytes of a file."""

    def identity(self, url: str) -> Identity:
        """The identity of a file."""

    def names(self, url: str) -> Sequence[str]:
        """The names in a directory, without the directories above; none where there is no such directory."""


_schemes: dict[str, FileSystem] = {}
_REMOTE = ("s3", "gs", "az", "http", "https", "hf")  # registered when first met: they need another package


def register_scheme(scheme: str, system: FileSystem) -> None:
    """From now on `scheme://…` is opened, listed and identified by `system`."""
    _schemes[scheme.lower()] = system


class RemotePath(PosixPath):
    """The path of a URL: `RemotePath("mem://runs") / "a.bag"` is `mem://runs/a.bag`. It is only read."""

    def __str__(self) -> str:
        scheme, *names = self.parts or [""]  # the last of `parents` has none
        return f"{scheme}//{'/'.join(names)}"

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (str(self),)

    @property
    def system(self) -> FileSystem:
        return _system(self.parts[0].removesuffix(":"), str(self))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        try:
            found = self.system.identity(str(self))
            mode = stat.S_IFREG | 0o444
        except FileNotFoundError:
            if not self.system.names(str(self)):
                raise
            found, mode = Identity(0, 0), stat.S_IFDIR | 0o555
        seconds = found.mtime_ns // 1_000_000_000
        fields = (mode, found.inode, found.device, 1, 0, 0, found.size_bytes, seconds, seconds, seconds)
        return os.stat_result(fields, {"st_mtime_ns": found.mtime_ns})

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._mode() != 0

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode())

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode())

    def is_symlink(self) -> bool:
        return False

    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        return (self / name for name in self.system.names(str(self)))

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """A pattern for each name: `*/*.parquet`."""
        first, _slash, rest = pattern.partition("/")
        for entry in self.iterdir():
            if fnmatch.fnmatchcase(entry.name, first):
                yield from entry.glob(rest) if rest else (entry,)

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        for directory, folders, names in walk(self):
            for name in (*folders, *names):
                if fnmatch.fnmatchcase(name, pattern):
                    yield directory / name  # type: ignore[misc]

    def relative_to(self, *other: Any, **_: Any) -> Path:  # type: ignore[override]
        """What is left below a directory is no address any more."""
        return Path(*super().relative_to(*other).parts)

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def absolute(self) -> RemotePath:
        return self

    def is_absolute(self) -> bool:
        return True

    def open(self, mode: str = "r", buffering: int = -1, *words: Any, **named: Any) -> IO[Any]:  # type: ignore[override]
        """Only for reading."""
        if set(mode) - set("rbt"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        file = self.system.open(str(self), None).as_file(closes=True)
        return file if "b" in mode else io.TextIOWrapper(file, *words, **named)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return bytes(file.read())

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")


def as_path(place: str | os.PathLike[str]) -> Path:
    """The path of a file or directory: a plain one, or that of a URL whose scheme is registered."""
    if isinstance(place, RemotePath):
        return place
    text = os.fspath(place)
    found = _URL.match(text)
    if found is None:
        return place if isinstance(place, Path) else Path(text)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path("/", rest)
    if scheme not in _schemes and scheme not in _REMOTE and "://" not in text and os.path.exists(f"{found[1]}:"):
        return Path(text)  # a directory whose name ends in a colon
    _system(scheme, text)
    return RemotePath(f"{scheme}://{rest}")


def matches(pattern: str | os.PathLike[str]) -> list[Path]:
    """The files and directories that a glob pattern names, also one of a URL (`s3://robots/day1/*.bag`)."""
    path = as_path(pattern)
    if not isinstance(path, RemotePath):
        return [Path(found) for found in glob.glob(str(pattern), recursive=True)]
    parts = path.parts
    first = next((number for number, part in enumerate(parts) if number > 1 and glob.has_magic(part)), len(parts))
    root, rest = RemotePath("/".join((f"{parts[0]}/", *parts[1:first]))), "/".join(parts[first:])
    if not rest:
        return [path] if path.exists() else []
    if "**" not in rest:
        return list(root.glob(rest))
    wanted = re.compile(fnmatch.translate(rest.replace("**/", "*")))
    return [here / name for here, _, names in walk(root) for name in names
            if wanted.match((here / name).relative_to(root).as_posix())]  # fmt: skip


def refresh(place: str | os.PathLike[str]) -> None:
    """What is opened next is asked for anew: a remote system keeps what it learnt of names and sizes for a while."""
    path = as_path(place)
    if isinstance(path, RemotePath) and (forget := getattr(path.system, "forget", None)) is not None:
        forget(str(path))


def call_all(calls: Iterable[Callable[[], T]], *, is_remote: bool) -> Iterable[T]:
    """What all calls give, in their order: many at once where they wait for a server."""
    if not is_remote:
        return (call() for call in calls)
    from penstock._src.system.files.remote.requests import pool

    return pool().run_all(calls)


def _system(scheme: str, url: str) -> FileSystem:
    found = _schemes.get(scheme)
    if found is None and scheme in _REMOTE:
        importlib.import_module("penstock._src.system.files.remote").register()
        found = _schemes[scheme]
    if found is None:
        known = ", ".join(f"{each}://" for each in sorted({*_schemes, *_REMOTE}))
        raise UsageError(
            f"{url}: nothing here reads {scheme}:// addresses",
            hint=f"penstock reads local files and {known}: copy it to a local disk first",
        )
    return found


def open_source(place: str | os.PathLike[str], errors: ReadErrors | None = None) -> ByteSource:
    """The bytes of a file, at a path or a URL. `errors`: whose exceptions are raised, also by later reads."""
    path = as_path(place)
    try:
        if isinstance(path, RemotePath):
            return path.system.open(str(path), errors)
        source = LocalSource(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), errors)
        if stat.S_ISDIR(os.fstat(source.descriptor).st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return source
    except OSError as error:
        if errors is None or isinstance(error, PenstockError):
            raise
        raise errors.cannot_open(path, error) from error


def for_library(
    place: str | os.PathLike[str], *, buffered: bool = True, short_reads: bool = False
) -> str | BinaryIO:  # fmt: skip
    """What PyAV, h5py and pyarrow open: the name of a local file, else a file object that reads the URL."""
    path = as_path(place)
    if not isinstance(path, RemotePath):
        return str(path)
    return open_source(path).as_file(closes=True, buffered=buffered, short_reads=short_reads)


def warm(files: Mapping[Path, int]) -> None:
    """These remote files are opened next: their ends and beginnings are asked for now, all at once; all of a file that
    has no more bytes than stand beside it."""
    ask = getattr(next((path.system for path in files if isinstance(path, RemotePath)), None), "warm", None)
    if ask is not None:
        ask({str(path): most_bytes for path, most_bytes in files.items()})


@contextmanager
def local_file(place: str | os.PathLike[str]) -> Iterator[Path]:
    """A local file with the bytes, for what opens nothing else (SQLite): the file itself, or a temporary copy."""
    path = as_path(place)
    if not isinstance(path, RemotePath):
        yield path
        return
    import shutil
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="penstock-") as target, path.open("rb") as file:
        shutil.copyfileobj(file, target, _COPY_BYTES)
        target.flush()
        yield Path(target.name)


def file_sizes(root: Path, names: Sequence[str]) -> list[int]:
    """The sizes of many files below a directory; -1 where there is no such file."""
    if isinstance(root, RemotePath) and (ask := getattr(root.system, "identities", None)) is not None:
        found_all = ask([str(root / name) for name in names])  # at once: each of them may take a request
        return [-1 if each is None else each.size_bytes for each in found_all]
    sizes = []
    for name in names:
        try:
            found = (root / name).stat() if isinstance(root, RemotePath) else os.stat(f"{root}/{name}")
            sizes.append(found.st_size if stat.S_ISREG(found.st_mode) else -1)
        except OSError:
            sizes.append(-1)
    return sizes


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As os.walk: (directory, names of directories, names of files), from the top; the first list may be changed."""
    if not isinstance(root, RemotePath):
        for directory, folders, names in os.walk(root):
            yield Path(directory), folders, names
        return
    entries = sorted(root.iterdir())
    folders = [entry.name for entry in entries if entry.is_dir()]
    yield root, folders, [entry.name for entry in entries if entry.is_file()]
    for name in folders:
        yield from walk(root / name)
