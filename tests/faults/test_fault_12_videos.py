"""Fault 12: a video that is cut, has another number of frames than rows, or a codec nobody decodes.

Expected: `doctor` and `convert` name the episode, the camera and both counts; nothing is written, or the episode
is left out, counted and in the exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock._src.cli import main
from penstock.errors import DataSetCorrupt
from tests.conversion import datasets, version21
from tests.conversion.version21 import CAMERA, Video

LENGTHS = (12, 9, 11)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def cut_at_its_samples(path: Path) -> None:
    """The index lies before the samples here, and promises bytes that are not there."""
    data = path.read_bytes()
    moov = data.index(b"moov") - 4
    index = bytearray(data[moov:])
    at = index.index(b"stco") + 12
    index[at : at + 4] = (2**31).to_bytes(4, "big")
    path.write_bytes(data[:moov] + bytes(index))


def one_frame_less(path: Path) -> None:
    path.unlink()
    version21.encode(path, [version21.image(1, row) for row in range(8)], Video())


def unknown_codec(path: Path) -> None:
    data = path.read_bytes()
    assert data.count(b"avc1") >= 1
    at = data.index(b"stsd")
    path.write_bytes(data[:at] + data[at:].replace(b"avc1", b"xyz1", 1))


def gone(path: Path) -> None:
    path.unlink()


FAULTS = [
    (cut, "box 'moov' claims"),
    (cut_at_its_samples, "sample 0 lies at bytes"),
    (one_frame_less, "8 frames for 9 rows"),
    (unknown_codec, "codec 'xyz1' is not one of"),
    (gone, "the video file is missing"),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS)
def test_a_v21_episode_with_such_a_video_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], message: str
) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    damage(version21.video_path(source, 1))
    with pytest.raises(DataSetCorrupt) as caught:
        penstock.convert(source, tmp_path / "new")
    assert f"episode 1, camera {CAMERA!r}" in caught.value.message and message in caught.value.message
    assert caught.value.hint and not (tmp_path / "new").exists()
    assert main(["doctor", str(source)]) == 1
    assert f"error  {version21.video_path(source, 1)}: " in capsys.readouterr().out


def test_such_episodes_are_left_out_and_counted_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = version21.make(tmp_path / "old", LENGTHS)
    one_frame_less(version21.video_path(source, 1))
    assert main(["convert", str(source), str(tmp_path / "new"), "bad_episodes=drop"]) == 3
    assert "8 frames for 9 rows" in capsys.readouterr().err
    rows = [version21.numbers(0, 12)["counter"], version21.numbers(2, 11)["counter"]]
    assert datasets.values(tmp_path / "new", "counter")[:, 0].tolist() == [each for part in rows for each in part]
    assert datasets.problems(tmp_path / "new", full=True) == []
    with pytest.raises(DataSetCorrupt, match="8 frames for 9 rows"):
        penstock.convert(source, tmp_path / "strict", bad_episodes="drop", strict=True)


@pytest.mark.parametrize(("damage", "message"), [FAULTS[0], FAULTS[3]])
def test_a_v30_data_set_with_such_a_video_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], message: str
) -> None:
    penstock.convert(version21.make(tmp_path / "old", LENGTHS), tmp_path / "set")
    (path,) = datasets.video_files(tmp_path / "set", CAMERA)
    damage(path)
    with pytest.raises(DataSetCorrupt, match=f"episode 0, camera '{CAMERA}'.*{message}"):
        penstock.convert(tmp_path / "set", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert main(["doctor", str(tmp_path / "set")]) == 1
    assert message in capsys.readouterr().out


def test_a_v30_video_with_fewer_frames_than_rows_is_named_with_both_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.convert(version21.make(tmp_path / "old", LENGTHS), tmp_path / "set")
    (path,) = datasets.video_files(tmp_path / "set", CAMERA)
    path.unlink()
    version21.encode(path, [version21.image(0, row) for row in range(30)], Video())
    with pytest.raises(DataSetCorrupt, match=f"episode 2, camera '{CAMERA}': 9 frames for 11 rows"):
        penstock.convert(tmp_path / "set", tmp_path / "new")
    assert main(["doctor", str(tmp_path / "set")]) == 1
    assert f"camera {CAMERA!r}: 30 frames for the 32 rows" in capsys.readouterr().out


def test_frames_that_break_only_when_decoded_are_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video("mjpeg"))
    path = version21.video_path(source, 1)
    data = bytearray(path.read_bytes())
    from penstock._src.media.mp4.index import read_index

    index = read_index(path)
    data[int(index.offsets[4]) : int(index.offsets[4]) + 2] = b"\0\0"
    path.write_bytes(data)
    with pytest.raises(DataSetCorrupt, match=f"episode 1, camera '{CAMERA}'.*not a JPEG"):
        penstock.convert(source, tmp_path / "new", overrides=["rosbag.chunk_size=4"])
    assert not (tmp_path / "new").exists()
