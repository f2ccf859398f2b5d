"""TorchRL's replay buffer over memory-mapped storage, filled with images that are already at training size.

Usage: python torchrl_replay.py FILE SCRATCH_DIRECTORY [--batch 256] [--batches 8]; a round for every line on standard
input. It answers to a view: what is sampled was resized before, and "fill_s" says how long that took.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import cv2
import h5py
import numpy as np
import torch
from rounds import serve, timed
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

CAMERAS = ("left_image", "right_image", "global_image")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("scratch")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--prefetch", type=int, default=2, help="batches that two threads of the buffer prepare")
    args = parser.parse_args()
    torch.set_num_threads(2)
    began = time.perf_counter()
    with h5py.File(args.path, "r") as file:
        rows = len(file["actions"])
        buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(rows - 1, scratch_dir=args.scratch), batch_size=args.batch, prefetch=args.prefetch
        )
        for first in range(0, rows - 1, 64):
            buffer.extend(transitions(file, first, min(first + 64, rows - 1), args.size))
    fill_s = time.perf_counter() - began

    def play() -> dict[str, Any]:
        batches = (buffer.sample() for _ in range(args.warmup + args.batches))
        return timed(batches, warmup=args.warmup, count=args.batches, samples=args.batch)

    serve(play, fill_s=fill_s, rows=rows)


def transitions(file: Any, first: int, last: int, size: int) -> TensorDict:
    values: dict[str, Any] = {"action": torch.from_numpy(file["actions"][first:last])}
    for name in CAMERAS:
        raw = file["observations"][name][first : last + 1]
        small = torch.from_numpy(np.stack([cv2.resize(each, (size, size)).transpose(2, 0, 1) for each in raw]))
        values[name], values[f"next_{name}"] = small[:-1], small[1:]
    return TensorDict(values, batch_size=[last - first])


main()
