"""The output directory: built under a temporary name beside its place, and moved there only when it is whole.

    OUT                        the data set, once it is whole
    OUT.penstock-partial       the one being built; what is committed in it survives every end of the process
    OUT.penstock-partial.lock  held by the process that builds

A finished data set changes places with the one that it replaces in one step. `penstock/replaces` lies in the new one
from just before that step until the old one is gone, so that a later run that finds two of them knows which is which.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from penstock._src.conversion.commit.join import committed
from penstock._src.conversion.commit.journal import JOURNAL_PATH, OWN_DIR, Journal
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.report import REPORT_PATH
from penstock._src.conversion.sink import sink_factory
from penstock._src.lerobot import layout
from penstock._src.lerobot.layout import OLD_SUFFIX, PARTIAL_SUFFIX
from penstock._src.system.closing import on_error
from penstock._src.system.files import fsync_path
from penstock.errors import DataSetError, OutputExists, OutputFailed

_REPLACES = "penstock/replaces"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)

Mode = Literal["new", "resume", "append", "append or resume"]
Holds = Literal["nothing", "unfinished", "copy"]


@dataclass(eq=False)
class OutputDirectory:
    """Where a data set is built, and what lies there already: nothing, what a run left, or a copy to append to."""

    root: Path
    out: Path
    holds: Holds
    finished: bool = False  # set when the data set is whole and may take its place
    # Of an output that does not lie on this machine:
    chunks: Callable[[], layout.FileChunks | None] = lambda: None  # where its files are numbered
    follow: Callable[[DataSetWriter], None] = lambda writer: None  # takes what a writer has finished
    upload_bytes: int = 0  # of memory that this takes
    count_new: Callable[[], int] | None = None  # the episodes that were committed since it was begun
    videos_by_group: bool | None = None  # whether videos begin anew with each group of inputs; None: as settings say
    group_shift: int = 0  # from the number of a group to the chunk of its videos
    elsewhere: Callable[[Mapping[str, int]], None] = lambda sizes: None  # takes files that others brought there

    def new_episodes(self, mode: Mode) -> int:
        """What would be lost with the directory."""
        return new_episodes(self.root, self.out, mode) if self.count_new is None else self.count_new()


def is_ours(path: Path) -> bool:
    """Whether penstock wrote this data set (it left its report there)."""
    return (path / REPORT_PATH).is_file()


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse an output that exists, unless it is ours and may be replaced."""
    if not (out.exists() or out.is_symlink()):
        return
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    if not is_ours(out):
        raise OutputExists(
            f"{out} exists and was not written by penstock: it is left alone, with or without --overwrite",
            hint="choose another output directory, or move this one away yourself",
        )
    if not overwrite:
        raise OutputExists(
            f"{out} exists already",
            hint="add --overwrite to replace it, --append to add to it, or choose another output",
        )


def partial_of(out: Path) -> Path:
    # "." has no name of its own, and behind a link lies what is to be replaced.
    real = Path(os.path.realpath(out))
    return real.with_name(real.name + PARTIAL_SUFFIX)


@contextlib.contextmanager
def building(out: Path, mode: Mode, *, overwrite: bool) -> Iterator[OutputDirectory]:
    """Give a directory to build in. When the block ends it becomes `out` if finished; else what is committed stays."""
    if mode == "new":
        check_free(out, overwrite=overwrite)
    partial = partial_of(out)
    out = Path(os.path.realpath(out))
    with locked(partial.with_name(partial.name + ".lock"), out):
        with writable(out):
            finish_publishing(partial, out)
            holds = _prepare(partial, out, mode, overwrite)
        # A partial output beside a finished data set was started with --overwrite, and is resumed as such.
        replace = overwrite or mode.startswith("append") or (holds == "unfinished" and is_ours(out))
        work, moved = OutputDirectory(partial, out, holds), False
        try:
            yield work
            if work.finished:
                with writable(out):
                    _move_into_place(partial, out, replace=replace)
                moved = True
        finally:
            if not moved and not new_episodes(partial, out, mode):
                shutil.rmtree(partial, ignore_errors=True)


def _prepare(partial: Path, out: Path, mode: Mode, overwrite: bool) -> Holds:
    """Make the directory to build in, or find it."""
    appends = mode.startswith("append")
    if appends and not is_ours(out):
        what = "was not written by penstock" if out.exists() else "does not exist"
        raise OutputExists(f"{out} {what}: there is nothing to append to", hint="leave --append out to start a new one")
    if not appends:
        check_free(out, overwrite=overwrite or mode == "resume")
    episodes = new_episodes(partial, out, mode)
    if episodes and not overwrite:
        is_append = appends and _is_copy(partial, out)
        if mode in ("resume", "append or resume") and is_append == appends:
            return "unfinished"
        some = f"{episodes:,} episode{'s' if episodes != 1 else ''}"
        raise OutputExists(
            f"{out}: {'an append' if is_append else 'a conversion'} that did not end lies in {partial}, with {some} "
            "committed",
            hint=f"--append --resume continues it; delete {partial} to start again"
            if is_append
            else "--resume continues it, --overwrite starts again",
        )
    if partial.exists():  # a run that ended before its first commit left it; the lock says that it is dead
        shutil.rmtree(partial)
    if appends:
        copy_for_append(out, partial)
        return "copy"
    if mode == "resume":
        check_free(out, overwrite=overwrite)
    partial.mkdir()
    return "nothing"


def new_episodes(partial: Path, out: Path, mode: Mode) -> int:
    """What would be lost with the partial directory: when appending, not what `out` holds as well."""
    held = committed(out) if mode.startswith("append") and _is_copy(partial, out) else 0
    return max(0, committed(partial) - held)


def _is_copy(partial: Path, out: Path) -> bool:
    """Whether the partial data set began as a copy of the finished one, so that its journal begins with that one's."""
    try:
        with (out / JOURNAL_PATH).open("rb") as old, (partial / JOURNAL_PATH).open("rb") as new:
            while piece := old.read(1 << 20):
                if new.read(len(piece)) != piece:
                    return False
    except FileNotFoundError:
        return False
    return True


def copy_for_append(source_root: Path | str, target_root: Path | str, *, fsync: bool = True) -> None:
    """Make `target_root`, empty or absent, a data set that `DataSetWriter.resume` can continue; the source stays whole.

    Nothing but the files that will grow is copied where both lie on one file system. The metadata is left out: a data
    set that is being appended to has none, and `close` writes it.
    """
    source, target = Path(source_root), Path(target_root)
    journal = Journal.read(source)
    if journal.header.is_worker_output:
        raise DataSetError(f"{source}: this is a worker output, not a data set")
    names = layout.UnsyncedNames(target, fsync=fsync)
    sink = sink_factory(journal.header.output)(source, journal.header.description, names)
    copied: set[str] = set()
    last = journal.last_episode()
    state = None if last is None or last.state is None else f"{OWN_DIR}/{last.state.name}"
    if last is not None:
        copied = set(sink.grows(last.to_json()))
    layout.make_empty(target)
    for relative in _relative_files(source):
        # Right below it: the journal, states, the report. What lies deeper is the sink's.
        is_own = Path(relative).parent == Path(OWN_DIR)
        into = relative if relative == state else None if is_own else sink.name_in_copy(relative)
        if into is not None:
            _copy_or_link(layout.path_in(source, relative), target / into, link=relative not in copied, fsync=fsync)
            names.add(target / into)
    # The writer syncs the directories that it changes; these may take the place of the source as they are.
    names.sync()
    # Last: a directory without it is nothing to continue, however much of the copy is there.
    _copy_or_link(source / JOURNAL_PATH, target / JOURNAL_PATH, link=False, fsync=fsync)


def _relative_files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            yield Path(folder, name).relative_to(root).as_posix()


def _copy_or_link(source: Path, target: Path, *, link: bool, fsync: bool) -> None:
    with layout.writing(target, "cannot copy the file"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if link:
            try:
                os.link(os.path.realpath(source), target)
                return
            except OSError:
                # Another file system, or one without hard links: a copy serves as well.
                target.unlink(missing_ok=True)
        temporary = target.with_name(target.name + ".part")
        shutil.copyfile(source, temporary)
        if fsync:
            layout.fsync_file(temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputFailed(error.filename or out, "cannot be written", error) from error


def _move_into_place(partial: Path, out: Path, *, replace: bool) -> None:
    check_free(out, overwrite=replace)
    fsync_path(partial)
    if not is_ours(out):
        os.rename(partial, out)  # onto nothing, or onto an empty directory
        fsync_path(out.parent)
        return
    marker = partial / _REPLACES
    marker.touch()
    fsync_path(marker.parent)
    _exchange(partial, out)


def _exchange(partial: Path, out: Path) -> None:
    exchange(partial, out)
    fsync_path(out.parent)
    _clear_replaced(partial, out)


def _clear_replaced(partial: Path, out: Path) -> None:
    for old in (partial, _aside_of(out)):
        if is_ours(old):
            _remove(old)
    (out / _REPLACES).unlink(missing_ok=True)
    fsync_path(out / Path(_REPLACES).parent)


def finish_publishing(partial: Path, out: Path) -> None:
    """Finish the publishing of a run that was killed during its last steps."""
    if (out / _REPLACES).exists():
        _clear_replaced(partial, out)
    elif (partial / _REPLACES).exists():
        if is_ours(out):
            _exchange(partial, out)
        else:  # between two renames, where the system has no exchange
            os.rename(partial, out)
            _clear_replaced(partial, out)


def _remove(data_set: Path) -> None:
    """Delete a data set of ours, its report last: when this is interrupted, what remains is still known as ours."""
    report = data_set / REPORT_PATH
    for entry in (*data_set.iterdir(), *report.parent.iterdir()):
        if entry not in (report, report.parent):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.rmtree(data_set)


def exchange(new: Path, old: Path) -> None:
    """`new` takes the place of `old` and the other way round; where the system cannot, in three steps."""
    call = _renameat2()
    if call is not None:
        import ctypes

        if call(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _UNABLE:
            raise OSError(number, os.strerror(number), str(old))
    aside = _aside_of(old)
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)


def _aside_of(path: Path) -> Path:
    """Where the old directory lies between the steps."""
    return path.with_name(path.name + OLD_SUFFIX)


@lru_cache(maxsize=1)
def _renameat2() -> Any:
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call


@contextlib.contextmanager
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock file; a killed run leaves nothing to clean up, since the system lets go of its lock."""
    with writable(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        while (handle := _try(lock, out)) is None:
            continue
    try:
        yield
    finally:
        # The file means nothing without the lock on it: a disk that refuses to let it go is no reason to fail.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(handle)


def _try(lock: Path, out: Path) -> int | None:
    """A handle that holds the lock; None where the holder before us removed the file between our two calls."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with on_error(partial(os.close, handle)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 256, 0).decode(errors="replace").strip() or "unknown"
            raise DataSetError(
                f"another conversion is writing {out} (process {holder})", hint="wait for it, or choose another output"
            ) from error
        if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
            return handle
    os.close(handle)
    return None
