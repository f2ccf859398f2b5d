"""How the colours of a decoded frame become RGB: by the matrix and the range that the video is tagged with."""

from __future__ import annotations

from typing import Any

# FFmpeg's numbers.
_BT601 = 5
_OTHER_MATRICES = frozenset((1, 4, 7, 9, 10))  # BT.709, FCC, SMPTE 240M, BT.2020
_FULL_RANGE = 2


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
