"""Protobuf types and messages for tests, made at run time from lines of .proto text; recordings that hold them.

The bytes of the messages come from the protobuf library, so nothing here shares code with penstock's decoders.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

KINDS = ("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
         "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64")  # fmt: skip
STAMP = "google.protobuf.Timestamp timestamp = 1"
# As foxglove publishes them, less what no test needs.
FOXGLOVE = {
    "foxglove.Vector3": "double x = 1; double y = 2; double z = 3",
    "foxglove.Quaternion": "double x = 1; double y = 2; double z = 3; double w = 4",
    "foxglove.Pose": "foxglove.Vector3 position = 1; foxglove.Quaternion orientation = 2",
    "foxglove.KeyValuePair": "string key = 1; string value = 2",
    "foxglove.CompressedImage": f"{STAMP}; string frame_id = 4; bytes data = 2; string format = 3",
    "foxglove.RawImage": f"{STAMP}; string frame_id = 7; fixed32 width = 2; fixed32 height = 3; string encoding = 4; "
    "fixed32 step = 5; bytes data = 6",
    "foxglove.CompressedVideo": f"{STAMP}; string frame_id = 2; bytes data = 3; string format = 4",
    "foxglove.PoseInFrame": f"{STAMP}; string frame_id = 2; foxglove.Pose pose = 3",
    "foxglove.FrameTransform": f"{STAMP}; string parent_frame_id = 2; string child_frame_id = 3; "
    "foxglove.Vector3 translation = 4; foxglove.Quaternion rotation = 5",
    "foxglove.FrameTransforms": "repeated foxglove.FrameTransform transforms = 1",
    "foxglove.LocationFix": "google.protobuf.Timestamp timestamp = 6; string frame_id = 7; double latitude = 1; "
    "double longitude = 2; double altitude = 3; repeated double position_covariance = 4; "
    "int32 position_covariance_type = 5; optional double heading = 10; repeated foxglove.KeyValuePair metadata = 9",
    "foxglove.Odometry": f"{STAMP}; string frame_id = 2; string body_frame_id = 3; foxglove.Pose pose = 4; "
    "foxglove.Vector3 linear_velocity = 5; foxglove.Vector3 angular_velocity = 6; repeated double pose_covariance = 7; "
    "repeated foxglove.KeyValuePair metadata = 9",
    "foxglove.LaserScan": f"{STAMP}; string frame_id = 2; foxglove.Pose pose = 3; double start_angle = 4; "
    "double end_angle = 5; repeated double ranges = 6; repeated double intensities = 7",
    "foxglove.JointState": "string name = 1; optional double position = 2; optional double velocity = 3",
    "foxglove.JointStates": f"{STAMP}; repeated foxglove.JointState joints = 2",
}


class Types:
    """Message classes by full name; `descriptors(name)` is what a recording carries of one."""

    def __init__(self, types: Mapping[str, str], *, syntax: str = "proto3") -> None:
        pytest.importorskip("google.protobuf", reason="protobuf is not installed")
        from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

        self._classes: dict[str, Any] = {}
        self.files = descriptor_pb2.FileDescriptorSet()
        for module in (timestamp_pb2, duration_pb2):
            module.DESCRIPTOR.CopyToProto(self.files.file.add())
        file = self.files.file.add(name="test.proto", syntax=syntax)
        file.dependency.extend(each.name for each in self.files.file[:2])
        packages = {name.rpartition(".")[0] for name in types}
        (file.package,) = packages
        for name, text in types.items():
            self._add(file.message_type.add(name=name.rpartition(".")[2]), text, packages)

    def _add(self, message: Any, text: str, packages: set[str]) -> None:
        for line in filter(None, (line.strip() for line in text.split(";"))):
            declared, _, rest = line.partition("=")
            *label, kind, name = declared.split()
            number, _, option = rest.strip().partition(" ")
            field = message.field.add(name=name, number=int(number), label=3 if "repeated" in label else 1)
            if kind in KINDS:
                field.type = KINDS.index(kind) + 1
            else:
                field.type, field.type_name = 11, f".{kind}"
            if label == ["optional"]:
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            if option.startswith("default"):
                field.default_value = option.partition(" ")[2]
            if option == "unpacked":
                field.options.packed = False

    @property
    def descriptors(self) -> bytes:
        return bytes(self.files.SerializeToString())

    def new(self, name: str, **fields: Any) -> Any:
        if name not in self._classes:
            self._classes[name] = self._class(name)
        return self._classes[name](**fields)

    def _class(self, name: str) -> Any:
        from google.protobuf import descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        for file in self.files.file:
            pool.AddSerializedFile(file.SerializeToString())
        found = pool.FindMessageTypeByName(name)
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(found)
        return message_factory.MessageFactory(pool).GetPrototype(found)


class Entry(NamedTuple):
    topic: str
    type: str
    time_ns: int
    fields: Mapping[str, Any]


def stamp(time_ns: int) -> dict[str, int]:
    return {"seconds": time_ns // 1_000_000_000, "nanos": time_ns % 1_000_000_000}


def write_protobuf(path: Path, types: Mapping[str, str], entries: Iterable[Entry], **options: Any) -> Path:
    """An mcap file of protobuf messages; `fields` with the key "raw" are bytes as they are."""
    from mcap.writer import Writer

    made = Types(types)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        channels: dict[str, int] = {}
        for topic, kind, time_ns, fields in entries:
            if topic not in channels:
                schema = writer.register_schema(kind, "protobuf", made.descriptors)
                channels[topic] = writer.register_channel(topic, "protobuf", schema)
            payload = fields["raw"] if "raw" in fields else made.new(kind, **fields).SerializeToString()
            writer.add_message(channels[topic], time_ns, payload, time_ns)
        writer.finish()
    return path


# The same as JSON: proto's kinds in the words of a JSON Schema


def write_json(
    path: Path, types: Mapping[str, str], entries: Iterable[Entry], *, described: bool = True, **options: Any
) -> Path:
    """An mcap file of JSON messages, with a JSON Schema for each type or without any."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start()
        channels: dict[str, int] = {}
        for topic, kind, time_ns, fields in entries:
            if topic not in channels:
                schema = 0
                if described:
                    text = json.dumps(json_schema(types, kind)).encode()
                    schema = writer.register_schema(kind, "jsonschema", text)
                channels[topic] = writer.register_channel(topic, "json", schema)
            payload = fields["raw"] if "raw" in fields else json.dumps(_as_json(fields)).encode()
            writer.add_message(channels[topic], time_ns, payload, time_ns)
        writer.finish()
    return path


def json_schema(types: Mapping[str, str], name: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for line in types[name].split(";"):
        *label, kind, field = line.partition("=")[0].split()
        if kind == "google.protobuf.Timestamp":
            parts = {"sec": {"type": "integer", "minimum": 0}, "nsec": {"type": "integer", "minimum": 0}}
            one: dict[str, Any] = {"type": "object", "title": "time", "properties": parts}
        elif kind in types:
            one = json_schema(types, kind)
        elif kind == "bytes":
            one = {"type": "string", "contentEncoding": "base64"}
        else:
            one = {"type": "number" if kind in ("double", "float") else "string" if kind == "string" else "integer"}
        properties[field] = {"type": "array", "items": one} if "repeated" in label else one
    return {"title": name, "type": "object", "properties": properties}


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"seconds", "nanos"}:
            return {"sec": value["seconds"], "nsec": value["nanos"]}
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
