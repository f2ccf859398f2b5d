"""The memory that loading spike clips takes, beside what is predicted before it starts.

    python benchmarks/clip_memory.py [--quick] [--keep DIR]

720p PNG images with 88×360×640 packed spikes, crop 256; needs torch. Every setting is loaded in a process of its own.
Its memory is the PSS of the process and its workers, less what the process held before its loaders were made. The
training loop rests after every fourth batch until the workers have nothing left to do: all batches are under way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cv2
import numpy as np
from measure import Claim, finish

MIB = 1 << 20
EPOCHS = 3
SETTINGS = (  # how workers start, DTYPE, batch size, workers, prefetch
    ("fork", "float32", 1, 2, 2),
    ("fork", "float32", 1, 4, 2),
    ("fork", "float32", 2, 2, 1),
    ("fork", "uint8", 1, 8, 2),
    ("spawn", "uint8", 1, 2, 2),
)
QUICK = (SETTINGS[0], SETTINGS[-1])


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


def load(root: str, dtype: str, batch_size: int, workers: int, prefetch: int) -> dict[str, int]:
    """What loading takes, and what was predicted."""
    import torch  # noqa: F401 - as a training script has it

    import penstock
    from penstock._src.system.memory import tree_pss_bytes

    tree: dict[str, Any] = {
        "DATA": {"ROOT": root, "VAL_SPLIT": None, "SPIKE_FLIP": False, "DTYPE": dtype},
        "DATALOADER": {"TRAIN_WORKERS": workers, "TRAIN_PREFETCH_FACTOR": prefetch},
        "TRAIN": {"BATCH_SIZE": batch_size},
    }
    before = tree_pss_bytes()
    most = count = 0
    with penstock.clip_loaders(tree, log=None, gpus=1) as loaders:
        for _ in range(EPOCHS):
            for _ in loaders.train:
                count += 1
                most = max(most, settled(tree_pss_bytes) if count % 4 == 0 else tree_pss_bytes())
        return {"measured": most - before, "predicted": loaders.predicted_bytes}


def settled(read: Callable[[], int]) -> int:
    """The memory when it has not grown for a second and a half."""
    most, still = read(), 0
    while still < 5:
        time.sleep(0.3)
        now = read()
        still = still + 1 if now <= most + MIB else 0
        most = max(most, now)
    return most


def measured(root: Path, start: str, *setting: object) -> dict[str, int]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", start, str(root), *map(str, setting)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two settings")
    parser.add_argument("--keep", type=Path, help="make the data here, and leave it")
    words = parser.parse_args()
    root = words.keep or Path(tempfile.mkdtemp(prefix="penstock-clips-"))
    try:
        if not (root / "train").is_dir():
            make_set(root, 24)
        print(f"{'':<52}{'measured':>12}{'predicted':>12}")
        claims = []
        for setting in QUICK if words.quick else SETTINGS:
            start, dtype, batch_size, workers, prefetch = setting
            name = f"{workers} workers ({start}), prefetch {prefetch}, batches of {batch_size}, {dtype}"
            found = measured(root, *setting)
            print(f"{name:<52}{found['measured'] / MIB:>8.0f} MiB{found['predicted'] / MIB:>8.0f} MiB", flush=True)
            share = found["predicted"] / found["measured"]
            claims.append(Claim(f"{name}: predicted over measured, not too little", share, ">= 0.85"))
            claims.append(Claim(f"{name}: predicted over measured, not too much", share, "<= 1.15"))
        finish(claims)
    finally:
        if words.keep is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        multiprocessing.set_start_method(sys.argv[2])
        print(json.dumps(load(sys.argv[3], sys.argv[4], *map(int, sys.argv[5:]))))
    else:
        main()
