"""Files beside a recording that say what it shows: which they are, and what they say together."""

from __future__ import annotations

from pathlib import Path

from penstock._src.conversion.episodes.events import Sidecar
from penstock._src.conversion.settings import AUTO, NONE, TABLES

_SUFFIXES = (".yaml", ".yml", ".json", ".txt")


def sidecar_files(recording: Path, pattern: str) -> tuple[Path, ...]:
    """The files that `read_sidecar` would read: they are part of what makes a conversion this conversion."""
    if pattern == NONE:
        return ()
    if pattern != AUTO:
        return (Path(pattern),)
    stem = recording.name if recording.is_dir() else recording.name.removesuffix(recording.suffix)
    beside = [recording.with_name(stem + suffix) for suffix in _SUFFIXES]
    files = [path for path in beside if path != recording and path.is_file()]
    tables = [recording.with_name(name) for name in TABLES if recording.with_name(name).is_file()]
    return (*files[:1], *tables[:1])


def read_sidecar(recording: Path, pattern: str, start_ns: int) -> Sidecar:
    """Read the files beside a recording; `start_ns` is when it began, since their times count from there."""
    sidecar = Sidecar()
    notes: list[str] = []
    for path in sidecar_files(recording, pattern):
        from penstock._src.conversion.episodes.sidecar_contents import read_contents

        read = read_contents(path, recording, start_ns, automatic=pattern == AUTO, notes=notes)
        if read is None:
            continue
        # The file of this one recording comes first, the table of all of them fills in what it leaves open.
        sidecar = Sidecar(
            sidecar.task or read.task,
            sidecar.windows or read.windows,
            read.subtasks if sidecar.subtasks is None else sidecar.subtasks,
            (*sidecar.files, path),
        )
    return Sidecar(sidecar.task, sidecar.windows, sidecar.subtasks, sidecar.files, tuple(notes))
