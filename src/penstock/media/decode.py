"""Frames of a video file by number, decoded by FFmpeg as the readers of a data set decode them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import VideoError
from penstock.media.mp4_index import VideoIndex, read_index

if TYPE_CHECKING:
    from numpy.typing import NDArray


def count_frames(path: str | os.PathLike[str]) -> int:
    """How many frames really decode; every one is decoded."""
    return sum(1 for _ in _decoded(os.fspath(path), None))


def frames(path: str | os.PathLike[str], indices: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(number, RGB) of the frames asked for, in rising order, each once; frames in between are decoded only where the
    codec needs them.

    >>> for number, rgb in frames("cam.mp4", [0, 17, 899]): ...                      # doctest: +SKIP
    """
    name = os.fspath(path)
    index = read_index(name)
    order = index.presentation_order()
    wanted = sorted(set(indices))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < len(order):
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise VideoError(f"{name}: frame {bad} of a video with {len(order):,} frames")
    position = 0
    while position < len(wanted):
        run = _run_from(index, order, wanted, position)
        by_pts = {int(index.pts[order[number]]): number for number in run}
        for frame in _decoded(name, int(index.pts[order[run[0]]])):
            number = by_pts.pop(frame.pts, None)
            if number is not None:
                yield number, frame.to_ndarray(format="rgb24")
            if not by_pts:
                break
        if by_pts:
            missing = min(by_pts.values())
            raise VideoError(f"{name}: frame {missing} of {len(order):,} does not decode")
        position += len(run)


def _run_from(index: VideoIndex, order: NDArray[np.int64], wanted: Sequence[int], position: int) -> list[int]:
    """The wanted frames that one seek serves: as long as no key frame lies between two of them, going on is cheaper."""
    run = [wanted[position]]
    for number in wanted[position + 1 :]:
        between = order[run[-1] + 1 : number + 1]
        if len(between) > 1 and index.key[between].any():
            break
        run.append(number)
    return run


def _decoded(name: str, from_pts: int | None) -> Iterator[Any]:
    import av

    try:
        with av.open(name) as container:
            if not container.streams.video:
                raise VideoError(f"{name}: the file has no video track")
            stream = container.streams.video[0]
            if from_pts is not None:
                container.seek(from_pts, backward=True, any_frame=False, stream=stream)
            yield from container.decode(stream)
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"{name}: cannot be decoded: {error}") from error
