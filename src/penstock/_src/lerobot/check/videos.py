"""The videos of a data set: one frame per row, at its time, in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock._src.formats.findings import Findings
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.layout import FilePosition
from penstock._src.lerobot.read.frames import KNOWN_CODECS, TOLERANCE_S
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.image import codec, jpeg
from penstock._src.media.mp4.index import ERRORS, VideoIndex, read_index
from penstock._src.media.video import decode
from penstock._src.system.files import RemotePath, as_path, open_source, warm
from penstock.errors import PenstockError, RemoteError

WARMED_FILES = 32  # whose ends are asked for together
# From here on two neighbouring float32 are farther apart than the tolerance.
_FLOAT32_LIMIT_S = 1024.0


@dataclass(frozen=True)
class _Span:
    """The frames that one episode claims in a file."""

    episode: int
    from_s: float
    to_s: float
    rows: int


def check_videos(data: DataSet, findings: Findings, *, full: bool, samples: int) -> None:
    """Hold every video file against the episodes that lie in it."""
    for key, place in data.episodes.videos.items():
        files: dict[FilePosition, list[_Span]] = {}
        for episode in range(len(data.episodes)):
            position = FilePosition(int(place.chunk[episode]), int(place.file[episode]))
            if position.chunk < 0:
                findings.error("video", data.root, f"the episodes table names no video of {key!r} (episode {episode})")
                continue
            length = int(data.episodes.length[episode])
            span = _Span(episode, float(place.from_s[episode]), float(place.to_s[episode]), length)
            files.setdefault(position, []).append(span)
        places = sorted(files.items())
        for number, (position, spans) in enumerate(places):
            if not number % WARMED_FILES:
                warm({data.video_path(key, each): 0 for each, _ in places[number : number + WARMED_FILES]})
            try:
                path = data.video_path(key, position)
                if path.is_file():
                    _check_file(data, key, path, spans, findings, full=full, samples=samples)
            except RemoteError:
                raise
            except PenstockError as error:
                findings.error("video", f"{data.root}: camera {key!r}", error.message, error.hint)


def _check_file(
    data: DataSet, key: str, path: Path, spans: Sequence[_Span], findings: Findings, *, full: bool, samples: int
) -> None:
    feature, fps = data.info.features[key], data.info.fps
    index = read_index(path)
    frames = len(index.presentation_order())
    findings.counted["frames"] += frames
    if index.codec not in KNOWN_CODECS:
        findings.error("codec", path, f"codec {index.codec!r} is not one of {', '.join(KNOWN_CODECS)}")
        return
    claimed = (feature.info or {}).get("video.codec")
    if claimed is not None and claimed != index.codec:  # readers go by the file
        findings.add("info", "codec", path, f"info.json says {claimed!r}, the file is {index.codec!r}")
    if (index.height, index.width) != feature.shape[:2]:
        findings.error("video size", path, f"{index.width}×{index.height} px, but camera {key!r} is {feature.shape}")
    _check_spans(data, key, path, spans, frames, findings)
    _check_times(path, index, fps, findings)
    size = path.stat().st_size
    beyond = np.flatnonzero(index.offsets + index.sizes > size)
    if len(beyond):
        findings.error(
            "video cut", path, f"frame {beyond[0]} of {frames} lies beyond the end of the file ({size:,} bytes)"
        )
        return
    wanted = (
        range(frames) if full else sorted(set(np.linspace(0, frames - 1, min(samples, frames)).astype(int).tolist()))
    )
    if len(wanted):
        _decode(index, feature, wanted, findings)


def warm_episodes(data: DataSet, numbers: Sequence[int]) -> None:
    """Of a remote data set with a file per episode, ask at once for the ends of the files of some episodes."""
    wanted: dict[Path, int] = {}
    if isinstance(data.root, RemotePath):
        for number in numbers:
            with suppress(PenstockError):
                wanted |= {span.path: 0 for span in data.row_spans(number)}
                wanted |= {data.video_file(number, key): 0 for key in data.info.video_keys}
    warm(wanted)


def decode_all(index: VideoIndex, feature: Feature, findings: Findings) -> None:
    """Decode every frame of a file, whatever codec it has."""
    _decode(index, feature, range(len(index.presentation_order())), findings)


def _decode(index: VideoIndex, feature: Feature, wanted: Sequence[int], findings: Findings) -> None:
    path = as_path(index.path)
    if index.codec == "mjpeg":
        _decode_jpegs(path, index, feature, wanted, findings)
    else:
        _decode_frames(path, wanted, findings)


def _check_spans(data: DataSet, key: str, path: Path, spans: Sequence[_Span], frames: int, findings: Findings) -> None:
    fps = data.info.fps
    rows = sum(span.rows for span in spans)
    if rows != frames:
        named = f"episode {spans[0].episode}" if len(spans) == 1 else f"episodes {spans[0].episode}…{spans[-1].episode}"
        message = f"camera {key!r}: {frames} frames for the {rows} rows of {named}"
        findings.error("frame count", path, message, "every row needs exactly one frame")
    expected = 0
    for span in sorted(spans, key=lambda span: span.from_s):
        if abs(span.from_s - expected / fps) > TOLERANCE_S:
            message = (
                f"episode {span.episode}: from_timestamp is {span.from_s:.6f} s, "
                f"but its frames start at {expected / fps:.6f} s"
            )
            findings.error("video times", path, message)
        expected += span.rows
        if span.from_s > 0 and expected / fps > _FLOAT32_LIMIT_S:
            message = (
                f"episode {span.episode} ends at {expected / fps:.0f} s of a shared file; LeRobot compares times as "
                f"float32 and may not find its frames within {TOLERANCE_S} s"
            )
            findings.add("info", "late frames", path, message, "read it with a larger tolerance_s")
        if abs(span.to_s - expected / fps) > TOLERANCE_S + 0.5 / fps:
            # LeRobot finds frames by from_timestamp; whether there are enough is counted above.
            end = f"its frames end at {expected / fps:.6f} s"
            message = f"episode {span.episode}: to_timestamp is {span.to_s:.6f} s, {end}"
            findings.add("info", "video ends", path, message, f"penstock convert {data.root} OUT writes the right one")


def _check_times(path: Path, index: VideoIndex, fps: int, findings: Findings) -> None:
    """Readers find a frame by its time, or by `round(time × average rate)`: both need a constant rate from 0 on."""
    seconds = index.pts[index.presentation_order()] / index.timescale
    wrong = np.flatnonzero(np.abs(seconds - np.arange(len(seconds)) / fps) > TOLERANCE_S)
    if len(wrong):
        first = int(wrong[0])
        message = (
            f"frame {first} is shown at {seconds[first]:.6f} s, at {fps} fps it belongs at {first / fps:.6f} s "
            f"({len(wrong)} of {len(seconds)} frames)"
        )
        findings.error("frame times", path, message)


def _decode_jpegs(path: Path, index: VideoIndex, feature: Feature, wanted: Sequence[int], findings: Findings) -> None:
    probe = jpeg.JpegProbe()
    order = index.presentation_order()
    with open_source(path, ERRORS) as source:
        for number in wanted:
            sample = int(order[number])
            piece = source.read(int(index.offsets[sample]), int(index.sizes[sample]))
            findings.counted["frames decoded"] += 1
            try:
                info = probe.probe(piece)
                codec.decode(piece)
            except PenstockError as error:
                findings.error("undecodable frame", path, f"frame {number}: {error.message}")
                continue
            if (info.height, info.width) != feature.shape[:2]:
                message = f"frame {number} is {info.width}×{info.height} px, the feature is {feature.shape}"
                findings.error("video size", path, message)


def _decode_frames(path: Path, wanted: Sequence[int], findings: Findings) -> None:
    decoded = 0
    try:
        for _ in decode.frames(path, wanted):
            decoded += 1
    except PenstockError as error:
        findings.error("undecodable frame", path, f"after {decoded} decoded frames: {error.message}", error.hint)
    findings.counted["frames decoded"] += decoded
