"""metadata.yaml for a ROS 2 bag that was recovered: what its new files hold, as rosbag2 writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.recordings.metadata import FILE_NAME, ROOT_KEY
from penstock.system import plain_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Understood by every release since Foxy's successors; later versions only add fields.
METADATA_VERSION = 5
_NO_TIME_NS = (1 << 63) - 1


@dataclass(frozen=True)
class TopicFacts:
    """One topic as metadata.yaml lists it."""

    name: str
    type: str
    encoding: str
    qos: str = ""
    type_hash: str = ""


@dataclass
class FileFacts:
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


def bag_information(files: Sequence[FileFacts]) -> dict[str, Any]:
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


def _file_entry(file: FileFacts) -> dict[str, Any]:
    first_ns = _NO_TIME_NS if file.first_ns is None else file.first_ns
    return {
        "path": file.path,
        "starting_time": {"nanoseconds_since_epoch": first_ns},
        "duration": {"nanoseconds": (file.last_ns or first_ns) - first_ns},
        "message_count": file.messages,
    }


def write_metadata(directory: Path, files: Sequence[FileFacts]) -> Path:
    """Write metadata.yaml into a bag's directory."""
    path = directory / FILE_NAME
    path.write_text(plain_yaml.dump({ROOT_KEY: bag_information(files)}), encoding="utf-8")
    return path
