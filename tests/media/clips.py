"""Videos whose colours are known: flat blocks, brought to YUV by the formulas of the standards."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

HEIGHT, WIDTH, BLOCK = 64, 96, 16
# FFmpeg's name of a matrix: how much red and blue count in the brightness. None: no tag.
MATRICES: dict[str | None, tuple[float, float]] = {
    None: (0.299, 0.114), "smpte170m": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020nc": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
}  # fmt: skip

_OPTIONS = {
    "libx264": {"qp": "2"}, "libsvtav1": {"preset": "10", "crf": "3", "svtav1-params": "lp=1"},
    "mjpeg": {"q": "2", "strict": "unofficial", "color_range": "tv"},
}  # fmt: skip


def blocks(number: int) -> np.ndarray:
    """An image of random flat blocks, RGB."""
    colours = np.random.default_rng(number).integers(0, 256, (HEIGHT // BLOCK, WIDTH // BLOCK, 3), np.uint8)
    return np.kron(colours, np.ones((BLOCK, BLOCK, 1), np.uint8))


def middles(rgb: np.ndarray) -> np.ndarray:
    """The colours of the blocks, away from their borders."""
    return rgb[BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK].astype(int)


def tagged_clip(path: Path, encoder: str, matrix: str | None, *, is_full: bool, count: int = 5) -> Path:
    """A video of `blocks`, tagged with a matrix and a range."""
    options = _OPTIONS[encoder] | ({"colorspace": matrix} if matrix else {})
    if is_full:
        options["color_range"] = "pc"
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(encoder, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(_yuv(blocks(number), *MATRICES[matrix], is_full), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _yuv(rgb: np.ndarray, red: float, blue: float, is_full: bool) -> np.ndarray:
    r, g, b = np.moveaxis(rgb / 255.0, 2, 0)
    y = red * r + (1 - red - blue) * g + blue * b
    u, v = (b - y) / (2 - 2 * blue), (r - y) / (2 - 2 * red)
    low, luma, chroma = (0, 255, 255) if is_full else (16, 219, 224)
    planes = (low + luma * y, (128 + chroma * u)[::2, ::2], (128 + chroma * v)[::2, ::2])
    flat = np.concatenate([np.clip(np.rint(plane), 0, 255).astype(np.uint8).ravel() for plane in planes])
    return flat.reshape(-1, rgb.shape[1])
