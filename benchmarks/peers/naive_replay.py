"""The replay buffer that people write by hand: every image read by h5py, resized, transposed, and stacked.

Usage: python naive_replay.py FILE [--batch 256] [--batches 4]; a round for every line on standard input.
"""

from __future__ import annotations

import argparse
from typing import Any

import cv2
import h5py
import numpy as np
from rounds import serve, timed

CAMERAS = ("left_image", "right_image", "global_image")


class LazyReplayBuffer:
    """Numbers in memory, images in the file: read and resized when they are sampled."""

    def __init__(self, path: str, size: int) -> None:
        self.size = size
        self.file = h5py.File(path, "r")
        observations = self.file["observations"]
        self.cameras = [observations[name] for name in CAMERAS]
        self.joint = observations["joint"][:]
        self.action = self.file["actions"][:]
        self.reward = self.file["rewards"][:].reshape(-1, 1)
        self.not_done = 1.0 - self.file["terminals"][:].astype(np.float32).reshape(-1, 1)
        self.first = np.flatnonzero(self.not_done[:-1, 0])  # a transition does not cross the end of an episode
        self.rng = np.random.default_rng(0)

    def image(self, camera: Any, row: int) -> Any:
        resized = cv2.resize(camera[row], (self.size, self.size), interpolation=cv2.INTER_LINEAR)
        return resized.transpose(2, 0, 1)

    def images(self, rows: Any) -> list[Any]:
        return [np.stack([self.image(camera, row) for row in rows]) for camera in self.cameras]

    def sample(self, batch_size: int) -> tuple[Any, ...]:
        rows = self.first[self.rng.integers(0, len(self.first), batch_size)]
        return (
            *self.images(rows),
            self.joint[rows],
            self.action[rows],
            *self.images(rows + 1),
            self.joint[rows + 1],
            self.reward[rows],
            self.not_done[rows],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--opencv-threads", type=int, default=None, help="default: as OpenCV comes, all cores")
    args = parser.parse_args()
    if args.opencv_threads is not None:
        cv2.setNumThreads(args.opencv_threads)
    buffer = LazyReplayBuffer(args.path, args.size)

    def play() -> dict[str, Any]:
        batches = (buffer.sample(args.batch) for _ in range(args.warmup + args.batches))
        return timed(batches, warmup=args.warmup, count=args.batches, samples=args.batch)

    serve(play)


main()
