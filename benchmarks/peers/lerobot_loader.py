"""LeRobotDataset behind torch's DataLoader, as LeRobot's own training does it: run inside an environment with lerobot.

Usage: python lerobot_loader.py ROOT [--workers 2] [--batch 32] [--batches 16] [--size 224]; a round for every line on
standard input. Images come as float32 at full size, or at `--size` by an image transform in the workers.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

from rounds import serve, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--size", type=int, default=None)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    transforms = None
    if args.size is not None:
        from torchvision.transforms import v2

        transforms = v2.Resize((args.size, args.size))
    data = LeRobotDataset("penstock/bench", root=args.root, image_transforms=transforms)
    cameras = list(data.meta.camera_keys)
    # more than a round takes, so that neither the end of an epoch nor a drained pipeline falls into the timed part
    wanted = (args.warmup + args.batches + 2 * args.workers) * args.batch
    sampler = torch.utils.data.RandomSampler(data, num_samples=wanted)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=args.workers)

    def play() -> dict[str, Any]:
        batches = iter(loader)
        found = timed(batches, warmup=args.warmup, count=args.batches, samples=args.batch)
        del batches  # ends the workers: nothing is decoded behind the back of the next contender
        return found

    serve(play, cameras=len(cameras), rows=len(data), workers=args.workers)


if __name__ == "__main__":
    main()
