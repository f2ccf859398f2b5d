"""A look at every episode of a data set before it is read in order: files, rows, frames, and what each camera's are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.lerobot.features import ROW_KEYS
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.frames import FETCH_OR_DROP, FrameFinder
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.stores.lerobot.packets import why_not_movable
from penstock._src.stores.lerobot.part import check_places, check_totals
from penstock.errors import DataSetCorrupt, PenstockError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Arrow's writer looks at the size of a page only after so many values: a page of images may hold that many.
_VALUES_PER_PAGE = 1024


@dataclass
class CameraSurvey:
    """What the videos of one camera are, over all episodes that can be used."""

    declared: str = ""  # the codec that info.json names
    codecs: list[str] = field(default_factory=list)  # one per usable episode
    unmovable: dict[int, str] = field(default_factory=dict)  # episode → why its samples cannot be moved
    retimed: int = 0  # episodes whose frames lie at other times than their rows
    apart_s: float = 0.0  # how far at most
    largest_sample_bytes: int = 0
    index_bytes: int = 0

    @property
    def codec(self) -> str:
        """The codec of the most episodes, the first of equals; without an episode, the declared one."""
        return Counter(self.codecs).most_common(1)[0][0] if self.codecs else self.declared


@dataclass
class DataSetSurvey:
    """What a data set holds, by what its files say; episodes are named by their place in the episodes table."""

    usable: list[int] = field(default_factory=list)
    bad: int = 0
    first_problem: str = ""
    cameras: dict[str, CameraSurvey] = field(default_factory=dict)
    image_bytes: dict[str, int] = field(default_factory=dict)  # one image in the table, by feature
    page_bytes: int = 0
    undeclared: list[str] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)  # columns of the row's place that files lack
    recast: dict[str, str] = field(default_factory=dict)  # feature → how the files store it instead
    size_bytes: int = 0


def survey(data: DataSet, *, drop: bool) -> DataSetSurvey:
    """Look at every episode; the first that cannot be used is raised with a count, or with `drop` left out."""
    check_metadata(data)
    features = data.info.features
    declared = {key: (features[key].info or {}).get("video.codec") for key in data.info.video_keys}
    result = DataSetSurvey(cameras={key: CameraSurvey(str(codec or "")) for key, codec in declared.items()})
    finder = FrameFinder(data)
    files: set[Path] = set()
    problem: PenstockError | None = None
    columns = [key for key, feature in data.info.features.items() if feature.dtype != "video"]
    for number in range(len(data.episodes)):
        try:
            _survey_rows(data, number, columns, files, result)
            _survey_videos(data, number, finder, files, result)
            result.usable.append(number)
        except DataSetCorrupt as error:
            problem = problem or error
            result.bad += 1
    if problem is not None:
        result.first_problem = problem.message
        if not drop:
            more = f" ({result.bad:,} of {len(data.episodes):,} episodes cannot be used)" if result.bad > 1 else ""
            raise DataSetCorrupt(problem.message + more, hint=problem.hint)
    result.size_bytes = sum(path.stat().st_size for path in files if path.is_file())
    return result


def check_metadata(data: DataSet) -> None:
    """Refuse a data set whose metadata contradicts itself: rows would be paired with the wrong frames."""
    doctor = "`penstock doctor` lists what else disagrees; correct meta/info.json, or fetch the data set again"
    check_totals(data, doctor)
    if not data.is_v30:
        return
    check_places(data)
    held, rows = sum(file.rows for file in data.data_files), int(data.episodes.length.sum())
    if held != rows:
        raise DataSetCorrupt(
            f"{data.root}: the files of rows have {held:,} rows, the episodes together {rows:,}",
            hint=data.elsewhere(None) or doctor,
        )


def _survey_rows(data: DataSet, number: int, columns: Sequence[str], files: set[Path], result: DataSetSurvey) -> None:
    where = f"{data.root}: episode {int(data.episodes.index[number])}"
    rows = int(data.episodes.length[number])
    if rows < 1:
        raise DataSetCorrupt(f"{where} has no rows", hint=FETCH_OR_DROP)
    for span in data.row_spans(number):
        if span.path in files:
            continue
        if not span.path.is_file():
            hint = data.elsewhere(None) or FETCH_OR_DROP
            raise DataSetCorrupt(f"{where}: the file of its rows is missing: {span.path}", hint=hint)
        with open_parquet(span.path) as parquet:
            held = parquet.metadata.num_rows
            if not data.is_v30 and held != rows:
                raise DataSetCorrupt(
                    f"{where}: {held:,} rows in {span.path}, meta/episodes.jsonl says {rows:,}", hint=FETCH_OR_DROP
                )
            data.stored_columns(span.path, parquet, columns)
            _survey_columns(data, parquet, result)
        files.add(span.path)


def _survey_columns(data: DataSet, parquet: pq.ParquetFile, result: DataSetSurvey) -> None:
    names = parquet.schema_arrow.names
    result.derived += [key for key in sorted(ROW_KEYS) if key not in names and key not in result.derived]
    declared = data.info.raw["features"]
    for column in parquet.schema_arrow:
        feature = data.info.features.get(column.name)
        is_known = column.name in declared or column.name in ROW_KEYS
        if not is_known and column.name not in result.undeclared:
            result.undeclared.append(column.name)
        if feature is not None and feature.is_numeric and column.name not in ROW_KEYS:
            stored = _leaf_type(column.type)
            if stored != feature.dtype:
                result.recast[column.name] = stored
    images = [key for key, feature in data.info.features.items() if feature.dtype == "image"]
    for key, rows, size_bytes in _image_columns(parquet, images):
        one = -(-size_bytes // max(rows, 1))
        result.image_bytes[key] = max(result.image_bytes.get(key, 0), one)
        result.page_bytes = max(result.page_bytes, min(size_bytes, one * _VALUES_PER_PAGE))


def _image_columns(parquet: pq.ParquetFile, images: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    if not images:
        return
    wanted = {f"{key}.bytes": key for key in images}
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema in wanted:
                yield wanted[column.path_in_schema], group.num_rows, column.total_uncompressed_size


def _leaf_type(kind: Any) -> str:
    from penstock._src.lerobot.columns import numpy_type

    try:
        return str(numpy_type(getattr(kind, "storage_type", kind)).name)
    except TypeError:
        return str(kind)


def _survey_videos(data: DataSet, number: int, finder: FrameFinder, files: set[Path], result: DataSetSurvey) -> None:
    looked = []
    for key, camera in result.cameras.items():
        frames = finder.find(number, key)
        looked.append((camera, frames, why_not_movable(frames)))
    for camera, frames, reason in looked:  # after all cameras of the episode turned out to be usable
        camera.codecs.append(frames.index.codec)
        if reason is not None:
            camera.unmovable[number] = reason
        camera.retimed += frames.retimed
        camera.apart_s = max(camera.apart_s, frames.apart_s)
        camera.largest_sample_bytes = max(camera.largest_sample_bytes, int(frames.index.sizes[frames.samples].max()))
        camera.index_bytes = max(camera.index_bytes, frames.index.count * 48)
        files.add(frames.path)
