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
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + PARTIAL_SUFFIX)
    with _locked(partial.with_name(partial.name + ".lock"), out):
        if partial.exists():  # a run that was killed left it; the lock says that it is dead
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _move_into_place(partial, out, overwrite=overwrite)


def _move_into_place(partial: Path, out: Path, *, overwrite: bool) -> None:
    check_free(out, overwrite=overwrite)
    sync_directory(partial)
    old: Path | None = None
    if out.is_dir():
        old = out.with_name(out.name + _OLD_SUFFIX)
        if old.exists():
            shutil.rmtree(old)
        os.rename(out, old)
    os.rename(partial, out)
    sync_directory(out.parent)
    if old is not None:
        shutil.rmtree(old)


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
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 64, 0).decode(errors="replace").strip() or "unknown"
            raise DataSetError(
                f"another conversion is writing {out} (process {holder})",
                hint="wait for it, or choose another output",
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                lock.unlink()
    finally:
        os.close(handle)
