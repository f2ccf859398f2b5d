"""Recovering a damaged recording: every message that can be read goes to a new one, and the rest is counted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock._src import formats
from penstock._src.formats.content import foreign_content
from penstock._src.recordings.file_window import plain_name
from penstock._src.recordings.metadata import FILE_NAME, Metadata, RecordingFileFacts, write_metadata
from penstock._src.recordings.recovery.report import DamageLog, RecoveryReport
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.recordings.split import SplitFiles, source_of, suffix_kind
from penstock._src.recordings.unpack import is_packed, unpack_prefix
from penstock._src.system.files import as_path, fsync_path
from penstock.errors import NotARecording, OutputExists, RecordingError, UsageError

_STORAGE = {"db3": "sqlite3", "mcap": "mcap", "ros1": "ros1"}


def recover(
    source: str | Path, output: str | Path, *, overwrite: bool = False, keep_suspect: bool = False
) -> RecoveryReport:
    """Rebuild a cut, unindexed or damaged recording as a new one of the same container, and say what was lost.

    >>> report = penstock.recordings.recover("run.bag.active", "run-recovered.bag")
    >>> report.messages, report.lost_messages, report.exit_code

    The source is only read. keep_suspect: messages of chunks that fail their checksum are kept, and counted as suspect.
    """
    path, target = as_path(source), Path(output)
    files = _source(path)
    if files.kind not in _STORAGE and (of := formats.get(files.kind)).recover:
        report: RecoveryReport = of.load("recover")(source, output, overwrite=overwrite, keep_suspect=keep_suspect)
        return report
    _check_kind(files)
    is_bag_directory = files.kind != "ros1" and (path.is_dir() or len(files.files) > 1)
    _check_output(files, path, target, overwrite=overwrite, directory=is_bag_directory)
    log = _log_of(files)
    try:
        with _building(target, overwrite=overwrite, directory=is_bag_directory) as partial:
            facts = []
            for file in files.files:
                log.file = file.name
                place = partial / plain_name(file.name) if is_bag_directory else partial
                facts.append(_recover_file(files, file, place, log, keep_suspect))
            if is_bag_directory:
                write_metadata(partial, facts)
            written = _sync_files(partial)
    except OSError as error:
        raise RecordingError(f"{target}: cannot be written: {error.strerror or error}") from error
    return log.report(
        source=str(path),
        output=str(target),
        kind=files.kind,
        bytes_in=sum(file.stat().st_size for file in files.files),
        bytes_out=written,
    )


def _log_of(files: SplitFiles) -> DamageLog:
    """A log that knows of the files that are missing."""
    log = DamageLog(notes=list(files.notes))
    for name, count in files.missing:
        log.file = name
        log.add(0, 0, "a file of the bag that is not there", count or None)
    return log


@contextmanager
def _content_of(file: Path, log: DamageLog, scratch_in: Path) -> Iterator[FileBytes]:
    """The bytes of a file; what is packed as a whole is unpacked into a folder of `scratch_in`, as far as it goes."""
    with tempfile.TemporaryDirectory(prefix=".penstock-unpack-", dir=scratch_in) as scratch:
        content = None
        if is_packed(file):
            content = Path(scratch) / "content"
            with content.open("xb") as target:
                done, is_all = unpack_prefix(file, target, content.parent)
            if not is_all:
                log.add(0, file.stat().st_size, f"the zstd stream breaks off after {done:,} decompressed bytes")
        with FileBytes(file, content) as source:
            yield source


def _check_kind(files: SplitFiles) -> None:
    if files.kind not in _STORAGE:
        what = f"{files.path} is {formats.get(files.kind).noun}"
        raise UsageError(f"{what}, which cannot be recovered: recover saves ROS 1 bags, db3 and mcap recordings")


def _source(path: Path) -> SplitFiles:
    """The files of the recording; a file whose first bytes are broken is taken for what its name promises."""
    try:
        return source_of(path)
    except NotARecording:
        kind = suffix_kind(path.name)
        if kind is None or not path.is_file() or foreign_content(path, "recording") is not None:
            raise
        return SplitFiles(path, kind, (path,), Metadata(), (f"{path.name} does not begin like a file of its name",))
    except OSError as error:
        raise RecordingError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _check_output(files: SplitFiles, path: Path, target: Path, *, overwrite: bool, directory: bool) -> None:
    real = target.resolve()
    sources = {path.resolve(), *(file.resolve() for file in files.files)}
    if real in sources or sources & set(real.parents) or (path.is_dir() and real in path.resolve().parents):
        raise UsageError(f"{target} is the source, or lies in it: recover writes a new recording beside it")
    if plain_name(target.name) != target.name:
        hint = f"name it {target.with_name(plain_name(target.name))}"
        raise UsageError(f"{target}: what is recovered is not compressed as a whole", hint=hint)
    named = suffix_kind(target.name)
    if not directory and named != files.kind:
        usual = formats.get(files.kind).suffixes[0]
        raise UsageError(f"{target}: {path} is a {usual} recording, and so will be the new one", hint=f"end in {usual}")
    if directory and named is not None:
        raise UsageError(
            f"{target}: {path} is a directory of files, and so will be the new one", hint="name a directory"
        )
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent}: no such directory", hint=f"mkdir -p {target.parent}")
    if target.exists() or target.is_symlink():
        if not overwrite:
            raise OutputExists(f"{target} is there already", hint="another name, or --overwrite")
        if directory != target.is_dir() or (directory and not (target / FILE_NAME).is_file()):
            raise OutputExists(f"{target} is there already and is not a bag of this kind: it is not replaced")


@contextmanager
def _building(target: Path, *, overwrite: bool, directory: bool) -> Iterator[Path]:
    """A place beside the target that takes its name at the end; nothing is left of it when anything fails."""
    room = Path(tempfile.mkdtemp(prefix=f".{target.name[:60]}.recovering-", dir=target.parent))
    partial = room / target.name
    try:
        if directory:
            partial.mkdir()
        yield partial
        _take_place(partial, target, room, overwrite=overwrite)
        fsync_path(target.parent)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _take_place(partial: Path, target: Path, room: Path, *, overwrite: bool) -> None:
    """A file in one step; a directory that is replaced is away for a moment."""
    appeared = OutputExists(f"{target} appeared meanwhile; it is left as it is")
    if not partial.is_dir() and overwrite:
        partial.replace(target)
        return
    if target.exists():
        if not overwrite:
            raise appeared
        target.rename(room / "replaced")
    if not partial.is_dir():
        try:
            os.link(partial, target)  # unlike rename, refuses a file that appears now
            return
        except FileExistsError:
            raise appeared from None
        except OSError:  # a file system without second names
            pass
    partial.rename(target)


def _sync_files(partial: Path) -> int:
    """Write through to the disk; the bytes of all files."""
    total = 0
    for file in [*partial.iterdir(), partial] if partial.is_dir() else [partial]:
        fsync_path(file)
        total += 0 if file.is_dir() else file.stat().st_size
    return total


def _recover_file(
    files: SplitFiles, file: Path, target: Path, log: DamageLog, keep_suspect: bool
) -> RecordingFileFacts:
    facts = RecordingFileFacts(target.name, _STORAGE[files.kind])
    facts.packed_messages = files.metadata.compression_mode == "message"
    # Beside the output, not in /tmp: that is memory on many machines.
    with _content_of(file, log, target.parent) as source:
        if not source.size_bytes:
            raise NotARecording(f"{source.path}: nothing can be read of it: it has no bytes")
        if files.kind == "ros1":
            from penstock._src.recordings.ros1.scan import recover_bag

            recover_bag(source, target, log, keep_suspect=keep_suspect)
        elif files.kind == "mcap":
            from penstock._src.recordings.mcap.scan import recover_mcap

            recover_mcap(source, target, log, facts, keep_suspect=keep_suspect)
        else:
            from penstock._src.recordings.db3.salvage import recover_db3

            recover_db3(source, target, log, facts)
    return facts
