"""A data set to append to: its finished files are linked, those that will be continued are copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.conversion.commit.journal import JOURNAL_PATH, OWN_DIR, Journal
from penstock.conversion.sink import sink_factory
from penstock.errors import DataSetError
from penstock.lerobot import layout


def copy_for_append(source_root: Path | str, target_root: Path | str, *, fsync: bool = True) -> None:
    """Make `target_root`, empty or absent, a data set that `DataSetWriter.resume` can continue; the source stays whole.

    Nothing but the files that will grow is copied where both lie on one file system. The metadata is left out: a data
    set that is being appended to has none, and `close` writes it.
    """
    source, target = Path(source_root), Path(target_root)
    journal = Journal.read(source)
    if journal.header.is_worker_output:
        raise DataSetError(f"{source}: this is a worker output, not a data set")
    names = layout.FreshNames(target, fsync=fsync)
    sink = sink_factory(journal.header.output)(source, journal.header.description, names)
    copied: set[str] = set()
    last = journal.last_episode()
    state = None if last is None or last.state is None else f"{OWN_DIR}/{last.state.name}"
    if last is not None:
        copied = set(sink.grows(last.to_json()))
    layout.make_empty(target)
    for relative in _files(source):
        # Right below it: the journal, states, the report. What lies deeper is the sink's.
        is_own = Path(relative).parent == Path(OWN_DIR)
        into = relative if relative == state else None if is_own else sink.name_in_copy(relative)
        if into is not None:
            _take(layout.path_in(source, relative), target / into, link=relative not in copied, fsync=fsync)
            names.add(target / into)
    # The writer syncs the directories that it changes; these may take the place of the source as they are.
    names.sync()
    # Last: a directory without it is nothing to continue, however much of the copy is there.
    _take(source / JOURNAL_PATH, target / JOURNAL_PATH, link=False, fsync=fsync)


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            yield Path(folder, name).relative_to(root).as_posix()


def _take(source: Path, target: Path, *, link: bool, fsync: bool) -> None:
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
