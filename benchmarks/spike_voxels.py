"""From a spike file to the voxels of a crop: penstock, the usual way, and the bare work, in alternating turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measure import Claim
from numpy.typing import NDArray

HEIGHT, WIDTH, FRAMES, BINS, CROP_PX = 360, 640, 88, 5, 256
TOP, LEFT = 52, 203  # a crop that begins inside a byte


def voxel_claims(directory: Path, rounds: int) -> list[Claim]:
    """The bars: 20 times the usual way, and 70 % of what unpacking and adding up the crop's own bytes reaches."""
    from penstock._src.media.spike.files import read_voxel
    from penstock._src.media.spike.frames import crop_packed
    from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout

    layout = SpikeLayout("packed", HEIGHT, WIDTH, FRAMES, False)
    box = PlaneRegion(TOP, LEFT, CROP_PX, CROP_PX)
    path = directory / "one.dat"
    np.random.default_rng(0).integers(0, 256, layout.n_bytes, dtype=np.uint8).tofile(path)
    cropped, bit_offset = crop_packed(path.read_bytes(), layout, box)
    ways: dict[str, Callable[[], NDArray[Any]]] = {
        "penstock, from the file": lambda: read_voxel(path, layout, BINS, box),
        "whole file, mask loop, voxel, crop": lambda: usual_voxel(path),
        "np.unpackbits + sum of the crop's bytes, in memory": lambda: bare_voxel(cropped, bit_offset),
    }
    made = [way() for way in ways.values()]
    if not all(np.array_equal(made[0], other) for other in made[1:]):
        raise SystemExit("the ways do not give the same voxels")
    ours, usual, bare = (1e3 * each for each in median_seconds(ways, rounds))
    for name, took_ms in zip(ways, (ours, usual, bare), strict=True):
        print(f"{name:<52} {took_ms:9.2f} ms", flush=True)
    return [
        Claim(".dat to a 256² voxel crop, against the usual way (times)", usual / ours, ">= 20"),
        Claim(".dat to a 256² voxel crop, share of bare np.unpackbits + sum", bare / ours, ">= 0.7"),
    ]


def median_seconds(ways: dict[str, Callable[[], Any]], rounds: int, turn_s: float = 0.05) -> list[float]:
    """Of every way; they take turns of at least `turn_s`, so that a noisy moment hits them all."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            turn: list[float] = []
            while sum(turn) < turn_s:
                began = time.perf_counter()
                way()
                turn.append(time.perf_counter() - began)
            times[name].append(statistics.median(turn))
    return [statistics.median(each) for each in times.values()]


def usual_voxel(path: Path) -> NDArray[np.float32]:
    """As training scripts have it: every frame through a mask of bits, float voxels of the whole plane, then a crop."""
    data = np.fromfile(path, np.uint8)
    pixel = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    byte_of, mask = pixel // 8, np.left_shift(1, pixel % 8)
    spikes = np.zeros((FRAMES, HEIGHT, WIDTH), np.uint8)
    frame_bytes = HEIGHT * WIDTH // 8
    for frame in range(FRAMES):
        values = data[frame * frame_bytes : (frame + 1) * frame_bytes][byte_of]
        spikes[frame] = np.bitwise_and(values, mask) == mask
    bins = np.arange(FRAMES) * BINS // FRAMES
    voxel = np.stack([spikes[bins == bin_].astype(np.float32).sum(axis=0) for bin_ in range(BINS)])
    return np.ascontiguousarray(voxel[:, TOP : TOP + CROP_PX, LEFT : LEFT + CROP_PX])


def bare_voxel(cropped: NDArray[np.uint8], bit_offset: int) -> NDArray[np.uint8]:
    """No file, no crop: the crop's bytes lie in one piece of memory."""
    bits = np.unpackbits(cropped.reshape(-1), bitorder="little").reshape(*cropped.shape[:2], -1)
    starts = [-(-bin_ * FRAMES // BINS) for bin_ in range(BINS + 1)]
    counts = np.stack([bits[begin:end].sum(axis=0, dtype=np.uint8) for begin, end in pairwise(starts)])
    return counts[:, :, bit_offset : bit_offset + CROP_PX]
