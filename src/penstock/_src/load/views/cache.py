"""The cache directory: where views lie, how much they may take together, and which old ones make room for a new one."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from penstock._src.system.cache_directory import HINT, cache_directory, expanded
from penstock._src.system.units import GIB, format_size, parse_bytes
from penstock.errors import LimitExceeded, OutputFailed

SUFFIX = ".view"
_VIEW_NAME = re.compile(r"[0-9a-f]{64}\.view")
_UNFINISHED_NAME = re.compile(r"\.[0-9a-f]{64}\.[0-9]+\.new")
_RESERVE_PERCENT = 5
_RESERVE_MOST_BYTES = 1 * GIB


def lies_in_memory(directory: Path) -> bool:
    """Whether files there are memory (a tmpfs); what is not there yet lies where its parent does."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    try:
        device = os.stat(directory).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    types = [line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2] == number]
    return bool(types) and types[0] in ("tmpfs", "ramfs")


def views_directory(directory: str | os.PathLike[str] | None = None) -> Path:
    """Where views lie: `directory` itself where one is given, else `views` in the cache directory."""
    return cache_directory() / "views" if directory is None else expanded(directory)


@dataclass(frozen=True)
class CachedView:
    """One view in the directory."""

    path: Path
    n_bytes: int
    """What it takes when all of its rows are there."""
    stored_bytes: int
    """What it takes now."""
    used_ns: int
    """When it was last opened or filled."""
    is_held: bool
    """Whether a process has it open."""


@dataclass(frozen=True)
class ViewSpace:
    """How much a new view may take, and what rules."""

    n_bytes: int
    ruled_by: str


@dataclass(frozen=True)
class _Disk:
    free_bytes: int
    reserve_bytes: int


class CacheDirectory:
    """The directory of views, locked: only one process at a time opens, makes or removes views in it."""

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self._fd = -1
        self.is_locked = False

    def __enter__(self) -> CacheDirectory:
        try:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self.is_locked = True
        except OSError:
            # Some network file systems cannot lock a directory: then two makers at once may each fill a file of
            # their own, and the later one stays.
            self.is_locked = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            if self.is_locked:
                # Said aloud, because a child forked meanwhile keeps the lock with its copy of the descriptor.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def views(self) -> list[CachedView]:
        """All views that lie here, the least recently used first."""
        views = [_cached_view(path) for path in view_paths(self.path)]
        return sorted((view for view in views if view is not None), key=lambda view: (view.used_ns, view.path.name))

    def room(self) -> ViewSpace:
        """What a new view may take if all views not in use were removed."""
        views = self.views()
        disk = _disk(self.path)
        return self._space_beside(views, [view for view in views if view.is_held], disk)

    def _space_beside(self, views: Sequence[CachedView], remaining: Sequence[CachedView], disk: _Disk) -> ViewSpace:
        """What a new view may take when of all `views` only `remaining` stay."""
        stored_bytes = sum(view.stored_bytes for view in views)
        limit_bytes, limit_name = self._limit(disk.free_bytes + stored_bytes)
        by_limit = limit_bytes - sum(view.n_bytes for view in remaining)
        # What a view that stays will still take is spoken for.
        to_come_bytes = sum(max(0, view.n_bytes - view.stored_bytes) for view in remaining)
        freed_bytes = stored_bytes - sum(view.stored_bytes for view in remaining)
        by_disk = disk.free_bytes + freed_bytes - to_come_bytes - disk.reserve_bytes
        disk_name = (
            f"the disk: {format_size(disk.free_bytes)} free, of which {format_size(disk.reserve_bytes)} are kept free"
        )
        room_bytes, ruled_by = (by_disk, disk_name) if by_disk < by_limit else (by_limit, limit_name)
        return ViewSpace(max(0, room_bytes), ruled_by)

    def _limit(self, free_and_stored_bytes: int) -> tuple[int, str]:
        if self.limit_bytes is not None:
            return self.limit_bytes, f"the limit of this cache, {format_size(self.limit_bytes)}"
        text = os.environ.get("PENSTOCK_CACHE_LIMIT")
        if text:
            limit_bytes = parse_bytes(text)
            return limit_bytes, f"PENSTOCK_CACHE_LIMIT, {format_size(limit_bytes)}"
        limit_bytes = free_and_stored_bytes // 2
        return limit_bytes, f"half of what is free or holds views, {format_size(limit_bytes)}"

    def check_room(self, n_bytes: int, what: str) -> None:
        """Refuse what cannot fit whatever is removed, with the numbers."""
        held = [view for view in self.views() if view.is_held]
        room = self.room()
        if n_bytes > room.n_bytes:
            beside = f" beside {len(held)} in use ({format_size(sum(view.n_bytes for view in held))})" if held else ""
            raise LimitExceeded(
                f"{self.path}: {what} needs {format_size(n_bytes)}, {format_size(room.n_bytes)} available{beside}, "
                f"by {room.ruled_by}",
                size=n_bytes,
                limit=room.n_bytes,
                hint="view=penstock.build_view(store, limit=…) keeps a part of the rows; or take a smaller image_size, "
                "make room, raise PENSTOCK_CACHE_LIMIT, or set PENSTOCK_CACHE to a directory on a larger disk",
            )

    def make_room(self, n_bytes: int, what: str) -> list[Path]:
        """Remove views that are not in use, the least recently used first, until `n_bytes` more fit; which ones.

        What cannot fit whatever is removed is refused, and nothing is removed for it.
        """
        self._remove_unfinished()
        self.check_room(n_bytes, what)
        views = self.views()
        disk = _disk(self.path)
        removed: list[Path] = []
        remaining = list(views)
        for view in views:
            if n_bytes <= self._space_beside(views, remaining, disk).n_bytes:
                break
            if not view.is_held and remove_view(view.path):
                removed.append(view.path)
                remaining.remove(view)
        return removed

    def _remove_unfinished(self) -> None:
        """The leftovers of a killed process; none is being made now, because the directory is locked."""
        if not self.is_locked:
            return
        with os.scandir(self.path) as entries:
            unfinished = [Path(entry.path) for entry in entries if _UNFINISHED_NAME.fullmatch(entry.name)]
        for path in unfinished:
            remove_view(path)

    def create(self, name: str, header: bytes, n_bytes: int) -> None:
        """A new file of `n_bytes` that begins with `header`; it has its name only when it is whole."""
        path = self.path / name
        unfinished = self.path / f".{name.removesuffix(SUFFIX)}.{os.getpid()}.new"
        try:
            fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, n_bytes)
                os.pwrite(fd, header, 0)
            finally:
                os.close(fd)
            os.rename(unfinished, path)
        except OSError as error:
            remove_view(unfinished)
            raise _unusable(path, error) from error


def _cached_view(path: Path) -> CachedView | None:
    """Size, age and whether it is in use; None where it is gone or no file."""
    fd = _opened(path)
    if fd is None:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return None
        stored_bytes = info.st_blocks * 512
        n_bytes = max(info.st_size, stored_bytes)
        return CachedView(path, n_bytes, stored_bytes, info.st_mtime_ns, _is_held(fd))
    finally:
        os.close(fd)


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # removed meanwhile, another user's, or a link: not a view that could be counted or removed
        return None


def _is_held(fd: int) -> bool:
    """Every process that has a view open holds a shared lock on it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def hold(fd: int, is_writable: bool) -> None:
    """Keep an open view from being removed, for as long as this descriptor or a copy of it lives; it was used now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if is_writable:
            os.utime(fd)
    except OSError:
        pass  # a file system without locks or another owner: the view works, only its age and its holders are unknown


def remove_view(path: Path) -> bool:
    """Whether the file could be removed, or was gone already; who has it mapped keeps what he sees."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def view_paths(directory: Path) -> list[Path]:
    """Files that are named as views are."""
    with os.scandir(directory) as entries:
        return [Path(entry.path) for entry in entries if _VIEW_NAME.fullmatch(entry.name)]


def _disk(path: Path) -> _Disk:
    stat = os.statvfs(path)
    total_bytes = stat.f_blocks * stat.f_frsize
    reserve_bytes = min(total_bytes * _RESERVE_PERCENT // 100, _RESERVE_MOST_BYTES)
    return _Disk(stat.f_bavail * stat.f_frsize, reserve_bytes)


def _unusable(path: Path, error: OSError) -> OutputFailed:
    failed = OutputFailed(path, "the cache of views cannot be used", error)
    failed.hint = HINT
    return failed
