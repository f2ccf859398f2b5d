"""Broken messages: left out, counted, named and visible in the exit code; never a placeholder, never a leaked frame."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.cameras.image_pass import UnusableImage
from penstock._src.conversion.inputs.columns import RecordingColumns, VectorColumn, VectorPart
from penstock._src.conversion.inputs.episode import whole_outages
from penstock._src.conversion.settings import TopicSource
from penstock.errors import AlignError, ImageError, PenstockError, RecordingCorrupt, RecordingError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, STATE, Jpeg, Text, change, cut_by, with_content

H, L = "observation.images.cam_h", "observation.images.cam_l"
WHOLE = bags.jpeg(7)


def huge() -> bytes:
    """A JPEG whose header claims 60,000 × 60,000 pixels."""
    at = WHOLE.index(b"\xff\xc0")
    return WHOLE[: at + 5] + struct.pack(">HH", 60_000, 60_000) + WHOLE[at + 9 :]


def hollow() -> bytes:
    """All markers of a JPEG from the first to the last, and no image between them."""
    scan = WHOLE.index(b"\xff\xda")
    return WHOLE[:scan] + b"\xff\xd9"


BROKEN = {
    "cut JPEG": Jpeg(WHOLE[: len(WHOLE) // 2]),
    "no JPEG at all": Jpeg(b"this is not an image"),
    "empty": Jpeg(b""),
    "60k × 60k header": Jpeg(huge()),
    "JPEG without a scan": Jpeg(hollow()),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("video", ["copy", "mjpeg", "images"])
def test_a_broken_image_of_the_timeline_costs_its_row(kind: str, video: str, tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_H, 12, with_content(BROKEN[kind]))
    bag = bags.write(tmp_path / "run.bag", tape)
    out = tmp_path / "out"
    # Few images are decoded for the statistics, so that the checks of the others have to find it.
    report = penstock.convert(bag, out, video=video, image_samples=30 if kind == "JPEG without a scan" else 2)
    assert report.exit_code == 3
    assert dict(report.lost) == {f"unusable message: {CAM_H}": 1}
    assert any(CAM_H in note and "12" in note for note in report.notes)
    good = [m.content.data for n, m in enumerate(bags.of(tape, CAM_H)) if n != 12]
    assert report.frames == len(good) == datasets.table(out).num_rows
    if video == "copy":
        assert datasets.samples(out, H) == good
        assert len(datasets.samples(out, L)) == len(good)
    if video == "images":
        assert [image["bytes"] for image in datasets.table(out).column(H).to_pylist()] == good
    assert datasets.problems(out, full=True) == []


@pytest.mark.parametrize("where", [0, 29])
def test_a_broken_image_at_either_end_is_left_out(where: int, tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_H, where, with_content(BROKEN["cut JPEG"]))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    good = [m.content.data for n, m in enumerate(bags.of(tape, CAM_H)) if n != where]
    assert datasets.samples(tmp_path / "out", H) == good
    assert report.lost_count == 1


def test_a_broken_image_of_another_camera_is_replaced_by_its_neighbour_and_counted(tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_L, 5, with_content(BROKEN["cut JPEG"]))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    stored = datasets.samples(tmp_path / "out", L)
    sent = [m.content.data for m in bags.of(tape, CAM_L)]
    assert stored[5] in (sent[4], sent[6])
    assert stored[:5] == sent[:5] and stored[6:] == sent[6:]
    assert dict(report.lost) == {f"unusable message: {CAM_L}": 1}
    assert report.frames == 30


def test_a_run_of_broken_images_is_a_gap_that_is_counted(tmp_path: Path) -> None:
    tape = bags.robot(1)
    for number in range(8, 18):
        tape = change(tape, CAM_L, number, with_content(BROKEN["cut JPEG"]))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert report.lost[f"unusable message: {CAM_L}"] == 10
    assert report.lost[f"gap:{L}"] == 30 - report.frames > 5
    broken = BROKEN["cut JPEG"].data
    assert broken not in datasets.samples(tmp_path / "out", L)
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("asked", [{"fps": 3}, {"stride": 10}, {"timeline": "fixed", "fps": 3}])
def test_an_outage_is_found_whole_where_rows_meet_few_of_its_images(asked: dict[str, object], tmp_path: Path) -> None:
    """A second of broken images, one row in ten: each pass alone would meet one or two of them."""
    tape = bags.robot(4)
    for number in range(20, 50):
        tape = change(tape, CAM_H, number, with_content(BROKEN["cut JPEG"]))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", **asked)
    assert report.lost[f"unusable message: {CAM_H}"] == 30
    assert report.frames >= 8 and BROKEN["cut JPEG"].data not in datasets.samples(tmp_path / "out", H)
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_a_message_that_two_features_need_is_lost_once(tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_H, 12, with_content(BROKEN["JPEG without a scan"]))
    features = {"observation.images.a": CAM_H, "observation.images.b": {"topic": CAM_H, "resize": [24, 32]}}
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", features=features)
    assert dict(report.lost) == {f"unusable message: {CAM_H}": 1}


@pytest.mark.parametrize("where", [0, 40])
def test_a_truncated_message_is_left_out_and_counted(where: int, tmp_path: Path) -> None:
    tape = change(bags.robot(1), STATE, where, cut_by(50))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", fps=100, timeline=STATE)
    assert dict(report.lost) == {f"unusable message: {STATE}": 1}
    sent = [m.content.position for n, m in enumerate(bags.of(tape, STATE)) if n != where]
    assert np.array_equal(datasets.values(tmp_path / "out", "observation.state"), np.float32(sent)[-report.frames :])
    assert report.frames >= len(sent) - 12  # the cameras end 33 ms earlier


def test_a_vector_that_changes_its_length_is_left_out_and_counted(tmp_path: Path) -> None:
    short = bags.Joints(("joint_0", "joint_1"), (0.5, 0.5))
    tape = change(bags.robot(1), STATE, 33, with_content(short))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", stride=1, timeline=STATE)
    assert report.lost[f"unusable message: {STATE}"] == 1
    assert any("joint_2" in note or "2 values" in note for note in report.notes)


def test_joints_in_another_order_within_a_message_keep_their_places(tmp_path: Path) -> None:
    tape = bags.robot(1)
    sent = [m.content.position for m in bags.of(tape, STATE)]
    turned = bags.Joints(("joint_3", "joint_2", "joint_1", "joint_0"), sent[33][::-1])
    bag = bags.write(tmp_path / "run.bag", change(tape, STATE, 33, with_content(turned)))
    report = penstock.convert(bag, tmp_path / "out", timeline=STATE)
    found = datasets.values(tmp_path / "out", "observation.state")
    assert report.exit_code == 0
    assert np.float32(sent[33]) in found and np.array_equal(found[:34], np.float32(sent[: len(found)])[:34])


@pytest.mark.parametrize("size", [{"width": 32}, {"height": 64}])
def test_a_image_of_another_size_stops_the_conversion_and_names_both(size: dict[str, int], tmp_path: Path) -> None:
    other = Jpeg(bags.jpeg(3, **size))
    bag = bags.write(tmp_path / "run.bag", change(bags.robot(1), CAM_L, 20, with_content(other)))
    with pytest.raises(ImageError) as caught:
        penstock.convert(bag, tmp_path / "out")
    text = str(caught.value)
    assert CAM_L in text and "20" in text and "64×48" in text
    assert f"{size.get('width', 64)}×{size.get('height', 48)}" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.bag"]


def test_a_png_among_jpegs_stops_the_conversion(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", change(bags.robot(1), CAM_L, 4, with_content(Jpeg(bags.png(4)))))
    with pytest.raises(ImageError, match=r"png 64×48.*jpeg 64×48"):
        penstock.convert(bag, tmp_path / "out")


def damaged_bag(path: Path, tape: list[bags.Message]) -> Path:
    """An lz4 bag with a flipped bit in the middle of one chunk."""
    bags.write(path, tape, compression="lz4", chunk_bytes=8 * 1024)
    data = bytearray(path.read_bytes())
    starts = [at for at in range(len(data) - 15) if data[at : at + 15] == b"compression=lz4"]
    assert len(starts) > 6
    middle = starts[3] + 2000
    for at in range(middle, middle + 40):
        data[at] ^= 0xA5
    path.write_bytes(data)
    return path


def test_a_damaged_chunk_is_counted_and_the_rest_is_converted(tmp_path: Path) -> None:
    tape = bags.robot(1)
    report = penstock.convert(damaged_bag(tmp_path / "run.bag", tape), tmp_path / "out")
    assert report.exit_code == 3 and report.lost_count > 0
    assert 15 < report.frames < 30
    sent = {m.content.data for m in bags.of(tape, CAM_H)}
    stored = datasets.samples(tmp_path / "out", H)
    assert set(stored) < sent and len(set(stored)) == len(stored)
    assert any("lost" in note for note in report.notes)
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_strict_stops_at_a_damaged_chunk(tmp_path: Path) -> None:
    bag = damaged_bag(tmp_path / "run.bag", bags.robot(1))
    with pytest.raises(RecordingCorrupt):
        penstock.convert(bag, tmp_path / "out", strict=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [{"strict": True}, {"bad_messages": "reject"}])
def test_strict_stops_at_a_broken_image_and_leaves_nothing(asked: dict[str, object], tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_H, 12, with_content(BROKEN["cut JPEG"]))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(RecordingError, match=CAM_H):
        penstock.convert(bag, tmp_path / "out", **asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.bag"]


def test_strict_stops_where_rows_would_be_lost_but_not_where_ends_are_trimmed(tmp_path: Path) -> None:
    cameras = bags.camera(CAM_H, bags.times(30, 1))
    late = bags.joints(STATE, bags.times(100, 0.6, offset_s=0.2))
    holed = [m for m in bags.joints(STATE, bags.times(100, 1)) if not 400 < (m.time_ns - bags.START_NS) / 1e6 < 700]
    report = penstock.convert(bags.write(tmp_path / "late.bag", cameras + late), tmp_path / "late", strict=True)
    assert report.exit_code == 0 and report.frames < 30
    with pytest.raises(AlignError, match="rows find no message"):
        penstock.convert(bags.write(tmp_path / "holed.bag", cameras + holed), tmp_path / "holed", strict=True)
    counted = penstock.convert(tmp_path / "holed.bag", tmp_path / "holed")
    assert counted.exit_code == 3 and counted.lost["gap:observation.state"] == 30 - counted.frames


def test_a_recording_that_fails_leaks_no_frame_into_the_next_episode(tmp_path: Path) -> None:
    """The second of three episodes meets a broken image late in its pass; its first try must leave no trace."""
    tapes = [bags.robot(1, seed=seed) for seed in range(3)]
    tapes[1] = change(tapes[1], CAM_H, 25, with_content(BROKEN["cut JPEG"]))
    sources = [bags.write(tmp_path / f"{n}.bag", tape) for n, tape in enumerate(tapes)]
    report = penstock.convert(sources, tmp_path / "out", rosbag={"chunk_size": 5})
    expected = [m.content.data for tape in tapes for m in bags.of(tape, CAM_H) if m.content != BROKEN["cut JPEG"]]
    assert datasets.samples(tmp_path / "out", H) == expected
    assert [e["length"] for e in datasets.episodes(tmp_path / "out")] == [30, 29, 30]
    assert report.episodes == 3 and report.frames == 89
    assert datasets.table(tmp_path / "out").column("index").to_pylist() == list(range(89))
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_a_broken_image_in_a_split_recording_moves_no_committed_row(tmp_path: Path) -> None:
    tape = change(bags.robot(1), CAM_H, 17, with_content(BROKEN["cut JPEG"]))
    bag = bags.write(tmp_path / "run.bag", tape)
    penstock.convert(bag, tmp_path / "out", split_episodes=True, rosbag={"chunk_size": 10})
    good = [m.content.data for n, m in enumerate(bags.of(tape, CAM_H)) if n != 17]
    assert datasets.samples(tmp_path / "out", H) == good
    assert [e["length"] for e in datasets.episodes(tmp_path / "out")] == [10, 10, 9]


def test_a_camera_of_nothing_but_rubbish_is_refused_with_a_reason(tmp_path: Path) -> None:
    tape = bags.messages(CAM_H, bags.times(30, 1), lambda n: Jpeg(b"rubbish")) + bags.joints(STATE, bags.times(50, 1))
    with pytest.raises(ImageError, match=f"{CAM_H} has no usable image"):
        penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")


def test_values_that_are_no_numbers_are_kept_named_and_left_out_of_the_statistics(tmp_path: Path) -> None:
    odd = bags.Joints(("joint_0", "joint_1", "joint_2", "joint_3"), (float("nan"), float("inf"), 1e300, 0.0))
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.joints(STATE, bags.times(30, 1))
    bag = bags.write(tmp_path / "run.bag", change(tape, STATE, 10, with_content(odd)))
    report = penstock.convert(bag, tmp_path / "out")
    row = datasets.values(tmp_path / "out", "observation.state")[10]
    assert np.isnan(row[0]) and np.isinf(row[1]) and row[3] == 0
    text = "\n".join(report.notes)
    assert "joint_0" in text and "nan" in text and "joint_1" in text and "joint_2" in text
    stats = (tmp_path / "out/meta/stats.json").read_text()
    assert "NaN" not in stats and "Infinity" not in stats


def test_whole_numbers_are_refused_where_the_values_are_none(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.joints(STATE, bags.times(30, 1))
    bag = bags.write(tmp_path / "run.bag", tape)
    features = {"observation.images.h": CAM_H, "observation.state": {"topic": STATE, "dtype": "int64"}}
    with pytest.raises(PenstockError, match="int64"):
        penstock.convert(bag, tmp_path / "out", features=features)
    features["observation.state"]["scale"] = 0.0
    penstock.convert(bag, tmp_path / "out", features=features)
    assert datasets.table(tmp_path / "out").column("observation.state").to_pylist()[0] == [0, 0, 0, 0]


def test_every_episode_may_have_its_broken_images(tmp_path: Path) -> None:
    """The number of tries is for one episode: a long recording may have a broken image in each of them."""
    tape = bags.robot(12)
    for episode in range(12):
        tape = change(tape, CAM_H, 10 + 30 * episode, with_content(Jpeg(b"no image")))
    bag = bags.write(tmp_path / "run.bag", tape)
    report = penstock.convert(bag, tmp_path / "out", split_episodes=True, rosbag={"chunk_size": 29})
    assert dict(report.lost) == {f"unusable message: {CAM_H}": 12}
    assert report.frames == 348
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_images_that_only_decoding_finds_broken_cost_one_more_pass(tmp_path: Path) -> None:
    """PNGs that are whole by their ends: all of them are found in one pass, not one per pass."""
    whole = bags.png(3)
    at = whole.index(b"IDAT") + 4
    spoiled = Jpeg(whole[:at] + bytes(20) + whole[at + 20 :], "png")
    tape = bags.messages(CAM_H, bags.times(30, 40), lambda n: Jpeg(bags.png(3), "png"))
    tape += bags.joints(STATE, bags.times(50, 40))
    for number in range(30, 1200, 60):
        tape = change(tape, CAM_H, number, with_content(spoiled))
    bag = bags.write(tmp_path / "run.bag", tape)
    report = penstock.convert(bag, tmp_path / "out", image_samples=2, rosbag={"chunk_size": 20})
    assert dict(report.lost) == {f"unusable message: {CAM_H}": 20}
    assert report.frames == 1180
    assert sum("unusable messages left out" in note for note in report.notes) == 1


def test_a_long_outage_takes_time_in_proportion(tmp_path: Path) -> None:
    """20,000 broken messages in a row: walking over all of them from each of them would take minutes."""
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.messages("/log", bags.times(20_000, 1), lambda n: Text("x"))
    with recordings.open(bags.write(tmp_path / "run.bag", tape)) as recording:
        topic = recording.topic("/log")
        found = [UnusableImage(topic.id, topic.name, number, "broken") for number in range(topic.count)]
        part = VectorPart("log", TopicSource("/log"), topic, None, 1)  # type: ignore[arg-type]
        began = time.thread_time()  # its own: others use this machine, too
        outages = whole_outages(
            recording, RecordingColumns((), (VectorColumn("log", "float32", (part,), ("x",)),)), found, {}
        )
    assert [bad.number for bad in outages] == list(range(20_000))
    assert time.thread_time() - began < 20
