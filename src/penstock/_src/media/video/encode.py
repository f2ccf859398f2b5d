"""Images to H.264, HEVC or AV1 samples, with the settings that LeRobot 0.6.1 uses for each codec.

The bytes of the software encoders depend on the images and the settings alone, not on the machine or its cores.
Every call blocks until its image is taken, and the samples that come out are counted against the images that went
in: no frame is ever dropped. The encoders' look-ahead is cut to what key frames two apart can use: the same bytes, and
a quarter less memory for AV1. PyAV gives up the interpreter lock while it encodes: one thread per camera works well.
"""

from __future__ import annotations

import io
import os
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.h26x.nal import length_prefixed, nal_units
from penstock._src.media.mp4.tree import Box
from penstock._src.media.video.priority import ordinary_priority
from penstock._src.system.closing import Closing
from penstock.errors import VideoError

Codec = Literal["h264", "hevc", "av1"]
Device = Literal["cpu", "nvenc", "videotoolbox", "qsv", "vaapi"]
CODECS: tuple[Codec, ...] = ("h264", "hevc", "av1")

_ENCODER = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
# x264 writes the number of its threads into the stream, and decides otherwise with another one.
_X264_THREADS = 1
_SVT_THREADS = 1
_X265_MOST_THREADS = 4  # of its pool, whose size does not change what it writes; with many workers it may
_AV1_DELIMITER = b"\x12\x00"


@dataclass(frozen=True)
class EncoderSettings:
    """What decides size and quality; the defaults are LeRobot 0.6.1's own."""

    codec: Codec = "av1"
    crf: int = 30
    g: int = 2
    """Images from one key frame to the next: 2 keeps random reads fast."""
    preset: str | int | None = None
    """None: LeRobot's choice, which is 12 for AV1 and the encoder's own (medium) otherwise."""
    pix_fmt: str = "yuv420p"
    device: Device = "cpu"
    """What encodes; only "cpu" gives the same bytes on every machine."""

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise VideoError(f"unknown codec {self.codec!r}; known: {', '.join(CODECS)}")
        highest = 63 if self.codec == "av1" else 51
        if not 0 <= self.crf <= highest:
            raise VideoError(f"crf {self.crf} is outside 0…{highest} for {self.codec}")
        if self.g < 1:
            raise VideoError(f"key frames {self.g} images apart: at least 1 is needed")
        if self.preset is None and self.codec == "av1":
            object.__setattr__(self, "preset", 12)

    @property
    def encoder(self) -> str:
        """The encoder's name in FFmpeg."""
        return _ENCODER[self.codec] if self.device == "cpu" else f"{self.codec}_{self.device}"

    def options(self, threads: int = 1) -> dict[str, str]:
        """The options for FFmpeg. B-frames are off, so that images leave in the order in which they came."""
        if self.device != "cpu":
            return self._hardware_options()
        options = {"g": str(self.g), "crf": str(self.crf)}
        if self.preset is not None:
            options["preset"] = str(self.preset)
        if self.codec == "av1":
            options["svtav1-params"] = f"fast-decode=0:lp={_SVT_THREADS}:lookahead=0"
        elif self.codec == "hevc":
            # Without B-frames x265 looks no further ahead than it must; its default of 20 only holds images.
            # The note that it leaves in the stream names the CPU, and its weights are computed in floating point.
            pool = min(threads, _X265_MOST_THREADS)
            params = f"log-level=error:pools={pool}:frame-threads=1:rc-lookahead=4:info=0:weightp=0"
            options |= {"bf": "0", "x265-params": params}
        else:
            options |= {"bf": "0", "threads": str(_X264_THREADS)}
            if narrow := _x264_instructions():
                options["x264-params"] = f"asm={narrow}"
        return options

    def _hardware_options(self) -> dict[str, str]:
        options = {"g": str(self.g)}
        if self.preset is not None and self.codec != "av1":
            options["preset"] = str(self.preset)
        if self.device == "nvenc":
            options |= {"bf": "0", "rc": "vbr", "cq": str(self.crf), "b": "0", "delay": "0"}
        elif self.device == "qsv":
            options |= {"bf": "0", "global_quality": str(self.crf), "async_depth": "1"}
        elif self.device == "vaapi":
            options |= {"bf": "0", "qp": str(self.crf)}
        else:
            options |= {"bf": "0", "q": str(100 - 100 * self.crf // 63)}
        return options


@lru_cache(maxsize=1)
def _x264_instructions() -> str | None:
    """What x264 is held to where it would use AVX-512, so that it decides as it does on other machines."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:  # another system: x264 takes what the CPU has
        return None
    return "avx2,fma3,bmi2" if "avx512f" in flags else None


class EncodedSample(NamedTuple):
    """One coded image as an MP4 file stores it."""

    data: bytes
    key: bool

    def __repr__(self) -> str:
        return f"EncodedSample({len(self.data):,} bytes, key={self.key})"


class VideoEncoder(Closing):
    """Encodes one camera; a context manager. Samples come out later than images go in; `flush` gives the last.

    >>> with VideoEncoder(EncoderSettings("h264"), 640, 480, fps=30) as encoder:     # doctest: +SKIP
    ...     for rgb in images:
    ...         for sample in encoder.encode(rgb): ...
    ...     for sample in encoder.flush(): ...
    """

    def __init__(self, settings: EncoderSettings, width: int, height: int, fps: int, threads: int = 1) -> None:
        if width < 1 or height < 1 or width % 2 or height % 2:
            raise VideoError(
                f"{settings.codec} in {settings.pix_fmt} needs an even width and height, got {width}×{height}",
                hint=f"resize: [{height + height % 2}, {width + width % 2}] (height, width), or keep them as JPEG",
            )
        if threads < 1:
            raise VideoError(f"an encoder needs at least one thread, got {threads}")
        self.settings = settings
        self.width = width
        self.height = height
        self._fps = fps
        self._images = 0
        self._samples = 0
        self._flushed = False
        self._container, self._stream, header = _open(settings, width, height, fps, threads)
        self.stsd = _trim_stsd(header, settings.encoder)
        """The sample description for `Mp4Writer`."""

    @property
    def info(self) -> dict[str, object]:
        """What info.json of a LeRobot data set says about the encoder, under LeRobot's keys."""
        return {
            "video.codec": self.settings.codec,
            "video.pix_fmt": self.settings.pix_fmt,
            "video.g": self.settings.g,
            "video.crf": self.settings.crf,
            "video.preset": self.settings.preset,
            "video.fast_decode": 0,
            "video.video_backend": "pyav",
            "video.extra_options": {},
        }

    def encode(self, rgb: NDArray[np.uint8]) -> list[EncodedSample]:
        """Take one image (height, width, 3); return the samples that are ready, often none at first."""
        import av

        if self._flushed:
            raise VideoError(f"{self.settings.codec}: an image after the last one")
        if rgb.shape != (self.height, self.width, 3) or rgb.dtype != np.uint8:
            raise VideoError(
                f"{self.settings.codec}: image {self._images} is {rgb.dtype} {rgb.shape}, "
                f"expected uint8 {(self.height, self.width, 3)}"
            )
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24")
        frame.pts = self._images
        frame.time_base = Fraction(1, self._fps)
        self._images += 1
        return self._take(frame)

    def flush(self) -> list[EncodedSample]:
        """The samples that the encoder still holds; afterwards each image has come out as one sample."""
        if self._flushed:
            return []
        self._flushed = True
        samples = self._take(None) if self._images else []
        if self._samples != self._images:
            raise VideoError(f"{self.settings.encoder} gave {self._samples} samples for {self._images} images")
        return samples

    def close(self) -> None:
        """Free the encoder; samples that were not flushed are lost."""
        container, self._container, self._stream = self._container, None, None
        self._flushed = True
        if container is not None:
            container.close()

    def _take(self, frame: Any) -> list[EncodedSample]:
        import av

        if self._stream is None:
            raise VideoError(f"{self.settings.codec}: the encoder is closed")
        samples = []
        try:
            for packet in self._stream.encode(frame):
                if packet.pts != packet.dts or packet.pts * packet.time_base != Fraction(self._samples, self._fps):
                    raise VideoError(
                        f"{self.settings.encoder} gave sample {self._samples} the times {packet.pts} and {packet.dts} "
                        f"(in {packet.time_base} s), expected {self._samples}/{self._fps} s"
                    )
                self._samples += 1
                samples.append(EncodedSample(_to_sample(self.settings.codec, bytes(packet)), bool(packet.is_keyframe)))
        except av.FFmpegError as error:
            raise VideoError(f"{self.settings.encoder} failed at image {self._images}: {error}") from error
        return samples


def _open(settings: EncoderSettings, width: int, height: int, fps: int, threads: int) -> tuple[Any, Any, bytes]:
    """An encoder inside a container that is never filled: opening it writes the header with the sample description."""
    import av

    header = io.BytesIO()
    try:
        with _quiet_svt(), ordinary_priority():
            container = av.open(header, "w", format="mp4", options={"movflags": "empty_moov+frag_keyframe"})
            stream: Any = container.add_stream(settings.encoder, rate=fps, options=settings.options(threads))
            pix_fmt = "nv12" if settings.device in ("qsv", "vaapi") else settings.pix_fmt
            stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
            stream.codec_context.time_base = Fraction(1, fps)
            container.start_encoding()
    except (av.FFmpegError, ValueError) as error:
        raise VideoError(
            f"the encoder {settings.encoder} cannot be opened for {width}×{height} {settings.pix_fmt}: {error}",
            hint=f"{settings.encoder} may not know the preset {settings.preset!r}, "
            f"or PyAV {av.__version__} may lack {settings.encoder} (it is in PyAV's wheels)",
        ) from error
    return container, stream, header.getvalue()


class _quiet_svt:
    """SVT-AV1 prints a page about itself on stderr unless this variable is set while it starts."""

    _lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = os.environ.get("SVT_LOG")
        os.environ.setdefault("SVT_LOG", "1")

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            os.environ.pop("SVT_LOG", None)
        self._lock.release()


def _trim_stsd(header: bytes, encoder: str) -> bytes:
    whole = Box(encoder, "header", header, 0, len(header), 0)
    stsd = whole.need("moov", "trak", "mdia", "minf", "stbl", "stsd")
    return header[stsd.start - 8 : stsd.end]


def _to_sample(codec: Codec, packet: bytes) -> bytes:
    """As MP4 stores it: without AV1's temporal delimiter, which begins every packet, and H.264 and HEVC units behind
    their lengths instead of start codes."""
    return packet.removeprefix(_AV1_DELIMITER) if codec == "av1" else length_prefixed(nal_units(packet))
