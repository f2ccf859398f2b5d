"""What a worker that loads spike clips holds by itself, beside what is predicted for it.

    python benchmarks/clip_memory.py [--quick] [--keep DIR]

720p PNG images with 88×360×640 packed spikes, crop 256. Workers are forked and spawned, each in a process of its own.
Their memory is the USS, pages that nobody shares, looked at after every batch: the largest of all workers counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cv2
import numpy as np
from measure import Claim, finish

MIB = 1 << 20
WORKERS = 2


def make_set(root: Path, rows: int) -> None:
    """One training sequence: soft noise as images, spikes by chance."""
    folder = root / "train" / "GOPR0000_11_00"
    random = np.random.default_rng(0)
    for name in ("blur", "sharp", "spike"):
        (folder / name).mkdir(parents=True)
    for row in range(rows):
        soft = cv2.resize(random.integers(0, 256, (90, 160, 3), np.uint8), (1280, 720), interpolation=cv2.INTER_CUBIC)
        for name in ("blur", "sharp"):
            cv2.imwrite(str(folder / name / f"{row:06}.png"), soft)
        (folder / "spike" / f"{row:06}.dat").write_bytes(random.bytes(88 * 360 * 640 // 8))


def load(root: str, epochs: int) -> dict[str, int]:
    """What the largest worker holds, and what was predicted for each."""
    import psutil

    import penstock
    from penstock.system.memory import descendants

    tree: dict[str, Any] = {
        "DATA": {"ROOT": root, "VAL_SPLIT": None, "SPIKE_FLIP": False},
        "DATALOADER": {"TOTAL_WORKERS": WORKERS, "TRAIN_PREFETCH_FACTOR": 2},
    }
    most = 0
    with penstock.clip_loaders(tree, log=None) as loaders:
        for _ in range(epochs):
            for _ in loaders.train:
                for pid in descendants(os.getpid()):
                    most = max(most, psutil.Process(pid).memory_full_info().uss)
        return {"measured": most, "predicted": loaders.memory.train.worker_bytes}


def measured(start: str, root: Path, epochs: int) -> dict[str, int]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", start, str(root), str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images and epochs")
    parser.add_argument("--keep", type=Path, help="make the data here, and leave it")
    words = parser.parse_args()
    root = words.keep or Path(tempfile.mkdtemp(prefix="penstock-clips-"))
    rows, epochs = (8, 2) if words.quick else (24, 6)
    try:
        if not (root / "train").is_dir():
            make_set(root, rows)
        print(f"{'workers are':<14}{'measured':>12}{'predicted':>12}   memory of one worker, batches left out")
        claims = []
        for start in ("fork", "spawn"):
            found = measured(start, root, epochs)
            print(f"{start + 'ed':<14}{found['measured'] / MIB:>8.0f} MiB{found['predicted'] / MIB:>8.0f} MiB")
            share = found["measured"] / found["predicted"]
            claims.append(Claim(f"a {start}ed worker's memory over what is predicted", share, "<= 1"))
            claims.append(Claim(f"a {start}ed worker's memory over what is predicted, not far off", share, ">= 0.3"))
        finish(claims)
    finally:
        if words.keep is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        multiprocessing.set_start_method(sys.argv[2])
        print(json.dumps(load(sys.argv[3], int(sys.argv[4]))))
    else:
        main()
