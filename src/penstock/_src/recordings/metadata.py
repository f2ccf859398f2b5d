"""metadata.yaml of a ROS 2 bag: read, and never trusted over the files it speaks of; written for recovered bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock._src.formats.content import foreign_content
from penstock._src.recordings.messages.schemas import type_name
from penstock.errors import PenstockError

FILE_NAME = "metadata.yaml"
ROOT_KEY = "rosbag2_bagfile_information"
_MAX_BYTES = 16 << 20
# Understood by every release since Foxy's successors; later versions only add fields.
METADATA_VERSION = 5
_NO_TIME_NS = (1 << 63) - 1


class Metadata(NamedTuple):
    """What penstock takes from metadata.yaml: the files, the compression, and counts to compare with."""

    files: tuple[str, ...] = ()
    compression_format: str = ""
    compression_mode: str = ""
    counts: tuple[tuple[str, str, int], ...] = ()
    file_counts: tuple[tuple[str, int], ...] = ()


def read_metadata(path: Path) -> tuple[Metadata, list[str]]:
    """What the file says, and notes about what in it cannot be used."""
    from penstock._src.system import plain_yaml

    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            return Metadata(), [f"{path.name} is larger than {_MAX_BYTES:,} bytes and was left aside"]
        tree = plain_yaml.parse(data.decode("utf-8", errors="replace"), str(path))
    except OSError as error:
        return Metadata(), [f"{path.name} cannot be read ({error.strerror}); the files were read without it"]
    except PenstockError as error:
        return Metadata(), [f"{path.name} is broken ({error.message}); the files were read without it"]
    root = tree.get(ROOT_KEY) if isinstance(tree, dict) else None
    if not isinstance(root, dict) and (foreign := foreign_content(path)) is not None:
        return Metadata(), [f"{path.name} is {foreign.what}; the files were read without it ({foreign.hint})"]
    if not isinstance(root, dict):
        return Metadata(), [f"{path.name} holds no {ROOT_KEY}; the files were read without it"]
    return Metadata(
        files=tuple(name for name in _list(root, "relative_file_paths") if isinstance(name, str)),
        compression_format=_text(root, "compression_format").lower(),
        compression_mode=_text(root, "compression_mode").lower(),
        counts=_topic_counts(_list(root, "topics_with_message_count")),
        file_counts=tuple(
            (entry["path"], entry["message_count"])
            for entry in _list(root, "files")
            if isinstance(entry, dict)
            and isinstance(entry.get("path"), str)
            and isinstance(entry.get("message_count"), int)
        ),
    ), []


def _list(tree: Mapping[str, Any], key: str) -> list[Any]:
    value = tree.get(key)
    return value if isinstance(value, list) else []


def _text(tree: Mapping[str, Any], key: str) -> str:
    value = tree.get(key)
    return value if isinstance(value, str) else ""


def _topic_counts(entries: list[Any]) -> tuple[tuple[str, str, int], ...]:
    counts = []
    for entry in entries:
        about = entry.get("topic_metadata") if isinstance(entry, dict) else None
        count = entry.get("message_count") if isinstance(entry, dict) else None
        if isinstance(about, dict) and isinstance(count, int):
            counts.append((_text(about, "name"), type_name(_text(about, "type")), count))
    return tuple(counts)


def disagreements(metadata: Metadata, counted: Mapping[tuple[str, str], int]) -> list[str]:
    """Notes where metadata.yaml and the files differ in topics, types or counts; the files are right."""
    notes = []
    claimed: dict[tuple[str, str], int] = {}
    for name, kind, count in metadata.counts:
        claimed[name, kind] = claimed.get((name, kind), 0) + count
    for key in sorted(claimed.keys() | counted.keys()):
        listed, actual = claimed.get(key), counted.get(key)
        if metadata.counts and listed != actual and (listed or actual):
            notes.append(
                f"{FILE_NAME} lists {'no' if listed is None else listed} messages of {key[0]} ({key[1]}); "
                f"the files hold {'none' if actual is None else actual}"
            )
    return notes


class TopicFacts(NamedTuple):
    """One topic as metadata.yaml lists it."""

    name: str
    type: str
    encoding: str
    qos: str = ""
    type_hash: str = ""


@dataclass(eq=False)
class RecordingFileFacts:
    """What one new file holds."""

    path: str
    storage: str
    first_ns: int | None = None
    last_ns: int | None = None
    topics: dict[TopicFacts, int] = field(default_factory=dict)
    packed_messages: bool = False

    def count(self, topic: TopicFacts, time_ns: int) -> None:
        """One message of a topic was written."""
        self.topics[topic] = self.topics.get(topic, 0) + 1
        if self.first_ns is None or self.last_ns is None:
            self.first_ns = self.last_ns = time_ns
        self.first_ns, self.last_ns = min(self.first_ns, time_ns), max(self.last_ns, time_ns)

    @property
    def messages(self) -> int:
        return sum(self.topics.values())


def bag_information(files: Sequence[RecordingFileFacts]) -> dict[str, Any]:
    """The content of metadata.yaml below its root key."""
    topics: dict[TopicFacts, int] = {}
    for file in files:
        for topic, count in file.topics.items():
            topics[topic] = topics.get(topic, 0) + count
    used = [file for file in files if file.first_ns is not None]
    first_ns = min((file.first_ns or 0 for file in used), default=_NO_TIME_NS)
    last_ns = max((file.last_ns or 0 for file in used), default=first_ns)
    packed = any(file.packed_messages for file in files)
    return {
        "version": METADATA_VERSION,
        "storage_identifier": files[0].storage,
        "duration": {"nanoseconds": last_ns - first_ns},
        "starting_time": {"nanoseconds_since_epoch": first_ns},
        "message_count": sum(topics.values()),
        "topics_with_message_count": [
            {
                "topic_metadata": {
                    "name": topic.name,
                    "type": topic.type,
                    "serialization_format": topic.encoding,
                    "offered_qos_profiles": topic.qos,
                },
                "message_count": count,
            }
            for topic, count in sorted(topics.items(), key=lambda item: (item[0].name, item[0].type))
        ],
        "compression_format": "zstd" if packed else "",
        "compression_mode": "message" if packed else "",
        "relative_file_paths": [file.path for file in files],
        "files": [_file_entry(file) for file in files],
    }


def _file_entry(file: RecordingFileFacts) -> dict[str, Any]:
    first_ns = _NO_TIME_NS if file.first_ns is None else file.first_ns
    return {
        "path": file.path,
        "starting_time": {"nanoseconds_since_epoch": first_ns},
        "duration": {"nanoseconds": (file.last_ns or first_ns) - first_ns},
        "message_count": file.messages,
    }


def write_metadata(directory: Path, files: Sequence[RecordingFileFacts]) -> Path:
    """Write metadata.yaml into a bag's directory."""
    from penstock._src.system import plain_yaml

    path = directory / FILE_NAME
    path.write_text(plain_yaml.dump({ROOT_KEY: bag_information(files)}), encoding="utf-8")
    return path
