"""Transforms as features: composed along the tree of frames at each row's time, compared with matrices."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.values.transforms import TransformTree, compose, parse_chain
from penstock.errors import ConfigError
from tests.conversion import bags, datasets, topics

TF, STATIC = "tf2_msgs/msg/TFMessage", "/tf_static"
CUSTOM = {TF: "geometry_msgs/TransformStamped[] transforms\n"}
RATE = 0.7  # radians per second of the turning joint


def _transform(parent: str, child: str, seconds: float, moved: tuple[float, ...], angle: float = 0.0) -> dict[str, Any]:
    """A transform that turns about z."""
    return {
        "header": {
            "frame_id": parent,
            "stamp": dict(zip(("sec", "nanosec"), divmod(topics.at(seconds), bags.SECOND), strict=True)),
        },
        "child_frame_id": child,
        "transform": {
            "translation": dict(zip("xyz", moved, strict=True)),
            "rotation": {"x": 0.0, "y": 0.0, "z": math.sin(angle / 2), "w": math.cos(angle / 2)},
        },
    }


def _recording(path: Path) -> Path:
    """world→base→arm (turning, 50 Hz, its own publisher) and arm→tool, base→camera (once); the camera at 30 Hz."""
    seconds = np.arange(0.0, 2.0, 0.02)
    turning = [
        topics.Note("/tf", TF, topics.at(t), {"transforms": [_transform("base", "arm", t, (1.0, 0.0, 0.0), RATE * t)]})
        for t in seconds
    ]
    driving = [
        topics.Note("/tf", TF, topics.at(t), {"transforms": [_transform("world", "base", t, (t, 2 * t, 0.0))]})
        for t in seconds + 0.007
    ]
    fixed = [
        _transform("arm", "tool", 0.0, (0.0, 0.5, 0.0), math.pi / 2),
        _transform("/base", "camera", 0.0, (0.0, 0.0, 1.5)),
    ]
    once = [topics.Note(STATIC, TF, topics.at(0.0), {"transforms": fixed})]
    camera = bags.camera(bags.CAM_H, bags.times(30, 1.8, offset_s=0.05))
    return topics.write(path, camera, turning, driving, once, custom=CUSTOM)


def _convert(source: Path, out: Path, chain: str, **more: Any) -> np.ndarray[Any, Any]:
    features = {"observation.images.cam": bags.CAM_H, "observation.tool": {"tf": chain, "dtype": "float64", **more}}
    report = penstock.convert(source, out, features=features)
    assert report.lost_count == 0
    return np.asarray(datasets.values(out, "observation.tool"))


def _times(out: Path) -> np.ndarray[Any, Any]:
    rows = len(datasets.values(out, "observation.tool"))
    return 0.05 + np.arange(rows) / 30


def _matrix(moved: tuple[float, ...], angle: float) -> np.ndarray[Any, Any]:
    matrix = np.eye(4)
    matrix[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    matrix[:3, 3] = moved
    return matrix


def _as_matrix(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    x, y, z, w = row[3:]
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = row[:3]
    return matrix


def _expected(chain: str, t: float) -> np.ndarray[Any, Any]:
    base = _matrix((t, 2 * t, 0.0), 0.0)
    arm = base @ _matrix((1.0, 0.0, 0.0), RATE * t)
    frames = {
        "world": np.eye(4), "base": base, "arm": arm, "tool": arm @ _matrix((0.0, 0.5, 0.0), math.pi / 2),
        "camera": base @ _matrix((0.0, 0.0, 1.5), 0.0),
    }  # fmt: skip
    start, end = chain.split("→")
    return np.asarray(np.linalg.inv(frames[start]) @ frames[end])


@pytest.mark.parametrize("chain", ["base→tool", "tool→base", "world→tool", "camera→tool", "arm→base", "tool→camera"])
def test_a_transform_is_composed_along_the_tree_at_the_time_of_each_row(chain: str, tmp_path: Path) -> None:
    rows = _convert(_recording(tmp_path / "run.bag"), tmp_path / "out", chain)
    assert rows.shape == (len(rows), 7) and len(rows) > 40
    for t, row in zip(_times(tmp_path / "out"), rows, strict=True):
        np.testing.assert_allclose(_as_matrix(row), _expected(chain, t), atol=2e-7)
    names = datasets.info(tmp_path / "out")["features"]["observation.tool"]["names"]
    assert names == ["x", "y", "z", "qx", "qy", "qz", "qw"]


def test_rows_are_the_same_however_often_they_are_flushed_and_by_the_stamps_too(tmp_path: Path) -> None:
    source = _recording(tmp_path / "run.bag")
    whole = _convert(source, tmp_path / "whole", "world→tool")
    features = {"observation.images.cam": bags.CAM_H, "observation.tool": {"tf": "world->tool", "dtype": "float64"}}
    penstock.convert(source, tmp_path / "parts", features=features, rosbag={"chunk_size": 7})
    np.testing.assert_array_equal(datasets.values(tmp_path / "parts", "observation.tool"), whole)
    stamped = _convert(source, tmp_path / "stamped", "world→tool", time="header")
    np.testing.assert_allclose(stamped, whole, atol=1e-9)


def test_the_transforms_of_a_topic_are_listed_with_its_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _recording(tmp_path / "run.bag")
    assert main(["inspect", str(source), "--fields", "/tf"]) == 0
    assert "  transforms: base→arm, world→base\n" in capsys.readouterr().out


def test_nearest_takes_a_recorded_transform_as_it_is(tmp_path: Path) -> None:
    rows = _convert(_recording(tmp_path / "run.bag"), tmp_path / "out", "base→arm", policy="nearest")
    angles = 2 * np.arctan2(rows[:, 5], rows[:, 6]) / RATE / 0.02
    np.testing.assert_allclose(angles, np.round(angles), atol=1e-6)


def test_a_static_transform_that_was_received_late_holds_for_the_rows_before_it(tmp_path: Path) -> None:
    """It is latched: it says how things are, not since when."""
    times = bags.times(30, 2)
    moving = [
        topics.Note("/tf", TF, topics.at(t), {"transforms": [_transform("base", "arm", t, (1.0, 0.0, 0.0), RATE * t)]})
        for t in np.arange(-0.1, 2.2, 0.02)
    ]
    late = [topics.Note(STATIC, TF, topics.at(0.7), {"transforms": [_transform("arm", "tool", 0.7, (0.0, 0.5, 0.0))]})]
    source = topics.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, times), moving, late, custom=CUSTOM)
    for clock in ("log", "header"):
        rows = _convert(source, tmp_path / clock, "arm→tool", time=clock)
        assert len(rows) == len(times)
        np.testing.assert_array_equal(rows, [[0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0]] * len(times))


def test_each_transform_of_a_message_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    """The second one was measured 10 ms before the first."""
    notes = [
        topics.Note(
            "/tf", TF, topics.at(t),
            {"transforms": [_transform("base", "arm", t, (t, 0, 0)), _transform("arm", "tool", t - 0.01, (t, 0, 0))]},
        )
        for t in np.arange(-0.1, 2.2, 0.02)
    ]  # fmt: skip
    source = topics.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, bags.times(30, 2)), notes, custom=CUSTOM)
    first = _convert(source, tmp_path / "first", "base→arm", time="header")
    second = _convert(source, tmp_path / "second", "arm→tool", time="header")
    np.testing.assert_allclose(first[:, 0], np.arange(len(first)) / 30, atol=1e-6)
    np.testing.assert_allclose(second[:, 0] - first[:, 0], 0.01, atol=1e-6)


def test_a_transform_without_a_rotation_is_an_unusable_message(tmp_path: Path) -> None:
    nothing = _transform("base", "arm", 1.0, (1.0, 0.0, 0.0))
    nothing["transform"]["rotation"] = dict.fromkeys("xyzw", 0.0)
    times = bags.times(30, 2)
    moving = topics.notes(
        "/tf",
        TF,
        times,
        lambda n: {"transforms": [nothing if n == 30 else _transform("base", "arm", n, (n, 0.0, 0.0))]},
    )
    source = topics.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, times), moving, custom=CUSTOM)
    features = {"observation.images.cam": bags.CAM_H, "observation.tool": {"tf": "base→arm"}}
    report = penstock.convert(source, tmp_path / "out", features=features)
    assert report.lost == {"unusable message: /tf": 1}
    assert np.isfinite(datasets.values(tmp_path / "out", "observation.tool")).all()


@pytest.mark.parametrize("clock", ["log", "header"])
def test_a_broken_message_of_transforms_is_counted(clock: str, tmp_path: Path) -> None:
    times = bags.times(30, 2)
    moving = topics.notes(
        "/tf", TF, times, lambda n: {"transforms": [_transform("base", "arm", n / 30, (float(n), 0.0, 0.0))]}
    )
    moving[30] = replace(moving[30], cut=20)
    source = topics.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, times), moving, custom=CUSTOM)
    features = {"observation.images.cam": bags.CAM_H, "observation.tool": {"tf": "base→arm", "time": clock}}
    report = penstock.convert(source, tmp_path / "out", features=features)
    assert report.lost == {"unusable message: /tf": 1}
    np.testing.assert_allclose(datasets.values(tmp_path / "out", "observation.tool")[:, 0], np.arange(60), atol=1e-4)


def test_the_memory_does_not_follow_which_transforms_each_message_holds(tmp_path: Path) -> None:
    """Every message holds another set of transforms, each with a stamp of its own: 12 bytes for those in use."""
    frames = [f"frame_{number}" for number in range(12)]
    chosen = [frames[:1] + [frames[i] for i in range(1, 12) if number >> i & 1] for number in range(1500)]
    sent = [
        topics.Note(
            "/tf", TF, topics.at(number / 100),
            {"transforms": [_transform("base", each, number + place, (1, 0, 0)) for place, each in enumerate(held)]},
        )
        for number, held in enumerate(chosen)
    ]  # fmt: skip
    source = topics.write(tmp_path / "run.bag", [], sent, custom=CUSTOM)
    with recordings.open(source) as recording:
        TransformTree(recording)  # what the first reading of a topic keeps
        tracemalloc.start()
        tree = TransformTree(recording)
        found = tree.messages(link.edge for link in tree.chain("frame_0", "frame_5"))
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [len(each.numbers) for each in found.values()] == [1500, sum("frame_5" in held for held in chosen)]
    assert held_bytes < 60_000 and peak_bytes < 1_000_000


@pytest.mark.parametrize("word", ["scale", "offset", "threshold"])
def test_numbers_of_a_transform_are_not_changed_one_by_one(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{word} does not apply to a transform"):
        _convert(_recording(tmp_path / "run.bag"), tmp_path / "out", "base→tool", **{word: 2.0})


def test_the_suggested_configuration_gives_the_same_transforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _recording(tmp_path / "run.bag")
    own = f"features: {{observation.images.cam: {bags.CAM_H}, observation.tool: {{tf: base→tool}}}}\n"
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    assert main(["inspect", str(source), "--config", str(tmp_path / "own.yaml"), "--suggest-config"]) == 0
    (tmp_path / "given.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    for name in ("own", "given"):
        assert main(["convert", str(source), str(tmp_path / name), "--config", str(tmp_path / f"{name}.yaml")]) == 0
    rows = [datasets.values(tmp_path / name, "observation.tool") for name in ("own", "given")]
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("base→hand", "no transform has the frame 'hand'"),
        ("base→base", "is one frame"),
        ("base tool", "is not of the form base→tool"),
        ("island→base", "no transform connects island and base"),
    ],
)
def test_a_chain_that_is_not_there_is_refused_with_what_is(chain: str, message: str, tmp_path: Path) -> None:
    source = _recording(tmp_path / "run.bag")
    if "island" in chain:
        alone = [topics.Note("/tf", TF, topics.at(0.5), {"transforms": [_transform("sea", "island", 0.5, (0, 0, 0))]})]
        times = bags.times(30, 1)
        source = topics.write(
            tmp_path / "two.bag",
            bags.camera(bags.CAM_H, times),
            alone,
            [topics.Note(STATIC, TF, topics.at(0), {"transforms": [_transform("world", "base", 0, (0, 0, 0))]})],
            custom=CUSTOM,
        )
    with pytest.raises(ConfigError, match=message):
        _convert(source, tmp_path / "out", chain)


def test_topics_that_are_no_vectors_are_left_out_with_their_reason(tmp_path: Path) -> None:
    source = _recording(tmp_path / "run.bag")
    report = penstock.convert(source, tmp_path / "out")
    assert any(
        "/tf left out: transforms: name two frames under features:, as in {tf: base→tool}" in n for n in report.notes
    )
    cloud = topics.notes("/cloud", "sensor_msgs/msg/PointCloud2", bags.times(30, 1), lambda n: {"data": [1, 2, 3]})
    source = topics.write(tmp_path / "cloud.bag", bags.camera(bags.CAM_H, bags.times(30, 1)), cloud)
    report = penstock.convert(source, tmp_path / "cloud")
    assert any("/cloud left out: a point cloud has a different number" in note for note in report.notes)


# ── numbers that types are known for ─────────────────────────────────────────────────────────────────────────────────


def _numbers(path: Path, type_name: str, fields: Any, **custom: Any) -> tuple[Path, dict[str, Any]]:
    times = bags.times(30, 1)
    source = topics.write(path, bags.camera(bags.CAM_H, times), topics.notes("/it", type_name, times, fields), **custom)
    out = path.with_suffix("")
    penstock.convert(source, out)
    return out, datasets.info(out)["features"]


def test_a_position_on_earth_keeps_its_digits(tmp_path: Path) -> None:
    out, features = _numbers(
        tmp_path / "gps.bag", "sensor_msgs/msg/NavSatFix",
        lambda n: {"latitude": 48.123456789 + n * 1e-8, "longitude": 11.5, "altitude": 500.25},
    )  # fmt: skip
    assert features["observation.it"]["names"] == ["latitude", "longitude", "altitude"]
    assert features["observation.it"]["dtype"] == "float64"
    assert datasets.values(out, "observation.it")[3].tolist() == [48.123456789 + 3e-8, 11.5, 500.25]
    features = {"observation.images.cam": bags.CAM_H, "observation.gps": "/it"}
    penstock.convert(tmp_path / "gps.bag", tmp_path / "named", features=features)
    assert datasets.values(tmp_path / "named", "observation.gps")[3, 0] == 48.123456789 + 3e-8


def test_a_scan_is_an_observation_of_its_ranges(tmp_path: Path) -> None:
    beams = np.linspace(0.5, 9.5, 720).astype(np.float32)
    out, features = _numbers(
        tmp_path / "scan.bag", "sensor_msgs/msg/LaserScan",
        lambda n: {"ranges": beams, "intensities": beams * 2, "angle_min": -1.0},
    )  # fmt: skip
    assert features["observation.it"]["shape"] == [720] and "observation.state" not in features
    np.testing.assert_array_equal(datasets.values(out, "observation.it")[5], beams)


def test_beams_that_meet_nothing_are_one_note(tmp_path: Path) -> None:
    """A scanner sends inf where nothing is near: 360 notes would hide all others."""
    times = bags.times(30, 1)
    scan = topics.notes("/scan", "sensor_msgs/msg/LaserScan", times, lambda n: {"ranges": [math.inf] * 360})
    source = topics.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, times), scan)
    report = penstock.convert(source, tmp_path / "out")
    (note,) = [note for note in report.notes if "inf" in note]
    assert note.startswith("observation.scan ranges.0: 30 inf, ") and " and 356 more (kept as recorded" in note


def test_a_battery_is_voltage_current_and_percentage(tmp_path: Path) -> None:
    out, features = _numbers(
        tmp_path / "battery.bag", "sensor_msgs/msg/BatteryState",
        lambda n: {"voltage": 12.0, "current": -1.5, "percentage": 0.75, "capacity": 99.0},
    )  # fmt: skip
    assert features["observation.it"]["names"] == ["voltage", "current", "percentage"]
    assert datasets.values(out, "observation.it")[0].tolist() == [12.0, -1.5, 0.75]


def test_a_single_joint_command_is_part_of_the_action_and_other_joints_are_not_mixed_in(tmp_path: Path) -> None:
    kind, text = "interbotix_xs_msgs/msg/JointSingleCommand", "string name\nfloat32 cmd\n"
    times = bags.times(30, 1)
    tape = bags.camera(bags.CAM_H, times)
    own = topics.notes("/arm/commands/joint_single", kind, times, lambda n: {"name": "gripper", "cmd": float(n)})
    source = topics.write(tmp_path / "run.bag", tape, own, custom={kind: text})
    report = penstock.convert(source, tmp_path / "out")
    assert report.lost_count == 0
    assert datasets.values(tmp_path / "out", "action")[:3].ravel().tolist() == [0.0, 1.0, 2.0]
    mixed = topics.notes(
        "/arm/commands/joint_single", kind, times, lambda n: {"name": "gripper" if n != 4 else "wrist", "cmd": float(n)}
    )
    source = topics.write(tmp_path / "mixed.bag", tape, mixed, custom={kind: text})
    report = penstock.convert(source, tmp_path / "mixed")
    assert report.lost == {"unusable message: /arm/commands/joint_single": 1}


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────────

numbers = st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 6))
quaternions = st.lists(numbers, min_size=4, max_size=4).filter(lambda q: sum(x * x for x in q) > 0.01)
steps = st.lists(
    st.tuples(st.lists(numbers, min_size=3, max_size=3), quaternions, st.booleans()), min_size=1, max_size=5
)


@given(steps)
def test_a_chain_is_the_product_of_its_matrices(chain: list[tuple[list[float], list[float], bool]]) -> None:
    rows = [np.array([[*moved, *(np.array(turned) / np.linalg.norm(turned))]]) for moved, turned, _ in chain]
    expected = np.eye(4)
    for row, (_, _, is_inverse) in zip(rows, chain, strict=True):
        step = _as_matrix(row[0])
        expected = expected @ (np.linalg.inv(step) if is_inverse else step)
    scaled = [np.concatenate([row[:, :3], row[:, 3:] * 3], axis=1) for row in rows]  # recorded ones are seldom exact
    np.testing.assert_allclose(_as_matrix(compose(scaled, [each[2] for each in chain])[0]), expected, atol=1e-9)


def test_frames_may_be_written_with_either_arrow_and_with_slashes() -> None:
    assert parse_chain("/base→tool") == parse_chain("base -> /tool") == ("base", "tool")
