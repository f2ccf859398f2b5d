"""The loss curve as an image, drawn by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoint import write_bytes

_CURVES = {"train l1": "train_l1", "val l1": "val_l1", "predict the mean": "val_mean_l1"}


def draw_curve(path: Path, history: Sequence[Mapping[str, Any]], title: str) -> None:
    """L1 of training and validation over epochs, with what predicting the mean would give."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path.name} is not drawn: pip install matplotlib")
        return
    figure = Figure(figsize=(7.2, 4.8))
    axes = figure.add_subplot(xlabel="epoch", ylabel="L1", title=title)
    for label, key in _CURVES.items():
        points = [(row["epoch"], row[key]) for row in history if row.get(key) is not None and math.isfinite(row[key])]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, marker="o" if len(points) <= 50 else None, markersize=3)
    if axes.lines:
        axes.legend()
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    write_bytes(path, image.getvalue())
