"""A data set to append to: its finished files are linked, those that will be continued are copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import DataSetError
from penstock.lerobot import layout
from penstock.lerobot.write import packing
from penstock.lerobot.write.journal import Journal


def copy_for_append(source_root: Path | str, target_root: Path | str, *, fsync: bool = True) -> None:
    """Make `target_root`, empty or absent, a data set that `DataSetWriter.resume` can continue; the source stays whole.

    Nothing but the videos that will grow is copied where both lie on one file system. The metadata is left out: a data
    set that is being appended to has none, and `close` writes it.
    """
    source, target = Path(source_root), Path(target_root)
    journal = Journal.read(source)
    if journal.header.parcel:
        raise DataSetError(f"{source}: this is a parcel, not a data set")
    last = journal.last_episode()
    copied: set[str] = set()
    kept: set[str] = set()
    if last is not None:
        videos = (layout.video_path(source, key, span.position) for key, span in last.videos.items())
        copied = {path.relative_to(source).as_posix() for path in videos}
        kept = set() if last.state is None else {f"{layout.OWN_DIR}/{last.state.name}"}
    layout.make_empty(target)
    names = layout.FreshNames(target, fsync=fsync)
    # The statistics of the episodes lie in the table of the source, or where it keeps those of an earlier one.
    table = layout.EPISODES_DIR if journal.is_closed else packing.KEPT_DIR
    for relative in _files(source):
        into = relative
        if relative.startswith(f"{table}/"):
            into = packing.KEPT_DIR + relative.removeprefix(table)
        elif _is_rewritten(relative) or (relative.startswith(f"{layout.OWN_DIR}/") and relative not in kept):
            continue
        _take(layout.path_in(source, relative), target / into, link=relative not in copied, fsync=fsync)
        names.add(target / into)
    # The writer syncs the directories that it changes; these may take the place of the source as they are.
    names.sync()
    # Last: a directory without it is nothing to continue, however much of the copy is there.
    _take(source / layout.JOURNAL_PATH, target / layout.JOURNAL_PATH, link=False, fsync=fsync)


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            yield Path(folder, name).relative_to(root).as_posix()


def _is_rewritten(relative: str) -> bool:
    names = (layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, layout.SUBTASKS_PATH)
    return relative in (layout.JOURNAL_PATH, *names) or relative.startswith(f"{layout.EPISODES_DIR}/")


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
