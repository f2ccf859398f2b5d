"""The videos of a data set: one frame per row, at its time, in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.formats.findings import Findings
from penstock._src.lerobot import layout
from penstock._src.lerobot.check.rows import as_findings
from penstock._src.lerobot.read.frames import KNOWN_CODECS, TOLERANCE_S
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.image import codec
from penstock._src.media.mp4.index import ERRORS, VideoIndex, read_index
from penstock._src.media.video import decode
from penstock._src.system.files import open_source, warm
from penstock.errors import PenstockError, VideoError

_WARMED_FILES = 32  # whose ends are asked for together


def check_videos(data: DataSet, findings: Findings, *, samples: int | None) -> None:
    """Hold every video file against the episodes that lie in it; `samples` of its frames are decoded (None: all)."""
    for key in data.info.video_keys:
        files, of_episode = data.named_files(key)
        episodes: list[list[int]] = [[] for _ in files]
        for number, place in enumerate(of_episode.tolist()):
            if place < 0:
                message = f"the episodes table names no video of {key!r} (episode {number})"
                findings.error("video", data.root, message)
            else:
                episodes[place].append(number)
        for place, relative in enumerate(files):
            if not place % _WARMED_FILES:
                warm({data.root / each: 0 for each in files[place : place + _WARMED_FILES]})
            with as_findings(findings, "video", f"{data.root}: camera {key!r}"):
                path = layout.path_in(data.root, relative)
                if path.is_file():
                    _check_file(data, key, path, episodes[place], findings, samples)


def _check_file(
    data: DataSet, key: str, path: Path, episodes: Sequence[int], findings: Findings, samples: int | None
) -> None:
    feature, index = data.info.features[key], read_index(path)
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
    rows = int(data.episodes.length[episodes].sum())
    if rows != frames:
        first, last = (int(data.episodes.index[episodes[end]]) for end in (0, -1))
        named = f"episode {first}" if len(episodes) == 1 else f"episodes {first}…{last}"
        message = f"camera {key!r}: {frames} frames for the {rows} rows of {named}"
        findings.error("frame count", path, message, "every row needs exactly one frame")
    if data.is_v30:
        _check_spans(data, key, path, episodes, findings)
    _check_times(data, path, index, findings)
    count = frames if samples is None else min(samples, frames)
    if count:
        _decode(path, index, np.unique(np.linspace(0, frames - 1, count).astype(int)).tolist(), findings)


def _check_spans(data: DataSet, key: str, path: Path, episodes: Sequence[int], findings: Findings) -> None:
    """Where the episodes table says that frames begin and end."""
    place, lengths, fps = data.episodes.videos[key], data.episodes.length, data.info.fps
    start = 0
    for episode in sorted(episodes, key=lambda each: place.from_s[each]):
        end = start + int(lengths[episode])
        from_s, to_s = float(place.from_s[episode]), float(place.to_s[episode])
        if abs(from_s - start / fps) > TOLERANCE_S:
            message = (
                f"episode {episode}: from_timestamp is {from_s:.6f} s, but its frames start at {start / fps:.6f} s"
            )
            findings.error("video times", path, message)
        if abs(to_s - end / fps) > TOLERANCE_S + 0.5 / fps:
            # LeRobot finds frames by from_timestamp; whether there are enough is counted before.
            message = f"episode {episode}: to_timestamp is {to_s:.6f} s, its frames end at {end / fps:.6f} s"
            findings.add("info", "video ends", path, message, f"penstock convert {data.root} OUT writes the right one")
        start = end


def _check_times(data: DataSet, path: Path, index: VideoIndex, findings: Findings) -> None:
    """Readers of v3.0 find a frame by its time, or by `round(time × average rate)`: a constant rate from 0 on."""
    fps = data.info.fps
    seconds = index.pts[index.presentation_order()] / index.timescale
    wrong = np.flatnonzero(np.abs(seconds - np.arange(len(seconds)) / fps) > TOLERANCE_S)
    if len(wrong):
        first = int(wrong[0])
        message = (
            f"frame {first} is shown at {seconds[first]:.6f} s, at {fps} fps it belongs at {first / fps:.6f} s "
            f"({len(wrong)} of {len(seconds)} frames)"
        )
        findings.add("error" if data.is_v30 else "info", "frame times", path, message)


def _decode(path: Path, index: VideoIndex, wanted: list[int], findings: Findings) -> None:
    decoded = 0
    try:
        for _ in _jpegs(path, index, wanted) if index.codec == "mjpeg" else decode.frames(path, wanted):
            decoded += 1
    except PenstockError as error:
        findings.error("undecodable frame", path, f"after {decoded} decoded frames: {error.message}", error.hint)
    findings.counted["frames decoded"] += decoded


def _jpegs(path: Path, index: VideoIndex, wanted: list[int]) -> Iterator[Any]:
    """FFmpeg shows damaged JPEGs, too; OpenCV does not."""
    samples = index.presentation_order()[wanted]
    with open_source(path, ERRORS) as source:
        for number, sample in zip(wanted, samples, strict=True):
            try:
                yield codec.decode(source.read(int(index.offsets[sample]), int(index.sizes[sample])))
            except PenstockError as error:
                raise VideoError(f"frame {number}: {error.message}", hint=error.hint) from error
