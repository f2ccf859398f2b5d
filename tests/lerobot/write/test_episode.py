from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot import layout
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock.errors import DataSetError, ImageError, OutputFailed, VideoError
from tests.lerobot import reading
from tests.lerobot.making import (
    CAMERA,
    FEATURES,
    FPS,
    HEIGHT,
    WIDTH,
    digests,
    frame,
    jpegs,
    make,
    numbers,
    rgb,
    tree,
    write_episode,
)


@pytest.mark.parametrize("limits", [{}, {"data_file_bytes": 1, "video_file_bytes": 1}])
def test_an_aborted_episode_leaves_no_trace(tmp_path: Path, limits: dict[str, int]) -> None:
    make(tmp_path / "clean", lengths=(12, 8), **limits)
    root = tmp_path / "set"
    with DataSetWriter(root, fps=FPS, features=FEATURES, robot_type="test", fsync=False, **limits) as writer:
        for aborted_first in (True, False):
            before = tree(root)
            episode = writer.episode(rows=20, task="never")
            episode.video(CAMERA).append(jpegs(9, seed=77))
            episode.write_rows({key: np.full_like(rows, np.nan) for key, rows in numbers(9, 77).items()})
            episode.add_image_sample(CAMERA, rgb(5))
            episode.abort()
            assert tree(root) - before == set()
            write_episode(writer, 12 if aborted_first else 8, 0 if aborted_first else 1)
    assert digests(root) == digests(tmp_path / "clean")


def test_an_error_inside_an_episode_aborts_it(tmp_path: Path) -> None:
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False) as writer:
        with pytest.raises(RuntimeError, match="camera fell off"), writer.episode(task="x") as episode:
            episode.video(CAMERA).append(jpegs(3))
            raise RuntimeError("camera fell off")
        assert tree(tmp_path / "set") == {"penstock", "penstock/journal.jsonl"}
        write_episode(writer, 4, 0)
    assert open_data_set(tmp_path / "set").info.total_episodes == 1


def test_an_episode_that_nobody_commits_is_an_error(tmp_path: Path) -> None:
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False)
    with pytest.raises(DataSetError, match="neither committed nor aborted"), writer.episode():
        pass


def test_frames_must_match_rows(tmp_path: Path) -> None:
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False)
    episode = writer.episode(task="x")
    episode.video(CAMERA).append(jpegs(3))
    episode.write_rows(numbers(4))
    with pytest.raises(DataSetError, match=r"cam' has 3 frames for 4 rows"):
        episode.commit()
    episode.video(CAMERA).repeat()
    assert episode.commit().rows == 4


def test_a_repeated_frame_is_stored_once(tmp_path: Path) -> None:
    with (
        DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False) as writer,
        writer.episode(task="x") as episode,
    ):
        episode.video(CAMERA).append(jpegs(2))
        episode.video(CAMERA).repeat(3)
        episode.write_rows(numbers(5))
        episode.commit()
    assert [frame(tmp_path / "set", row) for row in range(5)] == [jpegs(2)[n] for n in (0, 1, 1, 1, 1)]
    assert (tmp_path / f"set/videos/{CAMERA}/chunk-000/file-000.mp4").read_bytes().count(jpegs(2)[1]) == 1


def test_an_episode_cannot_begin_with_a_repeat(tmp_path: Path) -> None:
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False)
    write_episode(writer, 3, 0)
    with pytest.raises(VideoError, match="no frame of this episode"):
        writer.episode(task="x").video(CAMERA).repeat()


def test_empty_or_nameless_episodes_are_refused(tmp_path: Path) -> None:
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False)
    episode = writer.episode()
    with pytest.raises(DataSetError, match="no row"):
        episode.commit()
    with pytest.raises(DataSetError, match="no task"):
        episode.write_rows(numbers(2))
    episode.abort()
    with pytest.raises(DataSetError, match="no episode was committed"):
        writer.close()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({**numbers(2), "action": np.zeros((3, 2))}, "different length"),
        ({**numbers(2), "action": np.zeros((2, 3))}, r"shape \(3,\)"),
        ({**numbers(2), "action": np.zeros((2, 2), dtype=complex)}, "complex"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, np.ndarray], text: str) -> None:
    episode = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False).episode(task="reach")
    with pytest.raises(DataSetError, match=text):
        episode.write_rows(columns)
    assert episode.rows == 0


def test_images_of_another_size_or_kind_are_refused(tmp_path: Path) -> None:
    from penstock._src.media.image.codec import encode_jpeg

    sink = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False).episode().video(CAMERA)
    with pytest.raises(ImageError, match="40×24 px, but the feature is 48×32"):
        sink.append([encode_jpeg(np.zeros((24, 40, 3), dtype=np.uint8))])
    with pytest.raises(ImageError):
        sink.append([b"not an image"])
    sink.append(jpegs(1))
    with pytest.raises(ImageError, match="yuvj444p, the frames before yuvj420p"):
        sink.append([encode_jpeg(rgb(0), subsampling="4:4:4")])


def test_an_aborted_episode_does_not_decide_the_codec(tmp_path: Path) -> None:
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1], fsync=False) as writer:
        first = writer.episode()
        first.video(CAMERA).set_codec(mjpeg_stsd(WIDTH, HEIGHT), {"video.codec": "h264", "video.pix_fmt": "yuv420p"})
        first.video(CAMERA).append([b"sample"], [True])
        first.abort()
        second = writer.episode(task="x")
        second.video(CAMERA).append(jpegs(2))
        second.write_rows({}, rows=2)
        second.commit()
        third = writer.episode()
        with pytest.raises(VideoError, match="this data set's video is mjpeg, not h264"):
            third.video(CAMERA).set_codec(
                mjpeg_stsd(WIDTH, HEIGHT), {"video.codec": "h264", "video.pix_fmt": "yuv420p"}
            )
        third.abort()
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["features"][CAMERA]["info"]["video.codec"] == "mjpeg"


def test_other_colour_sampling_begins_another_file(tmp_path: Path) -> None:
    from penstock._src.media.image.codec import encode_jpeg

    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1], fsync=False) as writer:
        for subsampling in ("4:2:0", "4:4:4", "4:4:4"):
            with writer.episode(task="x") as episode:
                episode.video(CAMERA).append([encode_jpeg(rgb(0), subsampling=subsampling)])
                episode.write_rows({}, rows=1)
                episode.commit()
    assert open_data_set(tmp_path / "set").episodes.videos[CAMERA].file.tolist() == [0, 1, 1]


def test_encoded_episodes_begin_with_a_key_frame(tmp_path: Path) -> None:
    sink = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1], fsync=False).episode().video(CAMERA)
    with pytest.raises(VideoError, match=r"video\.pix_fmt"):
        sink.set_codec(mjpeg_stsd(WIDTH, HEIGHT), {"video.codec": "h264"})
    sink.set_codec(mjpeg_stsd(WIDTH, HEIGHT), {"video.codec": "h264", "video.pix_fmt": "yuv420p"})
    with pytest.raises(VideoError, match="key frame"):
        sink.append([b"sample"], [False])


def test_every_row_has_the_number_of_its_task(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(6, 5, 4, 3), tasks=("a", "b", "a"))
    data = open_data_set(tmp_path / "set")
    assert reading.rows(data, ["task_index"], 0, 18)["task_index"].tolist() == [0] * 6 + [1] * 5 + [0] * 4 + [0] * 3
    assert (
        data.stats is not None
        and data.stats["task_index"]["max"] == [1.0]
        and data.stats["task_index"]["count"] == [18]
    )


def test_rows_can_name_their_tasks(tmp_path: Path) -> None:
    with DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[1:], fsync=False) as writer:
        write = writer.episode()
        assert write.take_tables({"tasks": ["reach", "grasp"]}) == {"tasks": [0, 1]}
        write.write_rows(numbers(3), task=np.array([0, 0, 1]))
        write.write_rows(numbers(2), task=np.array([0, 0]))
        assert write.commit().tasks == ("reach", "grasp")
    data = open_data_set(tmp_path / "set")
    assert reading.rows(data, ["task_index"], 0, 5)["task_index"].tolist() == [0, 0, 1, 0, 0]
    assert data.tasks == ["reach", "grasp"] and data.episodes.tasks == [("reach", "grasp")]


def test_commit_and_close_bring_files_to_the_disk_and_their_lines_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda fd, real=real: (synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), real(fd)),
        )
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES)
    write_episode(writer, 4, 0)
    assert {"episode-000000.parquet", "file-000.mp4", "state-000001.bin", ".spool", "penstock", "set"} <= set(synced)
    assert synced[-1] == "journal.jsonl" and synced.count("journal.jsonl") == 1
    assert not (tmp_path / "set/meta/info.json").exists()
    writer.close()
    assert [name for name in synced if name in ("info.json.part", "meta", "journal.jsonl.part")][-3:] == [
        "info.json.part", "meta", "journal.jsonl.part",
    ]  # fmt: skip


def test_the_last_episode_is_brought_to_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), real(fd))
    )
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES[:1])
    episode = writer.episode(task="x")
    episode.video(CAMERA).append(jpegs(2))
    episode.write_rows({}, rows=2)
    episode.commit(last=True)
    assert synced == [] and list(writer.journal.episodes()) == []
    writer.close()
    assert synced.count("file-000.mp4") == 1 and synced.count("state-000001.bin") == 1
    assert open_data_set(tmp_path / "set").info.total_frames == 2


def test_a_failed_commit_stops_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = DataSetWriter(tmp_path / "set", fps=FPS, features=FEATURES, fsync=False)
    write_episode(writer, 3, 0)
    episode = writer.episode(task="x")
    episode.video(CAMERA).append(jpegs(2))
    episode.write_rows(numbers(2))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OutputFailed, match=r"state-000002\.bin: .*No space left") as caught:
            episode.commit()
    assert caught.value.errno == errno.ENOSPC and "make room" in (caught.value.hint or "")
    episode.abort()
    with pytest.raises(DataSetError, match="closed already"):
        writer.close()
    resumed = DataSetWriter.resume(tmp_path / "set", fsync=False)
    assert (resumed.episodes, resumed.frames) == (1, 3)
    resumed.close()
    make(tmp_path / "clean", lengths=(3,))
    assert (
        digests(tmp_path / "set")["data/chunk-000/file-000.parquet"]
        == (digests(tmp_path / "clean")["data/chunk-000/file-000.parquet"])
    )


def test_errors_of_the_system_are_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataSetError, match="cannot make the directory"):
        DataSetWriter(tmp_path / "file/set", fps=FPS, features=FEATURES)
    root = tmp_path / "set"
    episode = DataSetWriter(root, fps=FPS, features=FEATURES[1:], fsync=False).episode(task="x")
    (root / layout.SPOOL_DIR).write_text("in the way")
    with pytest.raises(DataSetError, match=r"episode-000000\.parquet: cannot write rows"):
        episode.write_rows(numbers(2))
