"""Vectors by field path: slices, names, units, structs, and what happens when messages disagree."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import parse_msg
from penstock._src.recordings.messages.standard_types import standard_definitions
from penstock._src.recordings.values.vectors import VectorReader, default_path, parse_path
from penstock.errors import ConfigError, MessageError


def standard(name: str) -> RosDecoder:
    return RosDecoder(standard_definitions("ros1"), name, "ros1")


def custom(text: str) -> RosDecoder:
    return RosDecoder(parse_msg(text, "pkg/T"), "pkg/T", "ros1")


def doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f"<I{len(values)}d", len(values), *values)


def joints(values: dict[str, float], names: Sequence[str] | None = None) -> bytes:
    """A JointState; `names` replaces the names that belong to the values."""
    texts = [name.encode() for name in (values if names is None else names)]
    listed = struct.pack("<I", len(texts)) + b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return bytes(16) + listed + doubles(list(values.values())) + doubles([]) + doubles([])


def test_the_first_message_fixes_the_order_of_joints_and_later_ones_are_sorted_to_it() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position")
    assert (read.size, read.dimension_names) == (None, ())
    assert read(joints({"a": 1, "b": 2})).tolist() == [1, 2]
    assert read(joints({"b": 20, "a": 10})).tolist() == [10, 20]
    assert (read.size, read.dimension_names) == (2, ("a", "b"))


def test_names_pick_and_order_joints() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position", names=("c", "a"))
    assert (read.size, read.dimension_names) == (2, ("c", "a"))
    assert read(joints({"a": 1, "b": 2, "c": 3})).tolist() == [3, 1]
    assert read(joints({"c": 30, "a": 10})).tolist() == [30, 10]
    assert read(joints({"a": 1, "b": 2, "c": 3})).tolist() == [3, 1]


@given(st.permutations(list("abcdefg")), st.permutations(list("abcdefg")), st.integers(1, 7))
def test_every_joint_gets_its_own_value_whatever_the_order(first: list[str], second: list[str], wanted: int) -> None:
    values = {name: float(ord(name)) for name in first}
    read = VectorReader(standard("sensor_msgs/JointState"), "position", names=second[:wanted])
    for order in (first, second, first[::-1]):
        vector = read(joints({name: values[name] for name in order}))
        assert vector.tolist() == [values[name] for name in second[:wanted]]


def test_a_missing_joint_is_named_with_what_is_there() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position", names=("a", "gripper"))
    with pytest.raises(MessageError, match=r"1 of 2 names are missing .*: gripper\n.*its 3 names are a, b, c"):
        read(joints({"a": 1, "b": 2, "c": 3}))


def test_a_joint_named_twice_is_refused() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position", names=("a", "b"))
    with pytest.raises(MessageError, match="'a' is there twice"):
        read(joints({"a": 1, "b": 2, "c": 3}, names=["a", "b", "a"]))


@pytest.mark.parametrize("names", [None, ("a", "b")])
def test_names_and_values_of_different_number_are_refused(names: Any) -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position", names=names)
    read(joints({"a": 1, "b": 2}))
    with pytest.raises(MessageError, match="has 3 values in this message, but name has 2 names"):
        read(joints({"a": 1, "b": 2, "c": 3}, names=["a", "b"]))
    assert read(joints({"b": 1, "a": 2})).tolist() == [2, 1]


def test_joints_without_names_go_by_position() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position")
    assert read(joints({"a": 1, "b": 2}, names=[])).tolist() == [1, 2]
    assert read(joints({"b": 3, "a": 4})).tolist() == [3, 4]
    assert read.dimension_names == ("position.0", "position.1")


def test_names_can_be_turned_off() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position", by_name=False)
    assert [read(joints({"a": 1, "b": 2})).tolist(), read(joints({"b": 3, "a": 4})).tolist()] == [[1, 2], [3, 4]]


def test_a_changed_length_gives_both_numbers() -> None:
    read = VectorReader(custom("float64[] data"), "data")
    read(doubles([1, 2, 3]))
    with pytest.raises(MessageError, match="has 2 values in this message, expected are 3"):
        read(doubles([1, 2]))


def test_slices_take_names_with_them() -> None:
    read = VectorReader(standard("sensor_msgs/JointState"), "position[1:3]")
    assert read(joints({"a": 1, "b": 2, "c": 3})).tolist() == [2, 3]
    assert read.dimension_names == ("b", "c")


def test_slices_of_a_nested_array_keep_their_numbers_in_the_names() -> None:
    read = VectorReader(custom("Data joint_data\n===\nMSG: pkg/Data\nfloat64[] joint_q"), "joint_data.joint_q[12:26]")
    assert read.size == 14
    assert read.dimension_names == tuple(f"joint_q.{n}" for n in range(12, 26))
    assert read(doubles(range(28))).tolist() == list(range(12, 26))
    with pytest.raises(MessageError, match=r"joint_q\[12:26\] asks for more than the 20 values"):
        read(doubles(range(20)))


@pytest.mark.parametrize(
    ("path", "expected", "names"),
    [
        ("q[2]", [2], ("q",)),
        ("q[-1]", [5], ("q",)),
        ("q[-2:]", [4, 5], ("q.-2", "q.-1")),
        ("q[::2]", [0, 2, 4], ("q.0", "q.2", "q.4")),
        ("q[1:5:2]", [1, 3], ("q.1", "q.3")),
        ("q[3:3]", [], ()),
    ],
)
def test_every_kind_of_selector(path: str, expected: list[float], names: tuple[str, ...]) -> None:
    read = VectorReader(custom("float64[] q"), path)
    assert read(doubles(range(6))).tolist() == expected
    assert read.dimension_names == names


def test_degrees_scale_and_offset() -> None:
    decoder = custom("float64[] q")
    assert VectorReader(decoder, "q", unit="deg")(doubles([180, -90])).tolist() == [math.pi, -math.pi / 2]
    assert VectorReader(decoder, "q", scale=0.01, offset=-0.5)(doubles([100, 0])).tolist() == [0.5, -0.5]
    both = VectorReader(decoder, "q", scale=[1, 2], offset=[0, 1], unit="deg")
    np.testing.assert_allclose(both(doubles([180, 180])), [math.pi, 2 * math.pi + 1])


def test_scale_of_another_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="has 3 values, but scale has 2"):
        VectorReader(custom("float64[3] q"), "q", scale=[1, 2])
    with pytest.raises(ConfigError, match="has 3 values, but offset has 2"):
        VectorReader(custom("float64[] q"), "q", offset=[1, 2])(doubles([1, 2, 3]))


def test_a_struct_flattens_in_declared_order_without_header_and_covariance() -> None:
    read = VectorReader(standard("nav_msgs/Odometry"), "pose")
    names = ("position.x", "position.y", "position.z", *(f"orientation.{axis}" for axis in "xyzw"))
    assert read.dimension_names == tuple(f"pose.{name}" for name in names)
    payload = bytes(16) + bytes(4) + struct.pack("<7d", *range(1, 8)) + bytes(8 * (36 + 6 + 36))
    assert read(payload).tolist() == list(range(1, 8))
    assert VectorReader(standard("nav_msgs/Odometry"), "pose.pose").dimension_names == names


def test_a_whole_message_leaves_out_texts_and_times_and_keeps_arrays() -> None:
    inner = "===\nMSG: pkg/Inner\nint16 a\nfloat32 b"
    decoder = custom(f"string s\nbool flag\ntime t\nuint8[2] raw\nInner[2] pair\n{inner}")
    read = VectorReader(decoder, ".")
    assert read.dimension_names == ("flag", "raw.0", "raw.1", "pair.0.a", "pair.0.b", "pair.1.a", "pair.1.b")
    payload = struct.pack("<I1s?II2Bhfhf", 1, b"x", True, 1, 2, 8, 9, -1, 0.5, -2, 1.5)
    assert read(payload).tolist() == [1, 8, 9, -1, 0.5, -2, 1.5]
    assert read.size == 7


def test_messages_of_an_array_are_taken_by_index_and_by_slice() -> None:
    decoder = custom("Inner[] items\n===\nMSG: pkg/Inner\nint16 a\nint16 b")
    payload = struct.pack("<I6h", 3, 1, 2, 3, 4, 5, 6)
    assert VectorReader(decoder, "items[1]")(payload).tolist() == [3, 4]
    assert VectorReader(decoder, "items[-1].b")(payload).tolist() == [6]
    read = VectorReader(decoder, "items[0:2].b")
    assert (read(payload).tolist(), read.size) == ([2, 4], 2)
    with pytest.raises(MessageError, match=r"items\[5\] does not exist: the message holds 3"):
        VectorReader(decoder, "items[5]")(payload)
    for path in ("items", "items[1:]", "."):
        with pytest.raises(ConfigError):
            VectorReader(decoder, path)


def test_a_joint_trajectory_goes_by_the_names_of_the_message_around_it() -> None:
    read = VectorReader(standard("trajectory_msgs/JointTrajectory"), "points[0].positions", names=("b", "a"))
    head = bytes(16) + struct.pack("<II1sI1s", 2, 1, b"a", 1, b"b")
    point = doubles([1, 2]) + doubles([]) * 3 + bytes(8)
    assert read(head + struct.pack("<I", 1) + point).tolist() == [2, 1]


def test_names_label_dimensions_where_the_message_has_none() -> None:
    read = VectorReader(custom("float64[] q"), "q", names=("x", "y"))
    assert (read(doubles([1, 2])).tolist(), read.dimension_names) == ([1, 2], ("x", "y"))
    with pytest.raises(MessageError, match="has 3 values in this message, expected are 2"):
        read(doubles([1, 2, 3]))
    with pytest.raises(ConfigError, match="has 3 values and 2 names are given"):
        VectorReader(custom("float64[3] q"), "q", names=("x", "y"))


def test_integers_and_bytes_become_floats_of_their_own_memory() -> None:
    payload = bytearray(struct.pack("<I3Bi", 3, 1, 2, 255, -7))
    decoder = custom("uint8[] a\nint32 b")
    vector = VectorReader(decoder, "a")(memoryview(payload))
    payload[4:7] = b"\0\0\0"
    assert (vector.dtype, vector.tolist()) == (np.float64, [1, 2, 255])
    assert VectorReader(decoder, "b")(payload).tolist() == [-7]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "header.frame_id"}, "holds no numbers"),
        ({"path": "name"}, "holds no numbers"),
        ({"path": "header.stamp"}, "holds no numbers"),
        ({"unit": "turns"}, "known are 'deg' and 'rad'"),
        ({"scale": "x"}, "must be a number"),
        ({"scale": float("nan")}, "must be a finite number"),
        ({"names": ("a", "a")}, "repeat 'a'"),
        ({"names": "abc"}, "must be a list"),
        ({"names": ()}, "must be a list"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        VectorReader(standard("sensor_msgs/JointState"), **{"path": "position", **options})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sensor_msgs/msg/JointState", "position"),
        ("std_msgs/msg/Float64MultiArray", "data"),
        ("std_msgs/msg/Int32", "data"),
        ("std_msgs/msg/Bool", "data"),
        ("std_msgs/msg/String", None),
        ("std_msgs/msg/Empty", None),
        ("nav_msgs/msg/Odometry", "."),
        ("geometry_msgs/msg/Pose", "."),
        ("geometry_msgs/msg/PoseStamped", "pose"),
        ("geometry_msgs/msg/PoseWithCovarianceStamped", "pose.pose"),
        ("geometry_msgs/msg/TwistStamped", "twist"),
        ("geometry_msgs/msg/Wrench", "."),
        ("geometry_msgs/msg/PoseArray", None),
        ("sensor_msgs/msg/Imu", "."),
        ("sensor_msgs/msg/Joy", "."),
        ("trajectory_msgs/msg/JointTrajectory", "points[0].positions"),
        ("geometry_msgs/msg/AccelStamped", "accel"),
        ("geometry_msgs/msg/TransformStamped", "transform"),
        ("geometry_msgs/msg/Vector3Stamped", "vector"),
        ("geometry_msgs/msg/PointStamped", "point"),
        ("geometry_msgs/msg/PolygonStamped", None),
        ("sensor_msgs/msg/Range", "range"),
        ("sensor_msgs/msg/NavSatFix", "latitude,longitude,altitude"),
        ("sensor_msgs/msg/Image", None),
        ("sensor_msgs/msg/CameraInfo", None),
        ("std_msgs/msg/UInt8MultiArray", None),
        ("nowhere/msg/Nothing", None),
    ],
)
@pytest.mark.parametrize("distro", ["ros1", "ros2"])
def test_the_default_path_is_what_a_person_means(distro: Any, name: str, path: str | None) -> None:
    definitions = standard_definitions(distro)
    assert default_path(name, definitions) == path
    if path is not None and name in definitions:
        VectorReader(RosDecoder(definitions, name, "ros1" if distro == "ros1" else "cdr"), path)


def test_an_imu_gives_ten_numbers() -> None:
    assert VectorReader(standard("sensor_msgs/Imu"), ".").size == 10


def test_a_custom_type_with_one_array_of_numbers_has_that_as_its_default() -> None:
    text = "std_msgs/Header header\nInner joint_data\nuint8[] blob\n===\nMSG: pkg/Inner\nfloat64[] joint_q\n"
    header = "===\nMSG: std_msgs/Header\nuint32 seq\n"
    assert default_path("pkg/msg/T", parse_msg(text + header, "pkg/T")) == "joint_data.joint_q"
    assert default_path("pkg/msg/T", parse_msg(text + "float64[] joint_v\n" + header, "pkg/T")) == "joint_data.joint_q"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("float64[] joint_q\nfloat64[] joint_v\nfloat64[] tau\nint32[] control_modes", "joint_q"),
        ("float64[] left\nfloat64[] right", None),
        ("float64[] position\nfloat64[] joint_q", "joint_q"),
        ("float64[] position\nfloat64[] angles", None),
        ("float64[3] speed\nfloat64[9] speed_covariance", "speed"),
        ("float64 x\nfloat32 theta", "."),
        ("float64 x\nint32 mode", None),
        ("uint8[] blob", None),
    ],
)
def test_a_custom_type_says_by_its_names_what_is_meant(text: str, path: str | None) -> None:
    assert default_path("pkg/msg/T", parse_msg(text, "pkg/T")) == path


def test_pose_and_twist_of_an_odometry_have_short_names_and_no_covariance() -> None:
    names = VectorReader(standard("nav_msgs/Odometry"), ".").dimension_names
    assert len(names) == 13
    assert names[:4] == ("pose.position.x", "pose.position.y", "pose.position.z", "pose.orientation.x")
    assert names[-1] == "twist.angular.z"


def test_arrays_of_any_length_beside_each_other_are_named_after_their_fields() -> None:
    read = VectorReader(custom("float32[] axes\nint32[] buttons"), ".")
    assert read(struct.pack("<I2fI3i", 2, 0.5, 1, 3, 0, 1, 0)).tolist() == [0.5, 1, 0, 1, 0]
    assert read.dimension_names == ("axes.0", "axes.1", "buttons.0", "buttons.1", "buttons.2")


def test_the_same_field_of_several_messages_has_a_number_in_its_name() -> None:
    names = VectorReader(standard("sensor_msgs/MultiDOFJointState"), "transforms[0:2]").dimension_names
    assert len(set(names)) == len(names) == 14
    assert names[0] == "transforms.0.translation.x" and names[13] == "transforms.1.rotation.w"


@pytest.mark.parametrize("text", [".", "a", "a.b_1.C", "a[3]", "a[-3].b", "a[1:2]", "a[:]", "a[::2]", "a[-2:].b[0]"])
def test_paths_print_as_they_were_written(text: str) -> None:
    assert str(parse_path(text)) == text
