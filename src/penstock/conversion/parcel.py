"""Parcels: what a worker writes of one input, and how it gets into the data set."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.conversion.inputs import Input
from penstock.conversion.ledger import Ledger
from penstock.conversion.output import PARCELS

if TYPE_CHECKING:
    from penstock.conversion.stop import Stop
    from penstock.conversion.worker import Request
    from penstock.lerobot.writer import DataSetWriter


def parcel_of(root: Path, number: int) -> Path:
    return root / PARCELS / f"{number:06d}"


def open_parcel(request: Request, source: Input, ledger: Ledger) -> DataSetWriter:
    """The parcel of an input, new or as far as an earlier process had come; the ledger learns how far that is."""
    from penstock.lerobot.writer import DataSetWriter

    if _is_usable(request.parcel, request.episodes):
        writer = DataSetWriter.resume(request.parcel)
        for record in writer.journal.episodes():
            ledger.add_episode(record.note or {})
        for note in writer.journal.notes():
            ledger.add_note(note)
        return writer
    shutil.rmtree(request.parcel, ignore_errors=True)
    ledger.entries[request.number].state = request.state
    return DataSetWriter(
        request.parcel,
        fps=source.fps,
        features=source.features,
        robot_type=source.robot_type,
        identity={"before": request.episodes},
        parcel=True,
    )


def join(parcel: Path, writer: DataSetWriter, ledger: Ledger, number: int, stop: Stop | None) -> None:
    """Move what a parcel holds into the data set, episode by episode, each committed as if it were written there."""
    from penstock.lerobot.join import episodes_of, join_episode
    from penstock.lerobot.journal import Journal

    entry = ledger.entries[number]
    if not _is_usable(parcel, entry.episodes):
        return
    journal = Journal.read(parcel)
    known = entry.episodes - journal.identity["before"]
    for joined in itertools.islice(episodes_of(parcel), known, None):
        if stop is not None:
            stop.check()
        note = dict(joined.note or {})
        episode = join_episode(joined, writer)
        try:
            episode.commit(note=note)
        except BaseException:
            episode.abort()
            raise
        ledger.add_episode(note)
    for note in journal.notes():
        writer.note(note)
        ledger.add_note(note)


def _is_usable(parcel: Path, episodes: int) -> bool:
    """Whether a parcel holds what follows the first `episodes` of its input."""
    from penstock.conversion.resume import committed
    from penstock.lerobot.journal import Journal

    held = committed(parcel)
    if not held:
        return False
    before = Journal.read(parcel).identity.get("before", 0)
    return bool(before <= episodes <= before + held)
