"""Worker outputs: what a worker process writes of one input, and how its episodes get into the data set.

A worker output is a data set that is never closed, with a journal of its own. Its rows are replayed flush by flush with
new numbers, its frames are copied sample by sample, and the statistics of its images, which were sampled and cannot be
had from the files, are taken from what it kept. So an episode that was joined has the bytes of one written in place.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.conversion.commit import snapshot
from penstock.conversion.commit.input_progress import JobInputs
from penstock.conversion.commit.journal import JOURNAL_PATH, OWN_DIR, EpisodeRecord, Header, Journal
from penstock.conversion.commit.writer import DataSetWriter, EpisodeWriter
from penstock.conversion.inputs.input import Input, State
from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot.feature_stats import new_stats
from penstock.lerobot.features import Feature
from penstock.lerobot.stats import ImageStats
from penstock.lerobot.tasks import renumber, renumbered
from penstock.system.closing import on_error

WORKER_OUTPUTS = ".parcels"  # inside the directory in which a data set is built


@dataclass(frozen=True)
class JoinedEpisode:
    """A committed episode of a worker output."""

    root: Path
    header: Header
    record: EpisodeRecord
    # The numbers that the worker output gave to the tasks of this episode.
    task_texts: Mapping[int, str]
    # The tables that its input has, by the numbers of the worker output; none where the rows name texts.
    tables: Mapping[str, Sequence[str]]


def worker_output_of(root: Path, number: int) -> Path:
    return root / WORKER_OUTPUTS / f"{number:06d}"


def open_worker_output(
    root: Path, source: Input, inputs: JobInputs, episodes: int, state: State | None
) -> DataSetWriter:
    """The worker output of an input, new or as far as an earlier process had come; `inputs` hears how far.

    `episodes` of the input are in the data set already, and `state` is the state after the last of them.
    """
    inputs.entries[0].state = state
    if _is_usable(root, episodes):
        writer = DataSetWriter.resume(root)
        inputs.add_journal(writer.journal)
        return writer
    shutil.rmtree(root, ignore_errors=True)
    return DataSetWriter(
        root,
        fps=source.fps,
        features=source.features,
        robot_type=source.robot_type,
        identity={"before": episodes},
        is_worker_output=True,
    )


def join(worker_output: Path, writer: DataSetWriter, inputs: JobInputs, number: int) -> tuple[str, ...]:
    """Move what a worker output holds into the data set, each episode committed as if it were written there.

    Returns what there is to note of the input, if it is through.
    """
    entry = inputs.entry(number)
    noted: tuple[str, ...] = ()
    if not _is_usable(worker_output, entry.episodes):
        return noted
    journal = Journal.read(worker_output)
    known = entry.episodes - journal.identity["before"]
    for joined in itertools.islice(episodes_of(worker_output), known, None):
        note = dict(joined.record.note or {})
        episode = join_episode(joined, writer)
        with on_error(episode.abort):
            episode.commit(note)
        noted = inputs.add_episode(note)
    for note in journal.notes():
        writer.note(note)
        noted = inputs.add_note(note)
    return noted


def committed(root: Path) -> int:
    """How many episodes a directory would keep through the end of its process, in worker outputs, too."""
    if not (root / JOURNAL_PATH).is_file():
        return 0
    try:
        joined = Counter((record.note or {}).get("input", 0) for record in Journal.read(root).episodes())
    except DataSetCorrupt:
        return 1  # nobody knows how many; what is there is kept until somebody has looked
    except DataSetError:
        return 0
    found = joined.total()
    for worker_output in (root / WORKER_OUTPUTS).glob("[0-9]*"):
        before, held = _extent(worker_output) or (0, 0)
        found += max(0, before + held - max(joined.get(int(worker_output.name), 0), before))
    return found


def _extent(root: Path) -> tuple[int, int] | None:
    """How many episodes of its input come before a worker output, and how many it holds; None for one to make anew."""
    try:
        journal = Journal.read(root)
        return journal.identity.get("before", 0), sum(1 for _ in journal.episodes())
    except DataSetError:  # none, or damaged: its input is still there
        return None


def _is_usable(root: Path, episodes: int) -> bool:
    """Whether it holds what follows the first `episodes` of its input; that may be no more than the input's outcome."""
    extent = _extent(root)
    return extent is not None and extent[0] <= episodes <= sum(extent)


def episodes_of(worker_output: Path | str) -> Iterator[JoinedEpisode]:
    """The episodes that a worker output has committed by now, in order."""
    root = Path(worker_output)
    journal = Journal.read(root)
    if not journal.header.is_worker_output:
        raise DataSetError(f"{root}: this data set was not written as a worker output")
    numbers: dict[str, int] = {}
    tables: dict[str, list[str]] = {}
    for entry in journal.records("texts"):
        tables.setdefault(entry["table"], []).extend(entry["texts"])
    for record in journal.episodes():
        texts = {numbers.setdefault(task, len(numbers)): task for task in record.tasks}
        yield JoinedEpisode(root, journal.header, record, texts, tables)


def join_episode(joined: JoinedEpisode, writer: DataSetWriter) -> EpisodeWriter:
    """Replay an episode of a worker output; what comes back is ready to be committed, and gives the same bytes."""
    from penstock.lerobot.write.replay import copy_frames

    _check_fits(joined, writer)
    record, where = joined.record, f"{joined.root}: episode {joined.record.episode_index}"
    if record.kept is None:
        raise DataSetCorrupt(f"{where} lacks what a worker output keeps")
    kept = snapshot.read(joined.root / OWN_DIR, record.kept)
    task = None if record.names_tasks else record.tasks[0]
    episode = writer.episode(rows=record.announced_rows, task=task)
    try:
        for feature in joined.header.description.cameras:
            copy_frames(joined.root, feature.key, record.place, kept, episode.video(feature.key))
        _copy_rows(joined, episode)
        for key, empty in new_stats(writer.features).items():
            if isinstance(empty, ImageStats):
                episode.add_image_stats(key, type(empty).from_state(kept["stats"][key]))
        if episode.rows != record.rows:
            raise DataSetCorrupt(f"{where}: {episode.rows} of {record.rows} rows")
    except (KeyError, TypeError, ValueError) as error:
        episode.abort()
        raise DataSetCorrupt(f"{where}: what the worker output keeps cannot be used: {error!r}") from error
    except BaseException:
        episode.abort()
        raise
    return episode


def _check_fits(joined: JoinedEpisode, writer: DataSetWriter) -> None:
    def shape_of(features: Sequence[Feature]) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(feature.key, feature.dtype, feature.shape) for feature in features]

    other = joined.header.description
    mine, theirs = shape_of(writer.features), shape_of(other.features)
    if (writer.fps, mine) != (other.fps, theirs):
        raise DataSetError(
            f"{joined.root}: {other.fps} fps, {theirs} cannot be joined into {writer.root}: {writer.fps} fps, {mine}"
        )


def _copy_rows(joined: JoinedEpisode, episode: EpisodeWriter) -> None:
    from penstock.lerobot.write.replay import read_rows

    features = joined.header.description.features
    numbers = episode.take_tables(joined.tables)
    for rows in read_rows(joined.root, joined.record.episode_index, features):
        tasks: Any = None
        renumber(features, rows.values, numbers, rows.where)
        if joined.record.names_tasks and "tasks" in numbers:
            tasks = renumbered(rows.task_index, numbers["tasks"], rows.where)
        elif joined.record.names_tasks:
            tasks = [joined.task_texts[index] for index in rows.task_index.tolist()]
        episode.write_rows(rows.values, rows=rows.count, task=tasks)
