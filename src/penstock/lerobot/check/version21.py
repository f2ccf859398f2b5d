"""The files of a v2.x data set: is everything there that its conversion needs?"""

from __future__ import annotations

from penstock.errors import DataSetCorrupt, PenstockError
from penstock.formats.findings import Findings
from penstock.lerobot import layout
from penstock.lerobot.check.rows import check_places, check_row_columns
from penstock.lerobot.check.videos import decode_all
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.read.frames import FrameFinder
from penstock.lerobot.read.reader import DataFile, DataSet


def check_version21(data: DataSet, findings: Findings, *, full: bool) -> None:
    """Hold every episode's files against the metadata: the places of rows, and frames by the indexes of the videos."""
    try:
        episodes, tasks = data.episodes, data.tasks
    except PenstockError as error:
        findings.error("metadata", data.root, error.message, error.hint)
        return
    where = data.root / layout.INFO_PATH
    rows = int(episodes.length.sum())
    for name, said, found in (
        ("total_episodes", data.info.total_episodes, len(episodes)),
        ("total_frames", data.info.total_frames, rows),
        ("total_tasks", data.info.total_tasks, len(tasks)),
    ):
        if said != found:
            findings.error("totals", where, f"{name} is {said:,}, the lines of meta/ have {found:,}")
    finder = FrameFinder(data)
    columns = [key for key, feature in data.info.features.items() if feature.dtype != "video"]
    for number in range(len(episodes)):
        findings.counted["episodes"] += 1
        try:
            _check_rows(data, number, columns, findings)
        except PenstockError as error:
            findings.error("data file", f"{data.root}: episode {episodes.index[number]}", error.message, error.hint)
        for key in data.info.video_keys:
            try:
                frames = finder.find(number, key)
                findings.counted["frames"] += frames.count
                if full:
                    decode_all(frames.index, data.info.features[key], findings)
            except PenstockError as error:
                findings.error("video", f"{data.root}: episode {episodes.index[number]}", error.message, error.hint)


def _check_rows(data: DataSet, number: int, columns: list[str], findings: Findings) -> None:
    expected = int(data.episodes.length[number])
    for span in data.row_spans(number):
        if not span.path.is_file():
            raise DataSetCorrupt(f"{span.path}: the file is missing", hint=data.elsewhere(None) or "fetch it again")
        with open_parquet(span.path) as parquet:
            data.stored_columns(span.path, parquet, columns)
            check_row_columns(data, span.path, parquet.schema_arrow.names, findings)
            found = parquet.metadata.num_rows
        findings.counted["rows"] += found
        if found != expected:
            message = f"{found:,} rows, meta/episodes.jsonl says {expected:,}"
            findings.error("episode length", span.path, message, "fetch the episode again")
        else:
            check_places(data, DataFile(span.path, span.first_row, found), findings)
