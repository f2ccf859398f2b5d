"""One pass over an episode of a data set: rows in bounded flushes, every camera's frames beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.dataset_cameras import DataSetCamera
from penstock.conversion.cameras.dataset_frames import Feed, Statistics, open_feed
from penstock.conversion.cameras.image_pass import sampled_rows
from penstock.conversion.settings import Settings
from penstock.errors import DataSetCorrupt, ImageError, VideoError
from penstock.lerobot.features import ROW_KEYS, Feature
from penstock.lerobot.read.frames import TOLERANCE_S, FrameFinder
from penstock.lerobot.read.reader import DataSet, ReadRows
from penstock.lerobot.read.row_stream import RowStream
from penstock.lerobot.tasks import renumber, renumbered

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter

_STEP_ROWS = 32  # frames that are encoded between two looks at whether the user wants to stop
PLACE_KEYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Reading:
    """What an episode is read with."""

    data: DataSet
    tables: Mapping[str, Sequence[str]]
    features: tuple[Feature, ...]
    cameras: tuple[DataSetCamera, ...]
    finder: FrameFinder
    rows: RowStream
    settings: Settings
    rows_per_flush: int
    block_bytes: int  # for the moved frames of all cameras together
    threads: int


@dataclass(frozen=True)
class Retimed:
    """Rows whose timestamp is replaced by that of their frame, and by how much it differed at most."""

    rows: int = 0
    apart_s: float = 0.0

    def and_also(self, other: Retimed) -> Retimed:
        return Retimed(self.rows + other.rows, max(self.apart_s, other.apart_s))


def stream_episode(
    reading: Reading,
    number: int,
    episode: EpisodeWriter,
    on_frames: Callable[[int], None],
    on_rows: Callable[[int], None],
) -> Retimed:
    """Write the episode at a place of the episodes table (not yet committed); the timestamps that are replaced."""
    count = int(reading.data.episodes.length[number])
    with contextlib.ExitStack() as held:
        feeds = {camera.key: held.enter_context(_feed(reading, camera, number, episode)) for camera in reading.cameras}
        pool = held.enter_context(ThreadPoolExecutor(max(1, min(reading.threads, len(feeds) or 1))))
        reading.rows.begin(reading.data.row_spans(number))
        retimed = Retimed()
        for start in range(0, count, reading.rows_per_flush):
            rows = range(start, min(start + reading.rows_per_flush, count))
            # In a function of its own, so that the rows are gone before the next ones are read.
            retimed = retimed.and_also(_flush(reading, number, episode, feeds, rows, pool, on_frames))
            on_rows(rows.stop)
        _finish(reading, number, feeds, pool)
    return retimed


def _flush(
    reading: Reading,
    number: int,
    episode: EpisodeWriter,
    feeds: Mapping[str, Feed],
    rows: range,
    pool: ThreadPoolExecutor,
    on_frames: Callable[[int], None],
) -> Retimed:
    """Some rows of the episode with their frames; those of them that had another timestamp."""
    taken = reading.rows.take(len(rows))
    retimed = _check_place(reading, number, rows.start, taken)
    numbers = episode.take_tables(reading.tables)
    tasks = _tasks(reading.data, number, taken, numbers["tasks"])
    pictures: dict[str, list[bytes]] = {key: [] for key in feeds}
    step = _STEP_ROWS if any(number in camera.encoded for camera in reading.cameras) else len(rows)
    for low in range(0, len(rows), step):
        part = range(low, min(low + step, len(rows)))
        for key, added in _advance(reading, number, feeds, taken, part, pool).items():
            pictures[key] += added
        on_frames(rows.start + part.stop)
    columns: dict[str, Any] = {
        feature.key: pictures[feature.key] if feature.dtype == "image" else _values(feature, taken, number)
        for feature in reading.features
        if feature.dtype != "video"
    }
    renumber(reading.features, columns, numbers, f"{reading.data.root}: episode {number}")
    del taken, pictures
    episode.write_rows(columns, rows=len(rows), task=tasks)
    return retimed


def columns_to_read(data: DataSet) -> list[str]:
    """Every column of the data files; those of a row's place are checked and then made anew."""
    own = [key for key, feature in data.info.features.items() if feature.dtype != "video" and key not in ROW_KEYS]
    return [*own, *PLACE_KEYS]


@contextlib.contextmanager
def _feed(reading: Reading, camera: DataSetCamera, number: int, episode: EpisodeWriter) -> Iterator[Feed]:
    with _named(reading, number, camera.key):
        frames = reading.finder.find(number, camera.key) if camera.codec else None
        chosen = sampled_rows(range(int(reading.data.episodes.length[number])), reading.settings.image_samples)
        feed = open_feed(
            camera,
            frames,
            number,
            episode,
            Statistics(episode, camera.key, chosen),
            reading.settings.encoding,
            reading.data.info.fps,
            reading.block_bytes // max(len(reading.cameras), 1),
        )
    try:
        yield feed
    finally:
        feed.close()


def _advance(
    reading: Reading, number: int, feeds: Mapping[str, Feed], taken: ReadRows, part: range, pool: ThreadPoolExecutor
) -> dict[str, list[bytes]]:
    """All cameras by as many rows, each in a thread of its own; pictures for the table by camera."""

    def advance(key: str, feed: Feed) -> list[bytes]:
        with _named(reading, number, key):
            return feed.advance(len(part), None if feed.camera.codec else _pictures(key, taken, part))

    going = {key: pool.submit(advance, key, feed) for key, feed in feeds.items()}
    return {key: future.result() for key, future in _in_order(going)}


def _finish(reading: Reading, number: int, feeds: Mapping[str, Feed], pool: ThreadPoolExecutor) -> None:
    def finish(key: str, feed: Feed) -> None:
        with _named(reading, number, key):
            feed.finish()

    for _, future in _in_order({key: pool.submit(finish, key, feed) for key, feed in feeds.items()}):
        future.result()


def _in_order(going: Mapping[str, Future[Any]]) -> Sequence[tuple[str, Future[Any]]]:
    """All have ended before the first error is raised: nobody writes behind the back of an abort."""
    from concurrent.futures import wait

    wait(going.values())
    return list(going.items())


@contextlib.contextmanager
def _named(reading: Reading, number: int, key: str) -> Iterator[None]:
    """What is wrong with a picture, with the episode and the camera that it belongs to."""
    try:
        yield
    except (ImageError, VideoError) as error:
        episode = int(reading.data.episodes.index[number])
        text = f"{reading.data.root}: episode {episode}, camera {key!r}: {error.message}"
        raise DataSetCorrupt(text, hint=error.hint) from error


def _pictures(key: str, taken: ReadRows, part: range) -> list[bytes]:
    pictures = list(taken[key][part.start : part.stop])
    for place, picture in enumerate(pictures):
        if not isinstance(picture, bytes):
            raise ImageError(
                f"row {int(np.asarray(taken['frame_index'])[part.start + place]):,} has no picture in the table",
                hint="pictures that lie in files of their own are not read; embed them with LeRobot first",
            )
    return pictures


def _values(feature: Feature, taken: ReadRows, number: int) -> Any:
    values = taken[feature.key]
    if feature.dtype == "string" and any(value is None for value in values):
        raise DataSetCorrupt(f"column {feature.key!r}: an empty value in episode {number}", hint="fill it in first")
    return values


def _check_place(reading: Reading, number: int, start: int, taken: ReadRows) -> Retimed:
    """Rows stand in the order of their frames and belong to the episode; those that have another time than theirs."""
    data = reading.data
    episode = int(data.episodes.index[number])
    frame, owner, index = (np.asarray(taken[key]) for key in ("frame_index", "episode_index", "index"))
    expected = np.arange(start, start + len(frame))
    _refuse(data, episode, start, "frame_index", frame, expected)
    _refuse(data, episode, start, "episode_index", owner, np.full(len(owner), episode))
    if data.is_v30:
        _refuse(data, episode, start, "index", index, expected + int(data.episodes.first_row[number]))
    should_s = (expected / data.info.fps).astype(np.float32)
    allowed_s = np.maximum(TOLERANCE_S, np.spacing(np.abs(should_s)))
    apart_s = np.abs(np.asarray(taken["timestamp"], np.float64) - should_s)
    wrong = ~(apart_s <= allowed_s)
    return Retimed(int(np.count_nonzero(wrong)), float(np.max(apart_s[wrong & np.isfinite(apart_s)], initial=0.0)))


def _refuse(data: DataSet, episode: int, start: int, key: str, found: Any, expected: Any) -> None:
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        place = int(wrong[0])
        raise DataSetCorrupt(
            f"{data.root}: episode {episode}, row {start + place:,}: {key} is {found[place]}, not {expected[place]}",
            hint="its rows would be paired with the wrong frames; `penstock doctor` lists what else disagrees",
        )


def _tasks(data: DataSet, number: int, taken: ReadRows, numbers: Sequence[int]) -> NDArray[np.int64]:
    """The task of every row, by the numbers that the tasks of the data set have in the new one."""
    chosen = np.asarray(taken["task_index"])
    used = np.unique(chosen)
    if int(used[0]) < 0 or int(used[-1]) >= len(data.tasks):
        raise DataSetCorrupt(
            f"{data.root}: episode {int(data.episodes.index[number])}: task_index {int(used[-1])}, "
            f"there are {len(data.tasks)} tasks",
            hint="`penstock doctor` lists what else disagrees",
        )
    return renumbered(chosen, numbers, f"{data.root}: task_index")
