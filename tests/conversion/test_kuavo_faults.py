"""What Kuavo's own converter does silently: depth without its scale, rows without a stream, a failed bag that leaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import penstock
from penstock._src.conversion import kuavo
from penstock._src.conversion.report import NoProgress
from penstock._src.demo.kuavo import KuavoScript, definition, write_kuavo_recording
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.recordings.ros1.writer import BagWriter
from penstock.errors import AlignError
from tests.conversion import kuavo_oracle as oracle
from tests.lerobot import reading

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "compat" / "configs" / "data"
HEAD = "/cam_h/color/image_raw/compressed"


def record(path: Path, **changes: Any) -> Path:
    write_kuavo_recording(path, KuavoScript(**{"seconds": 1.5, "width": 64, "height": 48, **changes}))
    return path


def convert(out: Path, *words: str, keep_going: bool = False, **how: Any) -> penstock.Report:
    keys = [f"rosbag.lerobot_dir={out}", "dataset.resize=null", "dataset.sample_drop=2"]
    job = kuavo.arguments(CONFIGURATIONS, "KuavoRosbag2Lerobot", [*keys, *words])
    return penstock.convert(list(job.sources), job.out, keep_going=keep_going, **how, **job.values)


def contents(out: Path) -> dict[str, bytes]:
    """All files but the journal and report."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(out)): path.read_bytes() for path in files if "penstock" not in path.relative_to(out).parts
    }


# Depth


def _depth_images(bag: Path, topic: str) -> list[np.ndarray]:
    recorded = oracle.read(bag)
    messages = recorded.nearest(topic, oracle.row_times(recorded, drop=2))
    return [cv2.imdecode(np.asarray(message.data)[12:], cv2.IMREAD_UNCHANGED) for message in messages]


def test_depth_keeps_its_millimetres(tmp_path: Path) -> None:
    bag = record(tmp_path / "run.bag", depth=True)
    report = convert(tmp_path / "out", f"rosbag.rosbag_dir={bag}", "dataset.use_depth=true", "dataset.which_arm=left")
    data = open_data_set(tmp_path / "out")
    topics = {"h": "/cam_h/depth/image_raw/compressedDepth", "l": "/cam_l/depth/image_rect_raw/compressedDepth"}
    assert [key for key in report.features if "depth" in key] == ["observation.depth_h", "observation.depth_l"]
    for camera, topic in topics.items():
        stored = reading.depth(data, f"observation.depth_{camera}", 0, report.frames)
        assert stored.dtype == np.uint16
        np.testing.assert_array_equal(stored, np.stack(_depth_images(bag, topic)))
    assert stored.max() > 1500  # depth_range is a range for 8 bits, and cuts nothing here


def test_eight_bits_have_one_range_for_all_images(tmp_path: Path) -> None:
    bag = record(tmp_path / "run.bag", depth=True)
    words = ("dataset.use_depth=true", "dataset.which_arm=left", "depth=8bit", "dataset.depth_range=[300,1200]")
    report = convert(tmp_path / "out", f"rosbag.rosbag_dir={bag}", *words, "video=images")
    assert report.features["observation.depth_h"]["depth_range_mm"] == [300.0, 1200.0]
    assert json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["features"]["observation.depth_h"]


# Rows that lack a stream


def test_rows_without_a_stream_are_counted_and_not_skipped_in_silence(tmp_path: Path) -> None:
    bag = record(tmp_path / "run.bag", seconds=3.0, silent=("/leju_claw_state", 1.0, 2.0))
    report = convert(tmp_path / "out", f"rosbag.rosbag_dir={bag}")
    recorded = oracle.read(bag)
    rows = oracle.row_times(recorded, drop=2)
    gaps = np.abs(recorded.times["/leju_claw_state"][None, :] - rows[:, None]).min(axis=1)
    lost = int(np.count_nonzero(gaps > 150_000_000))  # 1.5 row periods
    assert 0 < lost == report.lost_count == len(rows) - report.frames
    assert report.exit_code == 3
    with pytest.raises(AlignError, match="leju_claw_state"):
        convert(tmp_path / "strict", f"rosbag.rosbag_dir={bag}", "missing=reject")
    held = convert(tmp_path / "held", f"rosbag.rosbag_dir={bag}", "missing=hold")
    assert (held.frames, held.lost_count) == (len(rows), 0)


# A recording that fails


def rewritten(bag: Path, path: Path, change: Callable[[str, int, bytes], bytes]) -> Path:
    """The same bag with other messages."""
    from rosbags.rosbag1 import Reader

    with Reader(bag) as reader, BagWriter(path) as writer:
        kinds = {connection.topic: connection.msgtype.replace("/msg/", "/") for connection in reader.connections}
        ids = {topic: writer.add_topic(topic, kind, definition(kind), "*") for topic, kind in kinds.items()}
        numbers = dict.fromkeys(ids, 0)
        for connection, time_ns, raw in reader.messages():
            changed = change(connection.topic, numbers[connection.topic], bytes(raw))
            writer.write(ids[connection.topic], time_ns, changed)
            numbers[connection.topic] += 1
    return path


def test_a_failed_recording_leaves_nothing_in_the_next_episode(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    first, last = record(good / "a.bag"), record(good / "c.bag", seed=2)
    other = record(tmp_path / "other.bag", width=96, height=64)
    with_other_size: dict[int, bytes] = {}
    rewritten(
        other,
        tmp_path / "unused.bag",
        lambda topic, number, raw: with_other_size.setdefault(number, raw) if topic == HEAD else raw,
    )
    everything = tmp_path / "everything"
    everything.mkdir()
    for bag in (first, last):
        (everything / bag.name).hardlink_to(bag)
    # Rows 0 to 9 are written before the image that makes it fail.
    rewritten(
        first,
        everything / "b.bag",
        lambda topic, number, raw: with_other_size[number] if topic == HEAD and number > 30 else raw,
    )
    words = ("rosbag.chunk_size=3",)
    report = convert(tmp_path / "all", f"rosbag.rosbag_dir={everything}", *words, keep_going=True)
    assert [Path(path).name for path in report.failed] == ["b.bag"]
    assert (report.episodes, report.exit_code) == (2, 3)
    alone = convert(tmp_path / "alone", f"rosbag.rosbag_dir={good}", *words)
    assert alone.exit_code == 0
    assert contents(tmp_path / "all") == contents(tmp_path / "alone")


# Killed and resumed


class _Unplugged(Exception):
    pass


class _Plug(NoProgress):
    """Pulls the plug when so much has been read."""

    def __init__(self, share: float) -> None:
        self._share = share

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        if done_bytes > self._share * total_bytes:
            raise _Unplugged


@pytest.mark.parametrize("share", [0.3, 0.75])
def test_relative_values_are_the_same_after_a_resume(tmp_path: Path, share: float) -> None:
    bags = tmp_path / "bags"
    bags.mkdir()
    for seed in range(2):
        record(bags / f"{seed}.bag", seed=seed)
    relative = ("dataset.delta_action=true", "dataset.relative_start=true")
    words = (f"rosbag.rosbag_dir={bags}", "rosbag.chunk_size=2", *relative)
    convert(tmp_path / "whole", *words)
    with pytest.raises(_Unplugged):
        convert(tmp_path / "out", *words, progress=_Plug(share), jobs=1)
    convert(tmp_path / "out", *words, resume=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    data = open_data_set(tmp_path / "out")
    rows = reading.rows(data, ["observation.state", "action", "frame_index"], 0, data.info.total_frames)
    starts = np.flatnonzero(np.asarray(rows["frame_index"]).reshape(-1) == 0)
    assert len(starts) == 2
    arms = [*range(7), *range(8, 15)]
    assert np.all(np.asarray(rows["observation.state"])[starts][:, arms] == 0)
    assert np.all(np.asarray(rows["action"])[starts][:, arms] == 0)
    assert np.abs(np.asarray(rows["action"])[:, arms]).max() > 0.001


@pytest.mark.parametrize("kept", [0, 4200, 0.6], ids=["empty", "no topics", "cut"])
def test_a_broken_first_recording_does_not_settle_the_robot(kept: float, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    bags = [record(tmp_path / "in" / f"run_{number}.bag") for number in (1, 2, 3)]
    words = (f"rosbag.rosbag_dir={tmp_path / 'in'}",)
    whole = kuavo.arguments(CONFIGURATIONS, "KuavoRosbag2Lerobot", [*words, f"rosbag.lerobot_dir={tmp_path / 'x'}"])
    data = bags[0].read_bytes()
    bags[0].write_bytes(data[: int(kept if kept > 1 else kept * len(data))])
    job = kuavo.arguments(CONFIGURATIONS, "KuavoRosbag2Lerobot", [*words, f"rosbag.lerobot_dir={tmp_path / 'x'}"])
    assert job.values == whole.values
    report = convert(tmp_path / "out", *words, keep_going=True)
    assert report.exit_code == 3 and report.episodes >= 2
