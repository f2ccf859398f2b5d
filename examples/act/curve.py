"""The loss curve as a picture, drawn by OpenCV, which penstock brings along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import write_bytes

_HEIGHT_PX, _WIDTH_PX = 480, 720
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 70, 20, 40, 50
_COLOURS = {"train l1": (180, 110, 30), "val l1": (40, 60, 210), "predict the mean": (130, 130, 130)}  # BGR
_INK, _GRID = (60, 60, 60), (225, 225, 225)
_TICKS = 5

Curve = list[tuple[float, float]]


def draw_curve(path: Path, history: Sequence[Mapping[str, Any]], title: str) -> None:
    """L1 of training and validation over epochs, with what predicting the mean would give."""
    curves: dict[str, Curve] = {name: [] for name in _COLOURS}
    for row in history:
        for name, key in (("train l1", "train_l1"), ("val l1", "val_l1"), ("predict the mean", "val_mean_l1")):
            if row.get(key) is not None and math.isfinite(row[key]):
                curves[name].append((float(row["epoch"]), float(row[key])))
    _write(path, {name: points for name, points in curves.items() if points}, title)


def _write(path: Path, curves: Mapping[str, Curve], title: str) -> None:
    import cv2

    picture = np.full((_HEIGHT_PX, _WIDTH_PX, 3), 255, np.uint8)
    points = [point for curve in curves.values() for point in curve] or [(0.0, 1.0)]
    last = max(max(x for x, _ in points), 1.0)
    top = max(max(y for _, y in points) * 1.25, 1e-9)  # room for the names

    def place(x: float, y: float) -> tuple[int, int]:
        across, up = _WIDTH_PX - _LEFT_PX - _RIGHT_PX, _HEIGHT_PX - _TOP_PX - _BOTTOM_PX
        return round(_LEFT_PX + across * x / last), round(_HEIGHT_PX - _BOTTOM_PX - up * y / top)

    def write(text: str, x: int, y: int, colour: tuple[int, int, int] = _INK) -> None:
        cv2.putText(picture, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA)

    for tick in range(_TICKS + 1):
        height, epoch = top * tick / _TICKS, last * tick / _TICKS
        cv2.line(picture, place(0, height), place(last, height), _GRID, 1)
        write(f"{height:.3g}", 12, place(0, height)[1] + 5)
        write(f"{epoch:.3g}", place(epoch, 0)[0] - 8, _HEIGHT_PX - 28)
    write("epoch", _WIDTH_PX // 2, _HEIGHT_PX - 8)
    write(title.encode("ascii", "replace").decode(), _LEFT_PX, 22)
    for number, (name, curve) in enumerate(curves.items()):
        line = np.array([place(x, y) for x, y in curve], np.int32)
        cv2.polylines(picture, [line], False, _COLOURS[name], 2, cv2.LINE_AA)
        for x, y in line.tolist() if len(line) <= 50 else line[-1:].tolist():
            cv2.circle(picture, (x, y), 3, _COLOURS[name], -1, cv2.LINE_AA)
        write(name, _WIDTH_PX - 170, _TOP_PX + 18 * (number + 1), _COLOURS[name])
    done, data = cv2.imencode(".png", picture)
    if done:
        write_bytes(path, data.tobytes())
