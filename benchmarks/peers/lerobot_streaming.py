"""StreamingLeRobotDataset, read from a server that speaks as the Hub does: run inside an environment with lerobot.

Usage: HF_ENDPOINT=http://127.0.0.1:PORT python lerobot_streaming.py OWNER/NAME [--seconds 6] [--buffer 100]; prints one
JSON object. Tables and videos come through fsspec's `hf://`, with what it reads ahead. Samples are counted as they are
made, from the moment the shuffle buffer is full: until then nothing comes out. Images are resized as they are made.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--buffer", type=int, default=100, help="samples to shuffle among (LeRobot's default: 1,000)")
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")  # what libraries print must not stand between the answers
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="penstock-peer-") as home:
        # Nothing is kept from an earlier run, and nothing is sent but what reads the data set.
        os.environ.update(
            HF_HOME=home, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_LEROBOT_HOME=f"{home}/l"
        )
        print(json.dumps(measured(args)), file=answers, flush=True)
    sys.stdout.flush()


def measured(args: argparse.Namespace) -> dict[str, float]:
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset
    from torchvision.transforms import v2

    began = time.perf_counter()
    transforms = v2.Resize((args.size, args.size))
    data = StreamingLeRobotDataset(args.name, image_transforms=transforms, buffer_size=args.buffer, return_uint8=True)
    opened = time.perf_counter()
    samples = iter(data)
    next(samples)
    filled, made = time.perf_counter(), 0
    while time.perf_counter() - filled < args.seconds:
        if next(samples, None) is None:
            raise SystemExit("the data set ended before the time did: give it more rows or a smaller --buffer")
        made += 1
    seconds = time.perf_counter() - filled
    return {"samples_per_s": made / seconds, "open_s": opened - began, "first_sample_s": filled - opened}


if __name__ == "__main__":
    main()
