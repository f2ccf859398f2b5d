"""Before and after: blurred, deblurred and sharp images side by side, as one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checkpoint import write_bytes

_GAP_PX, _TITLE_PX = 4, 22
_TITLES = ("blur", "deblurred", "sharp")


def write_comparison(path: Path, rows: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Each row: blur, deblurred and sharp, (3, H, W) in 0..1. Rows may differ in size."""
    import cv2

    bands = [np.concatenate([_with_gap(_pixels(image)) for image in row], axis=1) for row in rows]
    width = max(band.shape[1] for band in bands)
    bands = [np.pad(band, ((0, 0), (0, width - band.shape[1]), (0, 0)), constant_values=255) for band in bands]
    title = np.full((_TITLE_PX, width, 3), 255, np.uint8)
    for number, text in enumerate(_TITLES):
        place = number * (rows[0][0].shape[-1] + _GAP_PX) + 4, 16
        cv2.putText(title, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.45, (60, 60, 60), 1, cv2.LINE_AA)
    done, data = cv2.imencode(".png", np.concatenate([title, *bands])[:, :, ::-1])
    if done:
        write_bytes(path, data.tobytes())


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    scaled = (image.detach().float().clamp(0, 1) * 255).round().to(torch.uint8)
    return np.asarray(scaled.permute(1, 2, 0).cpu().numpy())


def _with_gap(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.pad(pixels, ((0, _GAP_PX), (0, _GAP_PX), (0, 0)), constant_values=255)
