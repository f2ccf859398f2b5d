"""The output directory: built under a temporary name beside its place, and moved there only when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.conversion.report import REPORT_PATH
from penstock.errors import DataSetError, OutputExists

PARTIAL_SUFFIX = ".penstock-partial"
_OLD_SUFFIX = ".penstock-old"


def is_ours(path: Path) -> bool:
    """Whether penstock wrote this directory (it left its report there)."""
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
        raise OutputExists(f"{out} exists already", hint="add --overwrite to replace it, or choose another output")


@contextlib.contextmanager
def building(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a directory to build in; it becomes `out` when the block ends well and vanishes when it fails."""
    check_free(out, overwrite=overwrite)
    out = Path(os.path.realpath(out))  # "." has no name of its own, and behind a link lies what is to be replaced
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    with _locked(partial.with_name(partial.name + ".lock"), out):
        with _writable(out):
            _restore(out)
            check_free(out, overwrite=overwrite)
            if partial.exists():  # a run that was killed left it; the lock says that it is dead
                shutil.rmtree(partial)
            partial.mkdir()
        try:
            yield partial
            with _writable(out):
                _move_into_place(partial, out, overwrite=overwrite)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataSetError(
            f"{out} cannot be written: {error.strerror or error} ({error.filename or out})",
            hint="choose another output directory",
        ) from error


def _move_into_place(partial: Path, out: Path, *, overwrite: bool) -> None:
    check_free(out, overwrite=overwrite)
    sync_directory(partial)
    old: Path | None = None
    if is_ours(out):
        old = out.with_name(out.name + _OLD_SUFFIX)
        if old.exists():
            if not is_ours(old):
                raise OutputExists(f"{old} is in the way, and penstock did not write it", hint="move it away yourself")
            _remove(old)
    try:
        if old is not None:
            os.rename(out, old)
        os.rename(partial, out)
    except BaseException:  # Ctrl-C between the two counts as well
        _restore(out)
        raise
    sync_directory(out.parent)
    if old is not None:
        _remove(old)


def _remove(data_set: Path) -> None:
    """Delete a data set of ours, its report last: when this is interrupted, what remains is still known as ours."""
    for entry in data_set.iterdir():
        if entry.name != Path(REPORT_PATH).parts[0]:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.rmtree(data_set)


def _restore(out: Path) -> None:
    """A run that was killed between its two renames left the data set that it was to replace under another name."""
    old = out.with_name(out.name + _OLD_SUFFIX)
    if not out.exists() and is_ours(old):
        os.rename(old, out)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(lock: Path, out: Path) -> Iterator[None]:
    """One converter per output. The lock falls with its process, so a killed run leaves nothing to clean up."""
    handle = _take_lock(lock, out)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            lock.unlink()
        os.close(handle)


def _take_lock(lock: Path, out: Path) -> int:
    with _writable(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The holder before us may have removed the file between our two calls: then we hold nothing.
                if _same_file(handle, lock):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
                    return handle
                os.close(handle)
            except BlockingIOError as error:
                holder = os.pread(handle, 256, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise DataSetError(
                    f"another conversion is writing {out} (process {holder})",
                    hint="wait for it, or choose another output",
                ) from error


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
