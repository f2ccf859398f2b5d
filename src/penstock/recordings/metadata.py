"""metadata.yaml of a ROS 2 bag: a helper that is never trusted over the files it speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.formats.content import foreign_content
from penstock.recordings.messages.schemas import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE_NAME = "metadata.yaml"
ROOT_KEY = "rosbag2_bagfile_information"
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Metadata:
    """What penstock takes from metadata.yaml: the files, the compression, and counts to compare with."""

    files: tuple[str, ...] = ()
    compression_format: str = ""
    compression_mode: str = ""
    counts: tuple[tuple[str, str, int], ...] = ()
    file_counts: tuple[tuple[str, int], ...] = ()


def read_metadata(path: Path) -> tuple[Metadata, list[str]]:
    """What the file says, and notes about what in it cannot be used."""
    from penstock.system import plain_yaml

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
    found = []
    for entry in entries:
        about = entry.get("topic_metadata") if isinstance(entry, dict) else None
        count = entry.get("message_count") if isinstance(entry, dict) else None
        if isinstance(about, dict) and isinstance(count, int):
            found.append((_text(about, "name"), type_name(_text(about, "type")), count))
    return tuple(found)


def disagreements(metadata: Metadata, counted: Mapping[tuple[str, str], int]) -> list[str]:
    """Notes where metadata.yaml and the files differ in topics, types or counts; the files are right."""
    notes = []
    claimed: dict[tuple[str, str], int] = {}
    for name, kind, count in metadata.counts:
        claimed[name, kind] = claimed.get((name, kind), 0) + count
    for key in sorted(claimed.keys() | counted.keys()):
        said, found = claimed.get(key), counted.get(key)
        if metadata.counts and said != found and (said or found):
            notes.append(
                f"{FILE_NAME} lists {'no' if said is None else said} messages of {key[0]} ({key[1]}); "
                f"the files hold {'none' if found is None else found}"
            )
    return notes
