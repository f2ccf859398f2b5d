"""The limit: what OpenCV alone does on so many threads, from bytes in memory into arrays that are used again and again.

Usage: python bare_opencv.py resize FILE.hdf5 | decode FRAMES.npz [--threads 2] [--images 1536]; a round per line of
standard input. `resize`: raw 480×640 images, more of them than any CPU cache holds, in random order. `decode`: the
JPEG frames of cameras, decoded at half their size, which still covers the size asked for, then resized.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
from rounds import Clock, serve

CAMERAS = ("left_image", "right_image", "global_image")
HELD_IMAGES = 900  # 830 MB of raw images


def raw_images(path: str) -> Any:
    import h5py

    with h5py.File(path, "r") as file:
        cameras = [file["observations"][name] for name in CAMERAS]
        each = min(HELD_IMAGES // len(cameras), len(cameras[0]))
        held = np.empty((each * len(cameras), *cameras[0].shape[1:]), np.uint8)
        for number, camera in enumerate(cameras):
            camera.read_direct(held, np.s_[:each], np.s_[number * each : (number + 1) * each])
    return held


def jpeg_frames(path: str) -> list[Any]:
    with np.load(path) as file:
        data, sizes = file["data"], file["sizes"]
    return list(np.split(data, np.cumsum(sizes)[:-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("resize", "decode"))
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=1536, help="per batch; the output arrays are those of one batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    cv2.setNumThreads(1)  # the threads are ours
    held = raw_images(args.path) if args.what == "resize" else jpeg_frames(args.path)
    out = np.zeros((args.images, args.size, args.size, 3), np.uint8)
    rng = np.random.default_rng(0)
    size = (args.size, args.size)

    def resize(numbers: Any, first: int) -> None:
        for place, number in enumerate(numbers, first):
            cv2.resize(held[number], size, dst=out[place], interpolation=cv2.INTER_LINEAR)

    def decode(numbers: Any, first: int) -> None:
        for place, number in enumerate(numbers, first):
            image = cv2.imdecode(held[number], cv2.IMREAD_REDUCED_COLOR_2 | cv2.IMREAD_IGNORE_ORIENTATION)
            cv2.resize(image, size, dst=out[place], interpolation=cv2.INTER_LINEAR)

    work = resize if args.what == "resize" else decode

    def batch(pool: ThreadPoolExecutor) -> None:
        numbers = rng.integers(0, len(held), args.images)
        firsts = np.linspace(0, args.images, args.threads * 4 + 1).astype(int)
        list(pool.map(work, np.split(numbers, firsts[1:-1]), firsts[:-1].tolist()))

    def play() -> dict[str, Any]:
        with ThreadPoolExecutor(args.threads) as pool:
            batch(pool)
            clock = Clock()
            for _ in range(args.batches):
                batch(pool)
            return clock.rate(args.batches * args.images)

    serve(play, held=len(held), mean_bytes=float(np.mean([len(each) for each in held[:100]])))


main()
