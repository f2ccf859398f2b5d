"""Memory that processes of one user share though none started another: found by a small file that lists who holds it.

    with holders_of("view-4f2a…") as held:       # locked: of two that come at once, the second finds the first's
        for fd, holder in held.opened(): ...     # memory of living processes, opened again
        held.add(fd, token)                      # or made anew, and listed

Every holder is listed, so the memory is found as long as one of them lives. It has no name itself: it goes with the
last process. A list whose holders have all ended is removed by the next one that comes.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path

from penstock._src.system.files import write_all
from penstock.errors import UsageError

_SUFFIX = ".holders"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Holder:
    """A process that has the memory open, and how to check that it still is that memory."""

    pid: int
    fd: int
    device: int
    inode: int
    token: str
    """Stored in the memory itself: it identifies the content."""

    @classmethod
    def of(cls, fd: int, token: str) -> Holder:
        """This process."""
        stat = os.fstat(fd)
        return cls(os.getpid(), fd, stat.st_dev, stat.st_ino, token)

    @classmethod
    def parse(cls, line: str) -> Holder | None:
        words = line.split()
        if len(words) != 5 or not all(word.isdecimal() for word in words[:4]):
            return None
        pid, fd, device, inode = map(int, words[:4])
        return cls(pid, fd, device, inode, words[4])

    def line(self) -> str:
        return " ".join(map(str, astuple(self))) + "\n"

    def open(self) -> int | None:
        """The memory, opened again; None where the process has ended, has closed it, or is another user's."""
        fd = -1
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            stat = os.fstat(fd)
            if (stat.st_dev, stat.st_ino) == (self.device, self.inode):
                return fd
        except OSError:
            pass
        if fd >= 0:
            os.close(fd)
        return None


@dataclass
class Holders:
    """The list of holders, locked."""

    path: Path
    listed: list[Holder] = field(default_factory=list)

    def opened(self) -> Iterator[tuple[int, Holder]]:
        """(descriptor, holder) of each piece of memory once; the caller closes the descriptor. Holders that have
        ended go from the list."""
        seen: set[tuple[int, int]] = set()
        for holder in tuple(self.listed):
            fd = holder.open()
            if fd is None:
                self.listed.remove(holder)
            elif (holder.device, holder.inode) in seen:
                os.close(fd)
            else:
                seen.add((holder.device, holder.inode))
                yield fd, holder

    def add(self, fd: int, token: str) -> Holder:
        """This process holds it, too."""
        own = Holder.of(fd, token)
        self.listed.append(own)
        return own


def _directory() -> Path:
    """$PENSTOCK_RUNTIME, else `penstock-UID` in the temporary directory."""
    return Path(os.environ.get("PENSTOCK_RUNTIME") or Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}")


def _own_directory(path: Path) -> Path:
    """It is made where it is missing, and must be this user's: others could name memory of theirs."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.lstat().st_uid != os.getuid():
        raise UsageError(f"{path} belongs to another user", hint="set PENSTOCK_RUNTIME to a directory of your own")
    return path


@contextmanager
def holders_of(name: str, directory: Path | None = None) -> Iterator[Holders]:
    """The holders of the memory of this name, to be changed; written back and unlocked afterwards."""
    directory = _own_directory(directory or _directory())
    _remove_stale(directory)
    with _locked(directory / f"{name[:200]}{_SUFFIX}") as held:
        yield held


def leave(path: Path, holder: Holder) -> None:
    """Take this process from a list; a child of a fork leaves nothing, for it was never listed."""
    if holder.pid != os.getpid():
        return
    with suppress(OSError), _locked(path) as held:
        held.listed[:] = [each for each in held.listed if each != holder]


def _remove_stale(directory: Path) -> None:
    """Remove the lists of processes that were all killed."""
    for path in directory.glob(f"*{_SUFFIX}"):
        with suppress(OSError), _locked(path, waits=False) as held:
            for fd, _ in held.opened():
                os.close(fd)


@contextmanager
def _locked(path: Path, *, waits: bool = True) -> Iterator[Holders]:
    """The kernel unlocks for a process that is killed."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    break
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its last holder has removed it
    try:
        lines = os.pread(fd, _MOST_BYTES, 0).decode(errors="replace").splitlines()
        held = Holders(path, [holder for line in lines if (holder := Holder.parse(line)) is not None])
        yield held
        if held.listed:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            write_all(fd, "".join(holder.line() for holder in held.listed).encode())
        else:
            path.unlink()
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has a copy of the descriptor, and the lock with it
        os.close(fd)
