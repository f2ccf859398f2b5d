"""Frames of a video file by number, decoded by FFmpeg as the readers of a data set decode them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import VideoError
from penstock.media.mp4.index import VideoIndex, read_index
from penstock.media.video.frame_times import FrameTimes, WholeFrames
from penstock.system.files import for_library

# FFmpeg's numbers.
_BT601 = 5
_OTHER_MATRICES = frozenset((1, 4, 7, 9, 10))  # BT.709, FCC, SMPTE 240M, BT.2020
_FULL_RANGE = 2


def frames(
    path: str | os.PathLike[str], indices: Sequence[int], threads: int | None = None
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(number, RGB) of the frames asked for, in rising order, each once; frames in between are decoded only where the
    codec needs them. `threads` bounds those of the decoder, and with them the frames that it keeps.

    >>> for number, rgb in frames("cam.mp4", [0, 17, 899]): ...                      # doctest: +SKIP
    """
    name = os.fspath(path)
    index = read_index(name)
    order = index.presentation_order()
    wanted = indices if isinstance(indices, range) and indices.step == 1 else sorted(set(indices))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < len(order):
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise VideoError(f"{name}: frame {bad} of a video with {len(order):,} frames")
    times = FrameTimes.of(index.pts[order], index.key[order])
    with _opened(name, threads) as (container, stream):
        position = 0
        while position < len(wanted):
            run = _run_from(index, order, wanted, position)
            yield from _decoded_run(name, times, run, container, stream)
            position += len(run)


def _decoded_run(
    name: str, times: FrameTimes, run: Sequence[int], container: Any, stream: Any
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    done = 0
    # Some key frames are none: where a seek does not lead to the whole frame, the decoder begins anew with the file.
    for first in (run[0], 0):
        whole = WholeFrames(times, from_start=first == 0)
        for frame in _decoded(name, container, stream, times.of_frame(times.key_of(first))):
            number = times.number(frame.pts)
            is_whole = whole.follow(number, frame)
            if number < run[done]:
                continue
            if number > run[done] or not is_whole:
                break
            yield number, frame.to_ndarray(format="rgb24", **rgb_options(frame))
            done += 1
            if done == len(run):
                return
    raise VideoError(f"{name}: frame {run[done]} of {times.count:,} does not decode")


def pixel_format(path: str | os.PathLike[str]) -> str:
    """What the decoder says its frames are ("yuv420p"); none is decoded."""
    with _opened(os.fspath(path), 1) as (_, stream):
        return str(stream.codec_context.pix_fmt or "")


def _run_from(index: VideoIndex, order: NDArray[np.int64], wanted: Sequence[int], position: int) -> Sequence[int]:
    """The wanted frames that one seek serves: as long as no key frame lies between two of them, going on is cheaper."""
    if isinstance(wanted, range):
        return wanted[position:]
    run = [wanted[position]]
    for number in wanted[position + 1 :]:
        between = order[run[-1] + 1 : number + 1]
        if len(between) > 1 and index.key[between].any():
            break
        run.append(number)
    return run


@contextlib.contextmanager
def _opened(name: str, threads: int | None) -> Iterator[tuple[Any, Any]]:
    import av

    try:
        # As MP4 and nothing else: a playlist with that name could make FFmpeg open other files.
        with av.open(for_library(name), format="mp4") as container:
            if not container.streams.video:
                raise VideoError(f"{name}: the file has no video track")
            stream = container.streams.video[0]
            if threads is not None:
                stream.codec_context.thread_count = threads
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"{name}: cannot be decoded: {error}") from error


def _decoded(name: str, container: Any, stream: Any, from_pts: int | None) -> Iterator[Any]:
    import av

    try:
        if from_pts is not None:
            container.seek(from_pts, backward=True, any_frame=False, stream=stream)
        yield from container.decode(stream)
    except av.FFmpegError as error:
        raise VideoError(f"{name}: cannot be decoded: {error}") from error


def rgb_options(frame: Any) -> dict[str, int]:
    """What PyAV's `reformat` and `to_ndarray` are to be told beside format="rgb24"; nothing for frames without a tag.

    PyAV < 16 heeds the tags of a frame only where the result is said to be tagged otherwise; unless it is, every frame
    counts as BT.601, and as limited where the name of its format says nothing else ("yuvj420p" is full).
    """
    is_other = frame.colorspace in _OTHER_MATRICES
    is_full = frame.color_range == _FULL_RANGE
    if not is_other and not is_full:
        return {}
    name: str = frame.format.name
    if not name.startswith("yuv"):  # grey and RGB have no matrix
        return {}
    is_named_full = name.startswith("yuvj")
    if not is_other:
        return {} if is_named_full else {"src_color_range": _FULL_RANGE}
    return {"dst_colorspace": _BT601, "src_color_range": _FULL_RANGE if is_named_full else int(frame.color_range)}
