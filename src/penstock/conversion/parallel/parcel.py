"""Parcels: what a worker writes of one input, and how it gets into the data set."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.conversion.commit.ledger import Ledger
from penstock.conversion.commit.output import PARCELS
from penstock.conversion.inputs.input import Input
from penstock.errors import DataSetError

if TYPE_CHECKING:
    from penstock.conversion.parallel.worker import Request
    from penstock.lerobot.write.writer import DataSetWriter


def parcel_of(root: Path, number: int) -> Path:
    return root / PARCELS / f"{number:06d}"


def open_parcel(request: Request, source: Input, ledger: Ledger) -> DataSetWriter:
    """The parcel of an input, new or as far as an earlier process had come; the ledger learns how far that is."""
    from penstock.lerobot.write.writer import DataSetWriter

    if _is_usable(request.parcel, request.episodes):
        writer = DataSetWriter.resume(request.parcel)
        ledger.entry(request.number).state = request.state
        for record in writer.journal.episodes():
            ledger.add_episode(record.note or {})
        for note in writer.journal.notes():
            ledger.add_note(note)
        return writer
    shutil.rmtree(request.parcel, ignore_errors=True)
    ledger.entry(request.number).state = request.state
    return DataSetWriter(
        request.parcel,
        fps=source.fps,
        features=source.features,
        robot_type=source.robot_type,
        identity={"before": request.episodes},
        parcel=True,
    )


def join(parcel: Path, writer: DataSetWriter, ledger: Ledger, number: int) -> tuple[str, ...]:
    """Move what a parcel holds into the data set, episode by episode, each committed as if it were written there.

    Returns what there is to note of the input, if it is through.
    """
    from penstock.lerobot.write.join import episodes_of, join_episode
    from penstock.lerobot.write.journal import Journal

    entry = ledger.entry(number)
    noted: tuple[str, ...] = ()
    if not _is_usable(parcel, entry.episodes):
        return noted
    journal = Journal.read(parcel)
    known = entry.episodes - journal.identity["before"]
    for joined in itertools.islice(episodes_of(parcel), known, None):
        note = dict(joined.note or {})
        episode = join_episode(joined, writer)
        try:
            episode.commit(note=note)
        except BaseException:
            episode.abort()
            raise
        noted = ledger.add_episode(note)
    for note in journal.notes():
        writer.note(note)
        noted = ledger.add_note(note)
    return noted


def waiting(root: Path, joined: Mapping[int, int]) -> int:
    """How many episodes lie in parcels; `joined` counts by input those that are in the data set already."""
    found = 0
    for parcel in (root / PARCELS).glob("[0-9]*"):
        before, held = _extent(parcel) or (0, 0)
        found += max(0, before + held - max(joined.get(int(parcel.name), 0), before))
    return found


def _extent(parcel: Path) -> tuple[int, int] | None:
    """How many episodes of its input come before a parcel, and how many it holds; None for one to make anew."""
    from penstock.lerobot.write.journal import Journal

    try:
        journal = Journal.read(parcel)
        return journal.identity.get("before", 0), sum(1 for _ in journal.episodes())
    except DataSetError:  # none, or damaged: its input is still there
        return None


def _is_usable(parcel: Path, episodes: int) -> bool:
    """Whether a parcel holds what follows the first `episodes` of its input; that may be no more than its outcome."""
    extent = _extent(parcel)
    return extent is not None and extent[0] <= episodes <= sum(extent)
