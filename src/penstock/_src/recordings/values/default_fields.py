"""The numbers that a person means by a topic of some type: known types by name, others by what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock._src.recordings.messages.definitions import DURATION_TYPE, HEADER_TYPE, TIME_TYPE, FieldDef, MessageDef

_NOT_NUMBERS = ("uint8", "byte", "char", "time", "duration")
_TIMES = ("time", "duration", TIME_TYPE, DURATION_TYPE)
_TEXTS = ("string", "wstring")
_FLOATS = ("float32", "float64")

# Best first: a message may leave some of its arrays empty, as velocity commands do with positions.
_PATHS: Mapping[str, tuple[str, ...]] = {
    "sensor_msgs/msg/JointState": ("position", "velocity", "effort"),
    "sensor_msgs/msg/Joy": (".", "axes"),
    "sensor_msgs/msg/Imu": (".",),
    "sensor_msgs/msg/Range": ("range",),
    "sensor_msgs/msg/NavSatFix": ("latitude,longitude,altitude",),
    "sensor_msgs/msg/LaserScan": ("ranges",),
    "sensor_msgs/msg/BatteryState": ("voltage,current,percentage",),
    "interbotix_xs_msgs/msg/JointSingleCommand": ("cmd",),
    "interbotix_xs_msgs/msg/JointGroupCommand": ("cmd",),
    "sensor_msgs/msg/Temperature": ("temperature",),
    "sensor_msgs/msg/FluidPressure": ("fluid_pressure",),
    "sensor_msgs/msg/Illuminance": ("illuminance",),
    "sensor_msgs/msg/RelativeHumidity": ("relative_humidity",),
    "sensor_msgs/msg/MagneticField": ("magnetic_field",),
    "nav_msgs/msg/Odometry": (".",),
    "trajectory_msgs/msg/JointTrajectory": ("points[0].positions", "points[0].velocities", "points[0].effort"),
    "trajectory_msgs/msg/JointTrajectoryPoint": ("positions", "velocities", "effort"),
    "control_msgs/msg/JointJog": ("velocities", "displacements"),
    "control_msgs/msg/GripperCommand": (".",),
    "control_msgs/msg/JointTrajectoryControllerState": ("actual.positions", "feedback.positions"),
    "control_msgs/msg/JointControllerState": ("process_value",),
    "ackermann_msgs/msg/AckermannDrive": (".",),
    "ackermann_msgs/msg/AckermannDriveStamped": ("drive",),
    "foxglove.FrameTransform": (".",),
    "foxglove.LaserScan": ("ranges",),
    "foxglove.LocationFix": ("latitude,longitude,altitude",),
    "foxglove.Odometry": ("pose,linear_velocity,angular_velocity",),
    "foxglove.Point3InFrame": ("point",),
    "foxglove.Pose": (".",),
    "foxglove.PoseInFrame": ("pose",),
}
_GEOMETRY = {"": ".", "Stamped": "{0}", "WithCovariance": "{0}", "WithCovarianceStamped": "{0}.{0}"}
_STEMS = ("Pose", "Twist", "Wrench", "Accel", "Transform", "Vector3", "Point", "Quaternion")
# Of those the field inside of the stamped message has another name.
_STAMPED_FIELDS = {"Vector3": "vector"}
# Types with one message per joint: how many there are only a message tells.
PER_JOINT: Mapping[str, str] = {
    "sensor_msgs/msg/MultiDOFJointState": "transforms[0:{}]",
    "foxglove.JointStates": "joints[0:{}].position",
}
# Types with one value of one joint in a message: the field that names the joint.
ONE_JOINT: Mapping[str, str] = {"interbotix_xs_msgs/msg/JointSingleCommand": "name"}
# Degrees of latitude: single precision is half a metre.
DOUBLE_PRECISION = frozenset(("sensor_msgs/msg/NavSatFix", "foxglove.LocationFix"))
# What is recorded, and is no vector.
_TRANSFORMS = (
    "transforms: name two frames under features:, as in {tf: base→tool} (penstock inspect --fields /tf lists them)"
)
NO_VECTOR: Mapping[str, str] = {
    "sensor_msgs/msg/PointCloud2": "a point cloud has a different number of points in each message",
    "sensor_msgs/msg/PointCloud": "a point cloud has a different number of points in each message",
    "nav_msgs/msg/OccupancyGrid": "a map is no vector of numbers",
    "tf2_msgs/msg/TFMessage": _TRANSFORMS,
    "tf/msg/tfMessage": _TRANSFORMS,
}
# What robots call the positions of their joints, where a message has several arrays.
_POSITIONS = frozenset(("angle", "angles", "pos", "position", "positions", "q", "qpos")) | frozenset(
    ("joint_angle", "joint_angles", "joint_pos", "joint_position", "joint_positions", "joint_q")
)


def default_path(type_name: str, definitions: Mapping[str, MessageDef]) -> str | None:
    """The field that a person means by a topic of this type, None when that is not clear.

    >>> from penstock._src.recordings.messages.standard_types import standard_definitions
    >>> default_path("geometry_msgs/msg/PoseStamped", standard_definitions("ros2"))
    'pose'
    """
    return next(iter(default_paths(type_name, definitions)), None)


def default_paths(type_name: str, definitions: Mapping[str, MessageDef]) -> tuple[str, ...]:
    """The fields that may be meant, best first; nothing where it is not clear."""
    message = definitions.get(type_name)
    if message is None or type_name in NO_VECTOR:
        return ()
    if type_name in _PATHS:
        return tuple(path for path in _PATHS[type_name] if _exists(definitions, message, path))
    package, _, last = type_name.rpartition("/")
    if package == "geometry_msgs/msg":
        for stem in _STEMS:
            if last.startswith(stem) and (rest := last[len(stem) :]) in _GEOMETRY:
                field = _STAMPED_FIELDS.get(stem, stem.lower())
                path = _GEOMETRY[rest].format(field)
                return (path,) if _exists(definitions, message, path) else ()
    data = message.field("data")
    if package in ("std_msgs/msg", "example_interfaces/msg") and data is not None and data.type.kind == "primitive":
        payload = data.type.array is not None and data.type.name in _NOT_NUMBERS
        return () if payload or data.type.name in _TIMES else ("data",)
    return _by_contents(type_name, definitions)


def holds_numbers(type_name: str, definitions: Mapping[str, MessageDef]) -> bool:
    """Whether messages of this type have a number that a feature may name, besides headers and times."""
    seen, todo = {type_name}, [type_name]
    while todo:
        message = definitions.get(todo.pop())
        if message is None:  # not known before a message is read
            return True
        for each in (field.type for field in message.fields):
            if each.name in (*_TIMES, *_TEXTS, HEADER_TYPE):
                continue
            if each.kind != "message":
                return True
            if each.name not in seen:
                seen.add(each.name)
                todo.append(each.name)
    return False


def is_joint_vector(type_name: str, path: str) -> bool:
    """Whether a path leads to the positions of joints, rather than to any numbers."""
    return type_name == "sensor_msgs/msg/JointState" or path.rsplit(".", 1)[-1].split("[")[0] in _POSITIONS


def _exists(definitions: Mapping[str, MessageDef], message: MessageDef, path: str) -> bool:
    if "," in path:
        return all(_exists(definitions, message, each) for each in path.split(","))
    for part in path.split(".") if path != "." else ():
        field = message.field(part.split("[")[0])
        if field is None:
            return False
        message = definitions.get(field.type.name, message)
    return True


def _by_contents(type_name: str, definitions: Mapping[str, MessageDef]) -> tuple[str, ...]:
    """Of unknown types: the only array, the one that is named like positions, or a handful of plain numbers."""
    arrays = list(_numeric_arrays(definitions, type_name, ""))
    if len(arrays) == 1:
        return (arrays[0],)
    named = [path for path in arrays if path.rsplit(".", 1)[-1] in _POSITIONS]
    of_joints = [path for path in named if "joint" in path]
    for candidates in (named, of_joints):
        if len(candidates) == 1:
            return (candidates[0],)
    message = definitions[type_name]
    fields = [field.type for field in message.fields if field.type.name != HEADER_TYPE and not _is_stamp(field)]
    if fields and all(each.kind == "primitive" and each.array is None and each.name in _FLOATS for each in fields):
        return (".",)
    return ()


def _is_stamp(field: FieldDef) -> bool:
    """What foxglove's messages have instead of a header."""
    return field.name == "timestamp" and field.type.name == "time"


def _numeric_arrays(definitions: Mapping[str, MessageDef], type_name: str, prefix: str) -> Iterator[str]:
    """Paths of the arrays of numbers that are there once in every message; bytes are payload, not numbers."""
    message = definitions.get(type_name)
    for field in message.fields if message else ():
        kind = field.type
        if kind.kind == "message" and kind.array is None and kind.name != HEADER_TYPE:
            yield from _numeric_arrays(definitions, kind.name, f"{prefix}{field.name}.")
        elif kind.kind != "primitive" or kind.array is None or kind.name in _NOT_NUMBERS:
            continue
        elif "covariance" not in field.name:
            yield f"{prefix}{field.name}"
