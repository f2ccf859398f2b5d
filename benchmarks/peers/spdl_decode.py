"""SPDL's decoder on threads: JPEG bytes in memory → RGB images at training size, one array per batch.

Usage: python spdl_decode.py FRAMES.npz [--threads 2] [--images 96] [--batches 16]; a round for every line on
standard input. Samples are images here.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import spdl.io
from rounds import Clock, serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=96, help="per batch: three cameras, batch 32")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    with np.load(args.path) as file:
        data, ends = file["data"].tobytes(), np.cumsum(file["sizes"]).tolist()
    frames = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    wanted = spdl.io.get_video_filter_desc(
        scale_width=args.size, scale_height=args.size, scale_algo="bilinear", scale_mode=None, pix_fmt="rgb24"
    )
    rng = np.random.default_rng(0)

    def decoded(number: int) -> Any:
        return spdl.io.decode_packets(spdl.io.demux_image(frames[number]), filter_desc=wanted)

    def batch(pool: ThreadPoolExecutor) -> Any:
        chosen = rng.integers(0, len(frames), args.images).tolist()
        return spdl.io.to_numpy(spdl.io.convert_frames(list(pool.map(decoded, chosen))))

    def play() -> dict[str, Any]:
        with ThreadPoolExecutor(args.threads) as pool:
            shape = batch(pool).shape
            if shape != (args.images, args.size, args.size, 3):
                raise SystemExit(f"SPDL gave {shape}")
            clock = Clock()
            for _ in range(args.batches):
                batch(pool)
            return clock.rate(args.batches * args.images)

    serve(play, held=len(frames))


main()
