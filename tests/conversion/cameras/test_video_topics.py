"""Streams of H.264 and H.265: moved as they are where that is possible, else decoded, and never shown with damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.media.mp4.index import read_index
from penstock.errors import ImageError, PenstockError, RecordingError
from tests.conversion import bags, datasets, video_bags
from tests.conversion.video_bags import CAM, FFMPEG, FOXGLOVE, packets, with_data, without
from tests.media import streams
from tests.media.images import psnr_db

KEY = "observation.images.cam"
CODECS = ("h264", "h265")


def convert(tmp_path: Path, tape: Sequence[video_bags.Packet], *, suffix: str = ".bag", **options: Any) -> Any:
    seconds = (tape[-1].time_ns - bags.START_NS) / bags.SECOND + 0.1
    recording = video_bags.write(
        tmp_path / f"run{suffix}", tape, bags.joints("/joint_states", bags.times(100, seconds))
    )
    return penstock.convert(recording, tmp_path / "out", **options)


def frames(tmp_path: Path) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for file in datasets.video_files(tmp_path / "out", KEY):
        found += streams.file_frames(file)
    return found


def note_of(report: Any) -> str:
    (note,) = [note for note in report.notes if f"{KEY}: H.26" in note]
    return note


def same(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


def alike(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    """The same images, encoded once more: each is nearer to its own than to its neighbours."""
    return len(left) == len(right) and all(psnr_db(a, b) > 24 for a, b in zip(left, right, strict=True))


# Moved as they are


@pytest.mark.parametrize("suffix", [".bag", ".mcap"])
@pytest.mark.parametrize(("type_name", "word"), [(FOXGLOVE, ""), (FFMPEG, ";yuv420p;bgr8")])
@pytest.mark.parametrize("codec", CODECS)
def test_a_steady_stream_is_moved_as_it_is(codec: str, type_name: str, word: str, suffix: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, 30)
    report = convert(tmp_path, packets(sent, codec + word, type=type_name), suffix=suffix)
    assert (report.exit_code, report.frames) == (0, 30)
    assert note_of(report).endswith(f"{KEY}: H.{codec[1:]} video moved as it is")
    assert same(frames(tmp_path), streams.decoded(codec, sent))
    index = read_index(datasets.video_files(tmp_path / "out", KEY)[0])
    assert index.key.tolist() == [number % 10 == 0 for number in range(30)]
    assert sum(index.sizes.tolist()) < sum(map(len, sent))  # without the parameter sets, which lie in the index
    feature = datasets.info(tmp_path / "out")["features"][KEY]
    expected = {"video.codec": "h264" if codec == "h264" else "hevc", "video.pix_fmt": "yuv420p", "video.fps": 30}
    assert {name: feature["info"][name] for name in expected} == expected
    assert feature["shape"] == [48, 64, 3]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_the_statistics_come_from_decoded_images(tmp_path: Path) -> None:
    sent = streams.stream("h264", 30)
    convert(tmp_path, packets(sent), image_samples=30)
    stats = datasets.episodes(tmp_path / "out")[0]
    shown = np.stack(streams.decoded("h264", sent)).reshape(-1, 3) / 255
    assert np.allclose(np.ravel(stats[f"stats/{KEY}/mean"]), shown.mean(axis=0), atol=1e-6)
    assert np.allclose(np.ravel(stats[f"stats/{KEY}/max"]), shown.max(axis=0))


@pytest.mark.parametrize("codec", CODECS)
def test_parameter_sets_may_come_once_or_with_every_image(codec: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, 20)
    heads = b"".join(b"\0\0\0\1" + unit for unit in parameter_sets(codec, sent[0]))
    repeated = [heads + piece for piece in sent]
    report = convert(tmp_path, packets(repeated, codec))
    assert "moved as it is" in note_of(report)
    assert same(frames(tmp_path), streams.decoded(codec, sent))


@pytest.mark.parametrize("codec", CODECS)
def test_a_decoder_that_starts_later_knows_the_sets_that_came_once(codec: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, 30, crf=10)
    heads = parameter_sets(codec, sent[0])
    once = [sent[0], *(without_units(piece, heads) for piece in sent[1:])]
    options: dict[str, Any] = {"split_episodes": True, "rosbag": {"chunk_size": 15}, "encoding": {"crf": 10}}
    report = convert(tmp_path, packets(once, codec), **options)
    assert "(1 of 2 episodes)" in note_of(report) and report.exit_code == 0
    assert alike(frames(tmp_path), streams.decoded(codec, sent))


def without_units(packet: bytes, units: Sequence[bytes]) -> bytes:
    from penstock._src.media.h26x.nal import annex_b, nal_units

    return annex_b(unit for unit in nal_units(packet) if unit not in units)


def parameter_sets(codec: str, packet: bytes) -> list[bytes]:
    from penstock._src.media.h26x import h264, h265
    from penstock._src.media.h26x.nal import nal_units

    module = h264 if codec == "h264" else h265
    return [unit for unit in nal_units(packet) if module.unit_type(unit) in module.PARSERS]


# Decoded and encoded again


@pytest.mark.parametrize("time", ["log", "header"])
@pytest.mark.parametrize("codec", CODECS)
def test_images_that_are_sent_out_of_order_are_shown_in_order(codec: str, time: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, 30, b_frames=3, crf=10)
    stamps = [bags.START_NS + round(n / 30 * bags.SECOND) for n in order_shown(codec, sent)]
    report = convert(tmp_path, packets(sent, codec, type=FFMPEG, stamps_ns=stamps), time=time, encoding={"crf": 10})
    why = "B-frames" if time == "log" else "B-frames|goes back|leave out"
    assert pytest.approx(30, abs=1) == report.frames and any(word in note_of(report) for word in why.split("|"))
    assert alike(frames(tmp_path), streams.decoded(codec, sent)[: report.frames])


def order_shown(codec: str, sent: Sequence[bytes]) -> list[int]:
    """For each packet, when its image is shown."""
    import av

    context: Any = av.CodecContext.create(streams.DECODER[codec], "r")
    shown = []
    for number, data in enumerate(sent):
        packet = av.Packet(data)
        packet.pts = number
        shown += [frame.pts for frame in context.decode(packet)]
    shown += [frame.pts for frame in context.decode(None)]
    return [shown.index(number) for number in range(len(sent))]


@pytest.mark.parametrize("time", ["log", "header"])
@pytest.mark.parametrize("codec", CODECS)
def test_episodes_and_strides_of_such_streams_show_the_right_images(codec: str, time: str, tmp_path: Path) -> None:
    """H.265 with open groups: the first images of a group are predicted from the group before."""
    sent = streams.stream(codec, 40, b_frames=3, crf=10)
    stamps = [bags.START_NS + round(n / 30 * bags.SECOND) for n in order_shown(codec, sent)]
    tape = packets(sent, codec, type=FFMPEG, stamps_ns=stamps, jitter_s=0.0)
    options: dict[str, Any] = {"time": time, "encoding": {"crf": 10}, "features": {KEY: CAM}}
    expected = streams.decoded(codec, sent)
    for number, (asked, kept) in enumerate(
        [({"split_episodes": True, "rosbag": {"chunk_size": 13}}, slice(None)), ({"stride": 13}, slice(None, None, 13))]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = convert(folder, tape, **options, **asked)
        assert report.exit_code == 0
        assert alike(frames(folder), expected[kept])


ASKED = [
    ({"stride": 2}, "leave out messages", slice(None, None, 2)),
    ({"video": "h264", "encoding": {"crf": 10}}, "video=h264", slice(None)),
    ({"video": "mjpeg"}, "video=mjpeg", slice(None)),
    ({"sample_drop": 3}, "between two key frames", slice(3, -3)),
]


@pytest.mark.parametrize(("asked", "why", "kept"), ASKED, ids=[why for _, why, _ in ASKED])
def test_what_cannot_be_moved_is_encoded_again_and_the_report_says_why(
    asked: dict[str, Any], why: str, kept: slice, tmp_path: Path
) -> None:
    sent = streams.stream("h264", 30, crf=10)
    report = convert(tmp_path, packets(sent), **{"encoding": {"crf": 10}, **asked})
    assert report.exit_code == 0 and why in note_of(report)
    assert alike(frames(tmp_path), streams.decoded("h264", sent)[kept])
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("b_frames", [0, 3])
@pytest.mark.parametrize("chunk_size", [1000, 7])
def test_images_can_lie_in_the_table(b_frames: int, chunk_size: int, tmp_path: Path) -> None:
    sent = streams.stream("h264", 30, b_frames=b_frames)
    convert(tmp_path, packets(sent), video="images", rosbag={"chunk_size": chunk_size}, encoding={"quality": 98})
    from penstock._src.media.image.codec import decode

    stored = [decode(each["bytes"]) for each in datasets.table(tmp_path / "out").column(KEY).to_pylist()]
    assert alike(stored, streams.decoded("h264", sent))


def test_a_slow_camera_is_repeated_and_a_resized_one_is_encoded(tmp_path: Path) -> None:
    sent = streams.stream("h264", 20, crf=10)
    tape = packets(sent, fps=15)
    others = [*bags.camera("/other/compressed", bags.times(30, 20 / 15))]
    recording = video_bags.write(tmp_path / "run.bag", tape, others)
    features = {KEY: {"topic": CAM, "resize": [24, 32]}, "observation.images.other": "/other/compressed"}
    report = penstock.convert(
        recording, tmp_path / "out", features=features, timeline="/other/compressed", encoding={"crf": 10}
    )
    assert "resized" in note_of(report)
    shown = frames(tmp_path)
    assert shown[0].shape == (24, 32, 3) and len(shown) == report.frames >= 38


@pytest.mark.parametrize("codec", CODECS)
def test_every_episode_is_judged_by_itself(codec: str, tmp_path: Path) -> None:
    """Cut after 10 and 20 rows the episodes begin with key frames; cut after 15 one does not, and loses nothing."""
    sent = streams.stream(codec, 30, crf=10)
    expected = streams.decoded(codec, sent)
    report = convert(tmp_path, packets(sent, codec), split_episodes=True, rosbag={"chunk_size": 10})
    assert report.episodes == 3 and "moved as it is" in note_of(report)
    assert same(frames(tmp_path), expected)
    cut = tmp_path / "cut"
    cut.mkdir()
    report = convert(cut, packets(sent, codec), split_episodes=True, rosbag={"chunk_size": 15}, encoding={"crf": 10})
    assert "message 15, between two key frames (the one before is 10)" in note_of(report)
    assert "(1 of 2 episodes)" in note_of(report)
    assert same(frames(cut)[:15], expected[:15]) and alike(frames(cut), expected)
    assert datasets.problems(cut / "out", full=True) == []


def test_parameter_sets_that_change_are_not_moved(tmp_path: Path) -> None:
    sent = streams.stream("h264", 10, crf=10) + streams.stream("h264", 10, first=10, crf=10, more="cabac=0")
    report = convert(tmp_path, packets(sent), encoding={"crf": 10})
    assert "parameter sets change at message 10" in note_of(report)
    assert alike(frames(tmp_path), streams.decoded("h264", sent))


# Losses


def test_messages_before_the_first_key_frame_are_counted(tmp_path: Path) -> None:
    sent = streams.stream("h264", 34)[4:]
    report = convert(tmp_path, packets(sent))
    assert dict(report.lost) == {f"unusable message: {CAM}": 6}
    assert report.exit_code == 3 and report.frames == 24
    assert any("comes before the first key frame" in note for note in report.notes)
    assert "moved as it is" in note_of(report)
    assert same(frames(tmp_path), streams.decoded("h264", sent[6:]))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("video", ["copy", "mjpeg"])
def test_a_image_that_the_network_lost_costs_the_rest_of_its_group(codec: str, video: str, tmp_path: Path) -> None:
    """Without message 14 nothing up to the key frame 20 can be decoded: in the recording those are 14 to 18."""
    sent = streams.stream(codec, 30, crf=10)
    report = convert(tmp_path, without(packets(sent, codec), 14), video=video, encoding={"crf": 10, "quality": 98})
    assert report.lost[f"unusable message: {CAM}"] == 5
    assert report.exit_code == 3
    expected = streams.decoded(codec, sent)
    shown = frames(tmp_path)
    assert len(shown) == report.frames == len(datasets.table(tmp_path / "out"))
    truth = [min(range(30), key=lambda n: -psnr_db(expected[n], rgb)) for rgb in shown]
    assert not set(truth) & set(range(14, 20)) and set(truth) == {*range(14), *range(20, 30)}
    assert all(psnr_db(expected[n], rgb) > 24 for n, rgb in zip(truth, shown, strict=True))
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("number", [10, 14])
def test_a_cut_packet_is_found_and_its_group_is_lost(codec: str, number: int, tmp_path: Path) -> None:
    sent = streams.stream(codec, 30, crf=10, width=128, height=96)
    tape = with_data(packets(sent, codec), number, sent[number][: len(sent[number]) * 2 // 3])
    report = convert(tmp_path, tape, encoding={"crf": 10})
    assert report.lost[f"unusable message: {CAM}"] == 20 - number
    assert any(f"message {number}: " in note for note in report.notes)
    expected = streams.decoded(codec, sent)
    whole = [n for n in range(30) if not number <= n < 20]
    for rgb in frames(tmp_path):
        assert max(psnr_db(expected[n], rgb) for n in whole) > 24


@pytest.mark.parametrize("cpus", [1, 2, 16, 64])
def test_a_stream_that_may_reorder_and_does_not_loses_only_the_rest_of_its_group(
    cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its decoder is fed by whole groups, which must not bring the damaged message back; with many CPUs all at once."""
    monkeypatch.setattr("penstock._src.conversion.job.read_cpu_limit", lambda: type("Cpus", (), {"count": cpus}))
    sent = streams.stream("h264", 30, gop=4, b_frames=1, crf=10, more="b-adapt=1")
    tape = with_data(packets(sent), 6, sent[6][: len(sent[6]) // 2])
    report = convert(tmp_path, tape, encoding={"crf": 10})
    assert dict(report.lost) == {f"unusable message: {CAM}": 2}
    assert report.frames >= 28


def test_many_damaged_groups_are_found_in_one_pass(tmp_path: Path) -> None:
    """More than the passes that are tried: each group of five has a cut image."""
    sent = streams.stream("h264", 60, gop=5, crf=10)
    tape = packets(sent)
    for number in range(3, 60, 5):
        tape = with_data(tape, number, sent[number][: len(sent[number]) // 2])
    report = convert(tmp_path, tape, encoding={"crf": 10}, tolerance="500ms")
    assert report.lost[f"unusable message: {CAM}"] == 24


def test_a_truncated_message_and_rubbish_are_lost_with_what_depends_on_them(tmp_path: Path) -> None:
    from dataclasses import replace

    tape = packets(streams.stream("h264", 30))
    tape[7] = replace(tape[7], cut=20)
    tape[18] = replace(tape[18], data=b"this is not an image")
    report = convert(tmp_path, tape)
    assert report.lost[f"unusable message: {CAM}"] == 3 + 2
    assert any("message 7: " in note for note in report.notes)


def test_a_damaged_chunk_is_counted_once_with_what_depends_on_it(tmp_path: Path) -> None:
    """The recording counts its own loss, the stream what cannot be decoded without it."""
    sent = streams.stream("h264", 30, crf=10)
    recording = video_bags.write(tmp_path / "run.mcap", packets(sent))
    data = bytearray(recording.read_bytes())
    data[data.index(sent[14][:40]) + 30] ^= 0x10
    recording.write_bytes(data)
    report = penstock.convert(recording, tmp_path / "out", encoding={"crf": 10}, tolerance="1s")
    unread = sum(count for cause, count in report.lost.items() if "unusable" not in cause)
    assert 1 <= unread < 15 and report.exit_code == 3
    assert report.lost_count == len(lost := {*range(30)} - set(shown_numbers(tmp_path, sent))) >= 20 - 14
    assert max(lost) == 19


def shown_numbers(tmp_path: Path, sent: Sequence[bytes]) -> list[int]:
    """Which image of the stream every row shows."""
    expected = streams.decoded("h264", list(sent))
    return [min(range(len(expected)), key=lambda n: -psnr_db(expected[n], rgb)) for rgb in frames(tmp_path)]


@pytest.mark.parametrize("codec", CODECS)
def test_out_of_order_streams_lose_the_whole_group(codec: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, 30, b_frames=3, crf=10, more="" if codec == "h264" else "open-gop=0")
    tape = with_data(packets(sent, codec), 15, b"\0\0\1\xff")
    report = convert(tmp_path, tape, encoding={"crf": 10}, tolerance="1s")
    assert report.lost[f"unusable message: {CAM}"] == 10
    expected = streams.decoded(codec, sent)
    for rgb in frames(tmp_path):
        assert max(psnr_db(expected[n], rgb) for n in (*range(10), *range(20, 30))) > 24


def test_strict_refuses_what_would_be_lost(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"6 unusable messages, the first: /cam/video: message 0: comes before"):
        convert(tmp_path, packets(streams.stream("h264", 34)[4:]), strict=True)


# Refused


def test_a_stream_without_any_key_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"/cam/video: none of its 9 messages holds a whole key frame"):
        convert(tmp_path, packets(streams.stream("h264", 10)[1:]))


def test_a_size_that_changes_is_refused_with_both_sizes(tmp_path: Path) -> None:
    sent = streams.stream("h264", 10) + streams.stream("h264", 10, width=96, height=64)
    with pytest.raises(ImageError, match=r"/cam/video: message 10 is h264 96×64, the first was 64×48"):
        convert(tmp_path, packets(sent))


def test_another_codec_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"its video is 'vp9', and only H.264 and H.265 are read"):
        convert(tmp_path, packets(streams.stream("h264", 10), "vp9"))


def test_rubbish_streams_end_in_our_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pieces = [b"\0\0\0\1" + rng.bytes(60) for _ in range(20)]
    with pytest.raises(PenstockError):
        convert(tmp_path, packets(pieces))


# Clocks and twins


def test_the_stamp_of_foxglove_messages_is_their_header_time(tmp_path: Path) -> None:
    from penstock import recordings

    tape = packets(streams.stream("h264", 10), stamps_ns=[bags.START_NS + n * 40_000_000 for n in range(10)])
    for suffix in (".bag", ".mcap"):
        with recordings.open(video_bags.write(tmp_path / f"stamps{suffix}", tape)) as recording:
            stamps = recording.header_times_ns(recording.topic(CAM)).tolist()
        assert stamps == [bags.START_NS + n * 40_000_000 for n in range(10)]
    report = convert(tmp_path, tape, time="header", features={KEY: CAM})
    assert report.fps == 25 and "moved as it is" in note_of(report)


def test_a_video_twin_of_a_image_topic_is_left_out(tmp_path: Path) -> None:
    tape = packets(streams.stream("h264", 30), topic="/cam/image_raw/ffmpeg", type=FFMPEG)
    others = bags.camera("/cam/image_raw/compressed", bags.times(30, 1))
    report = penstock.convert(video_bags.write(tmp_path / "run.bag", tape, others), tmp_path / "out")
    assert report.features[KEY]["topics"] == ["/cam/image_raw/compressed"]
    assert any("video twins" in note and "/cam/image_raw/ffmpeg" in note for note in report.notes)
