"""Small spike data sets: sequences of blurred and sharp images with the spikes of the same scenes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.media.spikes import packed_bytes, scene, spikes_of, write_png


@dataclass(frozen=True)
class Made:
    """Frames of every spike file of one sequence, upright."""

    folder: Path
    spikes: list[NDArray[np.uint8]]


def make_sequence(
    folder: Path,
    *,
    rows: int = 3,
    frames: int = 16,
    plane: tuple[int, int] = (24, 32),
    image: tuple[int, int] = (48, 64),
    flip: bool = True,
    first: int = 1,
    blur: str = "blur",
    spike: Path | None = None,
) -> Made:
    """`SEQ/{blur,sharp,spike}` with the files 000001 and so on; a seed of their own for each."""
    spike_folder = folder / "spike" if spike is None else spike
    for each in (folder / blur, folder / "sharp", spike_folder):
        each.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(first, first + rows):
        view = scene(*plane, seed=number)
        made.append(spikes_of(view, frames, seed=number))
        write_png(folder / blur / f"{number:06}.png", view, image)
        write_png(folder / "sharp" / f"{number:06}.png", view * 0.5, image)
        (spike_folder / f"{number:06}.dat").write_bytes(packed_bytes(made[-1], flip))
    return Made(folder, made)


def make_set(root: Path, names: tuple[str, ...] = ("a", "b"), **words: object) -> list[Made]:
    """Several sequences right below a directory."""
    return [
        make_sequence(root / name, first=10 * place + 1, **words)  # type: ignore[arg-type]
        for place, name in enumerate(names)
    ]
