"""Images that have to be encoded: codec, quality and time for the plan; the refusal where only copies are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.conversion.settings import Encoding
from penstock.errors import VideoError
from penstock.stores.roles import IMAGE_PREFIX

# CPU time in ns per pixel and thread, from the figures of docs/video.md; good for an estimate, not for more.
_ENCODE_NS = {"h264": 24.0, "hevc": 240.0, "av1": 60.0, "mjpeg": 4.0, "images": 4.0}
_DECODE_NS = {"h264": 11.0, "hevc": 20.0, "h265": 20.0, "av1": 12.0, "raw": 1.0}
_OTHER_DECODE_NS = 5.0  # JPEG, PNG


@dataclass(frozen=True)
class Encoded:
    """Images of one camera that have to be encoded."""

    source: str  # codec or kind of what is decoded
    stored_as: str
    frames: int
    size_px: tuple[int, int]

    @property
    def cpu_s(self) -> float:
        pixels = self.frames * self.size_px[0] * self.size_px[1]
        return pixels * (_ENCODE_NS[self.stored_as] + _DECODE_NS.get(self.source, _OTHER_DECODE_NS)) / 1e9


def quality(stored_as: str, encoding: Encoding) -> str:
    """How good what is encoded becomes: "crf 30", "quality 95"."""
    if stored_as in ("mjpeg", "images"):
        return f"quality {encoding.quality}"
    from penstock.media.video.hardware import encoder_settings

    return f"crf {encoder_settings(stored_as, crf=encoding.crf).crf}"


def video_lines(
    cameras: Iterable[tuple[str, str, Encoded | None]], encoding: Encoding, threads: int
) -> list[tuple[str, str]]:
    """The lines of a plan about cameras (key, fate, what has to be encoded of it); those of one fate share a line."""
    names: dict[str, list[str]] = {}
    parts: dict[str, list[Encoded]] = {}
    for key, fate, encoded in cameras:
        if encoded is not None:
            fate = f"{fate}, {quality(encoded.stored_as, encoding)}"
            parts.setdefault(fate, []).append(encoded)
        names.setdefault(fate, []).append(key.removeprefix(IMAGE_PREFIX))
    return [("video", f"{fate}{_time(parts.get(fate, ()), threads)}: {', '.join(names[fate])}") for fate in names]


def _time(parts: Sequence[Encoded], threads: int) -> str:
    """Cameras of an episode are encoded beside each other, one thread each."""
    if not parts:
        return ""
    seconds = sum(part.cpu_s for part in parts) / max(1, min(threads, len(parts)))
    for unit_s, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f", about {seconds / unit_s:.0f} {name} (estimate)"
    return f", about {max(1, round(seconds))} s (estimate)"


def refusal(where: str, camera: str, reason: str, hint: str = "") -> VideoError:
    """The error of `video=copy-only` for images that cannot be copied."""
    return VideoError(
        f"{where}, camera {camera!r}: video=copy-only, and its images would have to be encoded: {reason}",
        hint=f"{hint}{'; ' if hint else ''}video=copy encodes what cannot be copied",
    )
