"""Worker outputs: what a worker process writes of one input, and how its episodes get into the data set.

A worker output is a data set that is never closed, with a journal of its own. Its rows are replayed flush by flush with
new numbers, its frames are copied sample by sample, and the statistics of its images, which were sampled and cannot be
had from the files, are taken from what it kept. So an episode that was joined has the bytes of one written in place.
The output of a whole group of inputs has finished videos under the names that they have in the data set: they are taken
over as they are, and only rows are replayed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock._src.conversion.commit import snapshot
from penstock._src.conversion.commit.journal import JOURNAL_PATH, OWN_DIR, EpisodeRecord, Header, Journal
from penstock._src.conversion.commit.writer import DataSetWriter, EpisodeWriter
from penstock._src.conversion.commit.writing import JobInputs
from penstock._src.conversion.inputs.input import Input, State
from penstock._src.lerobot.feature_stats import new_stats
from penstock._src.lerobot.stats import ImageStats
from penstock._src.lerobot.tasks import renumber, renumbered
from penstock._src.system.closing import on_error
from penstock.errors import DataSetCorrupt, DataSetError

WORKER_OUTPUTS = ".worker_outputs"  # inside the directory in which a data set is built
GROUP = "group"  # in the identity of a worker output: it is that of a whole group of inputs, with finished videos

Noted = tuple[str, ...]


class JoinedEpisode(NamedTuple):
    """A committed episode of a worker output."""

    root: Path
    header: Header
    record: EpisodeRecord
    tables: Mapping[str, Sequence[str]]


def worker_output_of(root: Path, number: int) -> Path:
    return root / WORKER_OUTPUTS / f"{number:06d}"


def open_worker_output(
    root: Path, source: Input, inputs: JobInputs, episodes: int, state: State | None
) -> DataSetWriter:
    """The worker output of an input, new or as far as an earlier process had come; `inputs` is brought to that point.

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


def join(worker_output: Path, writer: DataSetWriter, inputs: JobInputs, number: int) -> Iterator[tuple[int, Noted]]:
    """Move what a worker output holds into the data set, each episode committed as if it were written there.

    `number` is its first input. Yields each input that is through, and what there is to note of it.
    """
    if not _is_usable(worker_output, inputs.entry(number).episodes):
        return
    journal = Journal.read(worker_output)
    is_whole = GROUP in journal.identity
    held = Counter({number: journal.identity["before"]})
    for each in entries_of(worker_output):
        if isinstance(each, JoinedEpisode):
            note = dict(each.record.note or {})
            held[note["input"]] += 1
            if held[note["input"]] <= inputs.entry(note["input"]).episodes:
                continue
            writer.begin_group(inputs.video_group(note["input"]))
            episode = join_episode(each, writer, adopt=is_whole and inputs.videos_by_group)
            with on_error(episode.abort):
                episode.commit(note, grouped=is_whole)
            noted = inputs.add_episode(note)
        elif inputs.entry(each["input"]).is_finished:
            continue
        else:
            note = dict(each)
            writer.note(note)
            noted = inputs.add_note(note)
        if inputs.entry(note["input"]).is_finished:
            yield note["input"], noted


def committed(root: Path) -> int:
    """How many episodes a directory would keep through the end of its process, in worker outputs, too."""
    if not (root / JOURNAL_PATH).is_file():
        return 0
    try:
        joined = Counter((record.note or {}).get("input", 0) for record in Journal.read(root).episodes())
    except DataSetCorrupt:
        return 1  # the number is unknown; the files are kept for a look by hand
    except DataSetError:
        return 0
    total = joined.total()
    for worker_output in (root / WORKER_OUTPUTS).glob("[0-9]*"):
        before, held = _extent(worker_output) or (0, 0)
        total += max(0, before + held - max(joined.get(int(worker_output.name), 0), before))
    return total


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


def entries_of(worker_output: Path | str) -> Iterator[JoinedEpisode | Mapping[str, Any]]:
    """The episodes and the notes of a worker output, in the order in which it wrote them."""
    root = Path(worker_output)
    journal = Journal.read(root)
    if not journal.header.is_worker_output:
        raise DataSetError(f"{root}: this data set was not written as a worker output")
    tables: dict[str, list[str]] = {"tasks": []}
    takes_tables = False
    for entry in journal.records():
        if entry["type"] == "texts":
            takes_tables = True
            tables = {**tables, entry["table"]: [*tables.get(entry["table"], ()), *entry["texts"]]}
        elif entry["type"] == "note":
            yield entry["note"]
        elif entry["type"] == "episode":
            record = EpisodeRecord.from_json(entry)
            yield JoinedEpisode(root, journal.header, record, tables if takes_tables or record.names_tasks else {})
            if new := [task for task in record.tasks if task not in tables["tasks"]]:
                tables = {**tables, "tasks": [*tables["tasks"], *new]}


def join_episode(joined: JoinedEpisode, writer: DataSetWriter, *, adopt: bool = False) -> EpisodeWriter:
    """Replay an episode of a worker output; what comes back is ready to be committed, and gives the same bytes.

    `adopt` takes its videos over as they are, where the sink can.
    """
    from penstock._src.lerobot.write.replay import copy_frames

    record, where = joined.record, f"{joined.root}: episode {joined.record.episode_index}"
    if record.kept is None:
        raise DataSetCorrupt(f"{where} lacks what a worker output keeps")
    kept = snapshot.read(joined.root / OWN_DIR, record.kept)
    task = None if record.names_tasks else record.tasks[0]
    episode = writer.episode(rows=record.announced_rows, task=task)
    with on_error(episode.abort):
        for feature in joined.header.description.cameras:
            if not (adopt and episode.adopt_video(feature.key, joined.root, record.place, kept)):
                copy_frames(joined.root, feature.key, record.place, kept, episode.video(feature.key))
        _copy_rows(joined, episode)
        for key, empty in new_stats(writer.features).items():
            if isinstance(empty, ImageStats):
                episode.add_image_stats(key, type(empty).from_state(kept["stats"][key]))
        if episode.rows != record.rows:
            raise DataSetCorrupt(f"{where}: {episode.rows} of {record.rows} rows")
    return episode


def _copy_rows(joined: JoinedEpisode, episode: EpisodeWriter) -> None:
    from penstock._src.lerobot.write.replay import read_rows

    features = joined.header.description.features
    numbers = episode.take_tables(joined.tables)
    for rows in read_rows(joined.root, joined.record.episode_index, features):
        renumber(features, rows.values, numbers, rows.where)
        names_tasks = joined.record.names_tasks
        tasks = renumbered(rows.task_index, numbers["tasks"], rows.where) if names_tasks else None
        episode.write_rows(rows.values, rows=rows.count, task=tasks)
