"""Which topics are cameras: colour or depth, of twins the better one, and a short name for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock._src.conversion.cameras.camera import COMPRESSED_DEPTH, peek
from penstock._src.conversion.report import left_out
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.recordings.values.images import COMPRESSED_TYPES, RAW_TYPES, VIDEO_TYPES
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.media.image.depth import DepthInfo

_FILLER = frozenset(
    ("camera", "color", "colour", "compressed", "image", "raw", "rgb", "sensor", "sensors", "video")
    # the last parts that image_transport and the drivers give their topics
) | {"image_color", "image_raw", "image_rect", "image_rect_color", "ffmpeg", "foxglove", "h264", "h265", "hevc"}
_DEPTH_FILLER = _FILLER | {"depth", "compresseddepth", "image_rect_raw", "image_depth", "depth_image"}
# The forms of one depth camera, best first: what is copied, what is exact, what was quantised by its sender.
_DEPTH_RANKS = (("png", "16UC1"), ("raw", "16UC1"), ("raw", "32FC1"), ("rvl", "16UC1"))


def is_image(topic: Topic) -> bool:
    return topic.type in COMPRESSED_TYPES or topic.type in RAW_TYPES or topic.type in VIDEO_TYPES


def find_cameras(recording: Recording, notes: list[str], *, use_depth: bool) -> tuple[list[Topic], list[Topic]]:
    """The topics that become colour cameras, and those that become depth; what is left out stands in the notes."""
    colour: list[Topic] = []
    depth: dict[str, DepthInfo] = {}
    images = [topic for topic in recording.topics if is_image(topic) and topic.shared_name is None]
    usable = [topic for topic in images if topic.count and topic.problem is None]
    for topic in usable:
        try:
            # Compressed images are depth only where their name says so; of others a message has to be read.
            may_be = topic.type not in VIDEO_TYPES and (topic.type in RAW_TYPES or "depth" in topic.name.lower())
            info = peek(recording, topic) if may_be else None
        except PenstockError as error:
            if topic.type in COMPRESSED_TYPES and not topic.name.endswith(COMPRESSED_DEPTH):
                colour.append(topic)  # reported where its images are read
            else:
                notes.append(left_out(topic.name, error.message.split(f"{topic.name} ", 1)[-1]))
            continue
        if info is None:
            colour.append(topic)
        else:
            depth[topic.name] = info
    deep = [topic for topic in usable if topic.name in depth]
    if not use_depth:
        deep += [topic for topic in colour if "depth" in topic.name.lower()]
        if deep:
            notes.append(f"depth left out: {', '.join(topic.name for topic in deep)}")
        return _without_colour_twins([topic for topic in colour if topic not in deep], {}, notes), []
    cameras = _without_colour_twins(colour, depth, notes)
    for topic in cameras:
        if "depth" in topic.name.lower():
            notes.append(f"{topic.name} has ordinary images: the distances were lost before they were recorded")
    return cameras, _without_depth_twins(deep, depth, notes)


def camera_names(colour: Sequence[Topic], depth: Sequence[Topic] = ()) -> dict[str, Topic]:
    """Short names from topics: /cam_h/color/image_raw/compressed → cam_h, and its depth → cam_h_depth; the whole topic
    where two would clash."""
    short: dict[str, list[Topic]] = {}
    for topic in colour:
        short.setdefault(_short_name(topic, _FILLER), []).append(topic)
    for topic in depth:
        name = _short_name(topic, _DEPTH_FILLER)
        short.setdefault(name if "depth" in name.lower() else f"{name}_depth", []).append(topic)
    names: dict[str, Topic] = {}
    for name, sharing in short.items():
        for topic in sharing:
            whole = safe_name(topic.name.strip("/").replace("/", "_"))
            names[distinct_name(name if len(sharing) == 1 else whole, topic.name, names)] = topic
    return names


def distinct_name(name: str, topic: str, used: Iterable[str]) -> str:
    """The name, with a mark of its topic where another one has it already: nothing replaces anything unseen."""
    if name.casefold() not in {each.casefold() for each in used}:
        return name
    import hashlib

    return f"{name}_{hashlib.sha256(topic.encode(errors='surrogatepass')).hexdigest()[:8]}"


def safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_\-]+", "_", name).strip("_")[:80] or "unnamed"


def _short_name(topic: Topic, filler: frozenset[str]) -> str:
    parts = [part for part in topic.name.split("/") if part]
    telling = [part for part in parts if part.lower() not in filler]
    return safe_name("_".join(telling) or parts[0] if parts else "camera")


def _base(topic: Topic) -> str:
    """The camera's own topic, of which image_transport sends other forms beside it."""
    head, _, tail = topic.name.rpartition("/")
    return head if tail in ("compressed", COMPRESSED_DEPTH, "ffmpeg", "foxglove") else topic.name


def _without_colour_twins(colour: Sequence[Topic], depth: dict[str, DepthInfo], notes: list[str]) -> list[Topic]:
    compressed = {_base(topic) for topic in colour if topic.name.endswith("/compressed")}
    twins = [topic for topic in colour if topic.name in compressed]
    if twins:
        notes.append(f"raw twins of compressed topics left out: {', '.join(topic.name for topic in twins)}")
    still = {_base(topic) for topic in colour if topic.type not in VIDEO_TYPES}
    streams = [topic for topic in colour if topic.type in VIDEO_TYPES and _base(topic) in still]
    if streams:
        notes.append(f"video twins of image topics left out: {', '.join(topic.name for topic in streams)}")
        twins += streams
    of_depth = {name.removesuffix(f"/{COMPRESSED_DEPTH}").removesuffix("/compressed") for name in depth}
    shown = [topic for topic in colour if _base(topic) in of_depth and topic not in twins]
    if shown:
        notes.append(f"images of depth topics left out: {', '.join(topic.name for topic in shown)}")
    return [topic for topic in colour if topic not in twins and topic not in shown]


def _without_depth_twins(topics: Sequence[Topic], depth: dict[str, DepthInfo], notes: list[str]) -> list[Topic]:
    best: dict[str, Topic] = {}
    for topic in sorted(topics, key=lambda each: _rank(depth[each.name])):
        best.setdefault(_base(topic), topic)
    twins = [topic for topic in topics if best[_base(topic)] is not topic]
    for topic in twins:
        notes.append(left_out(topic.name, f"{best[_base(topic)].name} is the same depth"))
    return [topic for topic in topics if topic not in twins]


def _rank(info: DepthInfo) -> int:
    form = (info.packing, info.values)
    return _DEPTH_RANKS.index(form) if form in _DEPTH_RANKS else len(_DEPTH_RANKS)
