"""Where the frames of an episode lie: one per row, found by the video's index alone, in any version of the format."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import layout
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.mp4.index import VideoIndex, read_codec, read_index
from penstock.errors import DataSetCorrupt, LimitExceeded, PenstockError, VideoError

_DROP = "bad_episodes=drop leaves the episode out and counts it (exit code 3)"
# What LeRobot's readers decode, and nothing that makes a decoder do more than decode.
KNOWN_CODECS = ("mjpeg", "h264", "hevc", "av1", "vp9", "vp8", "mpeg4")
FETCH_OR_DROP = f"fetch it again, or {_DROP}"
TOLERANCE_S = 1e-4  # LeRobot finds a frame within this much of its row's time


@dataclass(frozen=True)
class EpisodeFrames:
    """The frames of one episode and camera, from the frame `first` of the file on."""

    path: Path
    index: VideoIndex
    first: int
    samples: NDArray[np.int64]  # the sample of every row, in the order of the rows
    apart_s: float  # how far the frames lie from the times of their rows, at most; there is one for each all the same

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def retimed(self) -> bool:
        """Whether the frames lie at other times than their rows."""
        return self.apart_s > TOLERANCE_S


@dataclass(frozen=True)
class _OpenVideo:
    path: Path
    index: VideoIndex
    order: NDArray[np.int64]
    times_s: NDArray[np.float64]


class FrameFinder:
    """Finds the frames of episodes; the index of the last file of each camera is kept, for v3.0 shares files."""

    def __init__(self, data: DataSet) -> None:
        self._data = data
        self._last: dict[str, _OpenVideo] = {}

    def find(self, number: int, key: str) -> EpisodeFrames:
        """The frames of the episode at a place of the episodes table; raises what is wrong with them."""
        data = self._data
        rows = int(data.episodes.length[number])
        where = f"{data.root}: episode {int(data.episodes.index[number])}, camera {key!r}"
        path = data.video_file(number, key)
        video = self._open(key, path, where)
        if data.is_v30:
            return self._shared(number, key, video, where)
        if len(video.order) != rows:
            raise DataSetCorrupt(
                f"{where}: {len(video.order):,} frames for {rows:,} rows ({path})",
                hint=f"every row needs exactly one frame: {FETCH_OR_DROP}",
            )
        apart = np.abs(video.times_s - np.arange(rows) / data.info.fps)
        return EpisodeFrames(path, video.index, 0, video.order, float(apart.max(initial=0.0)))

    def _open(self, key: str, path: Path, where: str) -> _OpenVideo:
        last = self._last.get(key)
        if last is not None and last.path == path:
            return last
        if not path.is_file():
            elsewhere = self._data.elsewhere(key)
            raise DataSetCorrupt(
                f"{where}: the video file is missing: {path}",
                hint=elsewhere or f"{FETCH_OR_DROP}; 'leave_out=[{key}]' leaves the camera out",
            )
        try:
            index = read_index(path)
        except (VideoError, LimitExceeded) as error:
            hint = f"{error.hint}; {_DROP}" if error.hint else FETCH_OR_DROP
            raise DataSetCorrupt(f"{where}: {error.message}", hint=hint) from error
        self._check(key, index, path, where)
        order = index.presentation_order()
        # Times count from the first frame: some writers of B-frames leave out the edit that puts it at 0.
        ticks = index.pts[order]
        self._last[key] = _OpenVideo(path, index, order, (ticks - ticks[:1]) / index.timescale)
        return self._last[key]

    def _check(self, key: str, index: VideoIndex, path: Path, where: str) -> None:
        if index.codec not in KNOWN_CODECS:
            raise DataSetCorrupt(
                f"{where}: codec {index.codec!r} is not one of {', '.join(KNOWN_CODECS)} ({path})",
                hint="LeRobot does not read it either; ffmpeg -i IN -c:v libx264 OUT.mp4 makes one that it does",
            )
        height, width = self._data.info.features[key].shape[:2]
        if (index.height, index.width) != (height, width):
            raise DataSetCorrupt(
                f"{where}: the video is {index.width}×{index.height} px, info.json says {width}×{height} ({path})",
                hint="correct the shape in meta/info.json",
            )

    def _shared(self, number: int, key: str, video: _OpenVideo, where: str) -> EpisodeFrames:
        """v3.0: the frames of an episode are those at its times in a file that it may share."""
        rows, fps = int(self._data.episodes.length[number]), self._data.info.fps
        place = self._data.episodes.videos[key]
        from_s, to_s = float(place.from_s[number]), float(place.to_s[number])
        path, times = video.path, video.times_s
        if not np.isfinite(from_s) or from_s < 0:
            raise DataSetCorrupt(
                f"{where}: from_timestamp is {from_s} s", hint="`penstock doctor` lists what else disagrees"
            )
        first = _nearest(times, from_s)
        next_s = float(place.next_from_s[number])
        until = _nearest(times, next_s) if np.isfinite(next_s) else len(times)
        if until - first != rows and not abs((to_s - from_s) * fps - rows) <= 0.5:
            # Neither the metadata nor the frames say that the episode has as many frames as rows.
            raise DataSetCorrupt(
                f"{where}: from {from_s} s to {to_s} s are {(to_s - from_s) * fps:.2f} frames at {fps} fps, and the "
                f"file has {until - first:,} until the next episode, for {rows:,} rows",
                hint="`penstock doctor` lists what else disagrees",
            )
        held = times[first : first + rows]
        if len(held) != rows:
            raise DataSetCorrupt(
                f"{where}: {len(held):,} frames for {rows:,} rows: the file has {len(times):,} frames, "
                f"the episode begins at frame {first:,} ({path})",
                hint=f"every row needs exactly one frame: {FETCH_OR_DROP}",
            )
        apart = np.abs(held - from_s - np.arange(rows) / fps)
        if apart.max(initial=0.0) > 0.5 / fps:
            wrong = int(np.argmax(apart > 0.5 / fps))
            raise DataSetCorrupt(
                f"{where}: row {wrong:,} belongs to {from_s + wrong / fps:.4f} s, its frame is shown at "
                f"{held[wrong]:.4f} s ({path})",
                hint="the rate of the video changes within the episode; `penstock doctor` lists all such files",
            )
        samples = video.order[first : first + rows]
        return EpisodeFrames(path, video.index, first, samples, float(apart.max(initial=0.0)))


def file_codec(data: DataSet, key: str, relatives: Sequence[str] | None = None) -> str | None:
    """What the first file of a camera is that can be read, whatever info.json says; of `relatives` or of all files."""
    with contextlib.suppress(PenstockError):
        for relative in data.named_files(key)[0] if relatives is None else relatives:
            path = layout.path_in(data.root, relative)
            if path.is_file():
                with contextlib.suppress(PenstockError):
                    return read_codec(path)
    return None


def ends_note(data: DataSet, key: str, numbers: NDArray[np.int64]) -> str | None:
    """A sentence about episodes whose to_timestamp is not where their frames end, by the metadata alone."""
    place = data.episodes.videos.get(key)
    if place is None or not len(numbers):
        return None
    claimed = (place.to_s[numbers] - place.from_s[numbers]) * data.info.fps
    rows = data.episodes.length[numbers]
    wrong = np.flatnonzero(~(np.abs(claimed - rows) <= 0.5))
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{key}: to_timestamp of {len(wrong):,} episodes is not where their frames end (episode "
        f"{int(data.episodes.index[numbers[first]])}: {claimed[first]:.0f} frames for {int(rows[first]):,} rows); "
        "the frames in the file count"
    )


def _nearest(times_s: NDArray[np.float64], wanted_s: float) -> int:
    """The frame shown nearest to a time, the earlier of two; by bisection: a file may hold thousands of episodes."""
    after = int(np.searchsorted(times_s, wanted_s))
    if after == len(times_s):
        return max(after - 1, 0)
    if after and wanted_s - times_s[after - 1] <= times_s[after] - wanted_s:
        return after - 1
    return after
