"""An episode that was written elsewhere and joined has the bytes of one that was written in place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.conversion.commit.join import JoinedEpisode, entries_of, join_episode
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Feature, depth_feature
from penstock._src.lerobot.language import subtask
from penstock._src.lerobot.write import replay
from penstock._src.media.image.codec import encode_jpeg
from penstock.errors import DataSetCorrupt, DataSetError
from tests.lerobot.making import CAMERA, FPS, digests, jpegs, rgb, tree
from tests.lerobot.stories import FEATURES, begin, fill, task_of, undisturbed, write

LENGTHS = (5, 3, 9, 4, 6, 1, 7)


def make_worker_output(root: Path, numbers: range, lengths: tuple[int, ...] | list[int]) -> Path:
    with begin(root, is_worker_output=True) as writer:
        for number in numbers:
            write(writer, number, lengths[number])
    return root


def episodes_of(worker_output: Path) -> Iterator[JoinedEpisode]:
    return (each for each in entries_of(worker_output) if isinstance(each, JoinedEpisode))


def join_all(writer: DataSetWriter, worker_output: Path) -> None:
    for joined in episodes_of(worker_output):
        join_episode(joined, writer).commit(joined.record.note)


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    data_bytes=st.sampled_from([1, 30_000, 10**6]),
    video_bytes=st.sampled_from([1, 5_000, 10**6]),
    split=st.integers(1, 3),
    stop=st.booleans(),
)
def test_joined_equals_direct(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    data_bytes: int,
    video_bytes: int,
    split: int,
    stop: bool,
) -> None:
    folder = tmp_path_factory.mktemp("join")
    limits = {"data_file_bytes": data_bytes, "video_file_bytes": video_bytes}
    expected = digests(undisturbed(folder / "whole", lengths, **limits))
    writer = begin(folder / "set", **limits)
    for first in range(0, len(lengths), split):
        numbers = range(first, min(first + split, len(lengths)))
        join_all(writer, make_worker_output(folder / f"worker_output-{first}", numbers, lengths))
        if stop:
            writer.leave()
            writer = DataSetWriter.resume(folder / "set", fsync=False)
    assert [record.note for record in writer.journal.episodes()] == [{"number": n} for n in range(len(lengths))]
    writer.close()
    assert digests(folder / "set") == expected
    shutil.rmtree(folder)


def test_joined_in_many_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digests(undisturbed(tmp_path / "whole", LENGTHS))
    worker_output = make_worker_output(tmp_path / "worker_output", range(len(LENGTHS)), LENGTHS)
    before = digests(worker_output)
    for size in (1, 2500):
        monkeypatch.setattr(replay, "PIECE_BYTES", size)
        with begin(tmp_path / f"set{size}") as writer:
            join_all(writer, worker_output)
        assert digests(tmp_path / f"set{size}") == expected
    assert digests(worker_output) == before


def test_a_worker_output_that_is_still_growing_and_was_killed_once(tmp_path: Path) -> None:
    expected = digests(undisturbed(tmp_path / "whole", LENGTHS))
    worker_output, target = begin(tmp_path / "worker_output", is_worker_output=True), begin(tmp_path / "set")
    for number, rows in enumerate(LENGTHS):
        write(worker_output, number, rows, last=number == 1)
        episode = worker_output.episode(rows=3, task=task_of(90))
        fill(episode, 90, 3)
        joined = list(episodes_of(tmp_path / "worker_output"))
        assert len(joined) == number + 1
        join_episode(joined[number], target).commit(joined[number].record.note)
        if number % 2:
            worker_output.stop()
            worker_output = DataSetWriter.resume(tmp_path / "worker_output", fsync=False)
        else:
            episode.abort()
    target.close()
    assert digests(tmp_path / "set") == expected


def test_direct_and_joined_episodes_mix(tmp_path: Path) -> None:
    expected = digests(undisturbed(tmp_path / "whole", LENGTHS))
    worker_output = make_worker_output(tmp_path / "worker_output", range(2, 5), LENGTHS)
    with begin(tmp_path / "set") as writer:
        write(writer, 0, LENGTHS[0])
        write(writer, 1, LENGTHS[1])
        join_all(writer, worker_output)
        write(writer, 5, LENGTHS[5])
        write(writer, 6, LENGTHS[6], last=True)
    assert digests(tmp_path / "set") == expected


EVERYTHING = (
    Feature("half", "float16", (2,)),
    Feature("exact", "float64", (1,)),
    Feature("matrix", "float32", (2, 3)),
    Feature("cube", "int32", (2, 1, 2)),
    Feature("count", "uint64", (1,)),
    Feature("flags", "bool", (3,)),
    Feature("language_persistent", "language", (1,)),
    depth_feature("depth", (8, 8), "mm"),
)


def rows_of_everything(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    columns: dict[str, Any] = {
        feature.key: (random.normal(size=(7, *feature.shape)) * 9).astype(feature.dtype)
        for feature in EVERYTHING
        if feature.is_numeric and feature.dtype != "uint64"
    }
    columns["count"] = random.integers(0, 2**63, 7).astype("uint64")
    columns["half"][3] = np.inf
    columns["language_persistent"] = [
        None,
        [subtask(None, 0.0)],
        *([[subtask("reach", 0.1), subtask("grip", 0.2)]] * 5),
    ]
    columns["depth"] = [random.bytes(90 + row) for row in range(7)]
    return columns


def write_everything(writer: DataSetWriter, number: int) -> None:
    random = np.random.default_rng(number)
    with writer.episode(task=f"task {number}") as episode:
        for rows in (slice(0, 3), slice(3, 7)):
            episode.write_rows({key: values[rows] for key, values in rows_of_everything(number).items()})
            episode.add_image_sample("depth", random.integers(0, 9000, (40, 40), dtype=np.uint16))
        episode.commit()


def test_every_kind_of_feature_is_joined_and_resumed(tmp_path: Path) -> None:
    def new_writer(name: str, **more: Any) -> DataSetWriter:
        return DataSetWriter(tmp_path / name, fps=FPS, features=EVERYTHING, fsync=False, **more)

    for name, worker in (("whole", False), ("worker_output", True)):
        with new_writer(name, is_worker_output=worker) as writer:
            for number in range(4):
                write_everything(writer, number)
    writer = new_writer("set")
    for joined in episodes_of(tmp_path / "worker_output"):
        join_episode(joined, writer).commit()
        writer.leave()
        writer = DataSetWriter.resume(tmp_path / "set", fsync=False)
    writer.close()
    assert digests(tmp_path / "set") == digests(tmp_path / "whole")


def test_an_episode_that_does_not_fit_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    features = (FEATURES[0],)
    worker_output = DataSetWriter(
        tmp_path / "worker_output", fps=FPS, features=features, fsync=False, is_worker_output=True
    )
    episode = worker_output.episode(task="x")
    episode.video(CAMERA).append(jpegs(2))
    episode.write_rows({}, rows=2)
    episode.commit()
    worker_output.leave()
    (joined,) = episodes_of(tmp_path / "worker_output")
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=features, fsync=False)
    with writer.episode(task="x") as episode:
        episode.video(CAMERA).append([encode_jpeg(rgb(1))])
        episode.write_rows({}, rows=1)
        episode.commit()
    before = tree(tmp_path / "set")
    video = layout.video_path(tmp_path / "worker_output", CAMERA, layout.FIRST_FILE)
    video.write_bytes(video.read_bytes()[:-5])
    with pytest.raises(DataSetCorrupt, match="lies beyond the end of the file"):
        join_episode(joined, writer)
    assert tree(tmp_path / "set") == before
    writer.close()


def test_only_worker_outputs_are_joined_and_they_are_never_closed(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="not written as a worker output"):
        list(episodes_of(undisturbed(tmp_path / "set", (2,))))
    writer = begin(tmp_path / "worker_output", is_worker_output=True)
    write(writer, 0, 2)
    with pytest.raises(DataSetError, match="never closed"):
        writer.close()
