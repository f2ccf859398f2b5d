"""mcap files of foxglove's messages, as protobuf and as JSON: converted, inspected, checked, recovered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.check import check_recording
from penstock.errors import SchemaError
from tests.conversion import bags, datasets
from tests.media import streams
from tests.recordings.messages.proto import FOXGLOVE, Entry, stamp, write_json, write_protobuf

ROWS = 30
TIMES = bags.times(30, 1.0)
CAM, RAW = "observation.images.cam", "observation.images.raw"
WRITERS: dict[str, Callable[..., Path]] = {"protobuf": write_protobuf, "json": write_json}


def pose(number: int) -> dict[str, Any]:
    return {
        "position": {"x": number + 0.25, "y": 0.0, "z": -1.0},
        "orientation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0},
    }


def robot(late_ns: int = 0) -> list[Entry]:
    """Two cameras, a pose, joints that change their order, and a place; stamped `late_ns` before they are received."""
    found = []
    for number, time_ns in enumerate(TIMES):
        time = {"timestamp": stamp(time_ns - late_ns)}
        joints = [{"name": name, "position": number + place / 10} for place, name in enumerate("abc")]
        pixels = bags.image(number)
        contents: dict[str, tuple[str, dict[str, Any]]] = {
            "/cam/image": ("CompressedImage", {"data": bags.jpeg(number), "format": "jpeg", "frame_id": "c"}),
            "/raw/image": ("RawImage", {"width": 64, "height": 48, "encoding": "rgb8", "step": 192,
                                        "data": pixels.tobytes()}),
            "/ee_pose": ("PoseInFrame", {"frame_id": "base", "pose": pose(number)}),
            "/joint_states": ("JointStates", {"joints": joints[:: 1 if number % 2 else -1]}),
            "/gps": ("LocationFix", {"latitude": 1.0, "longitude": 2.0, "altitude": float(number),
                                     "position_covariance": [0.5] * 9, "position_covariance_type": 1}),
        }  # fmt: skip
        found += [
            Entry(topic, f"foxglove.{kind}", time_ns, {**time, **fields}) for topic, (kind, fields) in contents.items()
        ]
    return found


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_every_kind_of_message_becomes_its_feature(form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = penstock.convert(WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, robot()), out, video="copy")
    assert (report.exit_code, report.frames) == (0, ROWS)
    assert datasets.samples(out, CAM) == [bags.jpeg(number) for number in range(ROWS)]
    assert datasets.values(out, "observation.ee_pose")[:, 0].tolist() == [number + 0.25 for number in range(ROWS)]
    expected = np.arange(ROWS)[:, None] + np.array([0.2, 0.1, 0.0])  # in the order of the first message
    assert np.allclose(datasets.values(out, "observation.state"), expected, atol=1e-5)
    assert datasets.info(out)["features"]["observation.state"]["names"] == ["c", "b", "a"]
    assert datasets.values(out, "observation.gps").tolist() == [[1, 2, number] for number in range(ROWS)]
    assert datasets.problems(out, full=True) == []


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_raw_images_become_what_those_of_ros_become(form: str, tmp_path: Path) -> None:
    ros = bags.write(
        tmp_path / "ros.mcap",
        bags.messages("/raw/image", TIMES, lambda number: bags.raw(bags.image(number), "rgb8")),
    )
    stored = []
    for place, path in enumerate((ros, WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, robot()))):
        penstock.convert(path, tmp_path / f"out{place}", features={RAW: {"topic": "/raw/image"}}, video="images")
        stored.append(datasets.table(tmp_path / f"out{place}").column(RAW).to_pylist())
    assert len(stored[0]) == ROWS and stored[0] == stored[1]


def test_json_without_a_schema_gives_its_numbers(tmp_path: Path) -> None:
    entries = [
        Entry("/arm", "", time_ns, {"q": [number, number / 2], "note": "x"}) for number, time_ns in enumerate(TIMES)
    ]
    path = write_json(tmp_path / "a.mcap", {}, entries, described=False)
    with recordings.open(path) as recording:
        assert recording.topic("/arm").type == "json"
    features = {"observation.state": {"topic": "/arm", "field": "q[0:2]"}}
    report = penstock.convert(path, tmp_path / "out", features=features, timeline="fixed", fps=30)
    assert report.exit_code == 0
    assert datasets.values(tmp_path / "out", "observation.state")[:5].tolist() == [[n, n / 2] for n in range(5)]


@pytest.mark.parametrize("form", sorted(WRITERS))
@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_video_is_moved_as_it_is(codec: str, form: str, tmp_path: Path) -> None:
    sent = streams.stream(codec, ROWS)
    entries = [
        Entry(
            "/cam/video",
            "foxglove.CompressedVideo",
            time_ns,
            {"timestamp": stamp(time_ns), "data": data, "format": codec},
        )
        for time_ns, data in zip(TIMES, sent, strict=True)
    ]
    report = penstock.convert(WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, entries), tmp_path / "out")
    assert any(note.endswith(f"{CAM}: H.{codec[1:]} video moved as it is") for note in report.notes)
    (file,) = datasets.video_files(tmp_path / "out", CAM)
    shown, wanted = streams.file_frames(file), streams.decoded(codec, sent)
    assert len(shown) == len(wanted) == ROWS and all(map(np.array_equal, shown, wanted))


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_header_times_are_the_stamps_in_the_messages(form: str, tmp_path: Path) -> None:
    """Images large enough to be clipped, some without a stamp, and stamps behind other fields."""
    entries = []
    for number, time_ns in enumerate(TIMES):
        given = {} if number == 7 and form == "protobuf" else {"timestamp": stamp(time_ns - 5)}
        image = {"data": bytes(2000), "format": "jpeg", **given}
        entries.append(Entry("/cam", "foxglove.CompressedImage", time_ns, image))
        place = {"latitude": 1.0, "longitude": 2.0, "altitude": 0.0, "timestamp": stamp(time_ns - 9)}
        entries.append(Entry("/gps", "foxglove.LocationFix", time_ns, place))
    path = WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, entries)
    with recordings.open(path) as recording:
        stamps = recording.header_times_ns(recording.topic("/cam")).tolist()
        assert stamps == [
            0 if number == 7 and form == "protobuf" else time_ns - 5 for number, time_ns in enumerate(TIMES)
        ]
        assert recording.header_times_ns(recording.topic("/gps")).tolist() == [time_ns - 9 for time_ns in TIMES]


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_rows_go_by_the_stamps_where_asked(form: str, tmp_path: Path) -> None:
    """Poses are received 0.2 s late: by their stamps they belong to the images of their time."""
    entries = [
        each._replace(time_ns=each.time_ns + 200_000_000) if each.topic == "/ee_pose" else each for each in robot()
    ]
    path = WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, sorted(entries, key=lambda each: each.time_ns))
    for clock, first in (("header", 0.25), ("log", None)):
        out = tmp_path / clock
        features = {CAM: {"topic": "/cam/image"}, "observation.state": {"topic": "/ee_pose"}}
        penstock.convert(path, out, features=features, time=clock)
        found = datasets.values(out, "observation.state")[:, 0]
        assert found[0] == first if first else len(found) < ROWS


def test_a_feature_without_a_field_takes_the_position_of_every_joint(tmp_path: Path) -> None:
    path = write_protobuf(tmp_path / "a.mcap", FOXGLOVE, robot())
    features = {CAM: {"topic": "/cam/image"}, "observation.state": {"topic": "/joint_states"}}
    penstock.convert(path, tmp_path / "out", features=features)
    assert datasets.info(tmp_path / "out")["features"]["observation.state"]["names"] == ["c", "b", "a"]


@pytest.mark.parametrize("frames", [("tool",), ("tool", "wheel")])
def test_transforms_of_one_frame_are_numbers_and_those_of_many_are_left_out(
    frames: tuple[str, ...], tmp_path: Path
) -> None:
    turned = {"translation": {"x": 1.0, "y": 2.0, "z": 3.0}, "rotation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}}
    names = {"parent_frame_id": "base"}
    entries = [
        Entry("/tf", "foxglove.FrameTransform", time_ns + place, {**names, "child_frame_id": frame, **turned})
        for time_ns in TIMES
        for place, frame in enumerate(frames)
    ]
    path = write_protobuf(tmp_path / "a.mcap", FOXGLOVE, robot() + entries)
    report = penstock.convert(path, tmp_path / "out")
    features = datasets.info(tmp_path / "out")["features"]
    if len(frames) == 1:
        assert datasets.values(tmp_path / "out", "observation.tf")[0].tolist() == [1, 2, 3, 0, 0, 0, 1]
    else:
        assert "observation.tf" not in features
        assert any("/tf left out: its messages are transforms of several frames" in note for note in report.notes)


# Faults


def broken(entries: list[Entry], topic: str, number: int, raw: bytes) -> list[Entry]:
    place = [at for at, each in enumerate(entries) if each.topic == topic][number]
    return [*entries[:place], entries[place]._replace(fields={"raw": raw}), *entries[place + 1 :]]


@pytest.mark.parametrize("clock", ["log", "header"])
@pytest.mark.parametrize(("form", "raw"), [("protobuf", b"\x12\xff\x01cut"), ("json", b'{"timestamp": ')])
def test_a_broken_message_is_left_out_and_counted(form: str, raw: bytes, clock: str, tmp_path: Path) -> None:
    entries = broken(robot(), "/ee_pose", 12, raw)
    path = WRITERS[form](tmp_path / "a.mcap", FOXGLOVE, entries)
    report = penstock.convert(path, tmp_path / "out", bad_messages="drop", time=clock)
    assert report.exit_code == 3
    assert any("/ee_pose: message 12" in note for note in report.notes)
    noted = any("/ee_pose: 1 messages have no readable header time" in note for note in report.notes)
    assert noted == (clock == "header")
    found: list[str] = []
    check_recording(path, lambda severity, kind, where, message, hint: found.append(f"{severity} {where}: {message}"))
    assert [line for line in found if line.startswith("loss /ee_pose: 1 messages do not match their definition")]


def test_a_definition_that_cannot_be_used_costs_its_own_topic_only(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from mcap.writer import Writer

    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        for topic, encoding, form, text in (
            ("/bad_proto", "protobuf", "protobuf", b"\x01\x02"),
            ("/other", "protobuf", "jsonschema", b"{}"),
            ("/flat", "flatbuffer", "flatbuffer", b""),
            ("/good", "json", "jsonschema", b'{"properties": {"x": {"type": "number"}}}'),
        ):
            channel = writer.register_channel(topic, encoding, writer.register_schema("t.T", form, text))
            writer.add_message(channel, 5, b'{"x": 2}', 5)
        writer.finish()
    found: dict[str, str] = {}
    check_recording(path, lambda severity, kind, where, message, hint: found.update({str(where): severity}))
    assert found["/bad_proto"] == "loss" and found["/flat"] == "info" and "/good" not in found
    with recordings.open(path) as recording:
        assert recording.decoder(recording.topic("/good")).decode(b'{"x": 2}') == {"x": 2}
        with pytest.raises(SchemaError, match=r"a\.mcap: topic /bad_proto: the descriptors of 't\.T' cannot be read"):
            recording.decoder(recording.topic("/bad_proto"))
        assert "described in 'jsonschema', which penstock does not read" in (recording.topic("/other").problem or "")
        assert "penstock decodes ros1, cdr, protobuf, json" in (recording.topic("/flat").problem or "")


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_recover_saves_what_a_cut_file_holds(form: str, tmp_path: Path) -> None:
    whole = WRITERS[form](tmp_path / "whole.mcap", FOXGLOVE, robot(), chunk_size=4096)
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    recordings.recover(cut, tmp_path / "new.mcap")
    with recordings.open(tmp_path / "new.mcap") as recording:
        assert all(topic.problem is None and topic.count > 10 for topic in recording.topics)
        topic = recording.topic("/joint_states")
        assert recording.header_times_ns(topic).tolist() == TIMES[: topic.count]


def test_inspect_shows_types_and_what_a_conversion_makes_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_protobuf(tmp_path / "a.mcap", FOXGLOVE, robot())
    assert main(["inspect", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "foxglove.CompressedImage" in printed and "observation.state 3 ← /joint_states" in printed


# Without the extra

WITHOUT = """
import sys
sys.modules["google"] = sys.modules["google.protobuf"] = None
from penstock._src.cli import main
"""
SENTENCE = "reading protobuf messages needs the package 'protobuf': pip install 'penstock[protobuf]'"


def without_protobuf(*words: object) -> subprocess.CompletedProcess[str]:
    code = f"{WITHOUT}sys.exit(main({list(map(str, words))!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_the_extra_every_verb_says_what_to_install(tmp_path: Path) -> None:
    path = write_protobuf(tmp_path / "a.mcap", FOXGLOVE, robot())
    convert = without_protobuf("convert", path, tmp_path / "out")
    assert convert.returncode == 1 and SENTENCE in convert.stderr and "Traceback" not in convert.stderr
    inspect = without_protobuf("inspect", path)
    assert inspect.returncode == 0 and SENTENCE in inspect.stdout
    doctor = without_protobuf("doctor", path)
    assert doctor.returncode == 0 and SENTENCE in doctor.stdout + doctor.stderr


def test_without_the_extra_json_is_read(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.mcap", FOXGLOVE, robot())
    run = without_protobuf("convert", path, tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["total_frames"] == ROWS
