"""The engine process under stress: killed at random moments, started and ended very often; and what a hand-over costs.

    python benchmarks/engine.py [--quick] [--kills 50] [--cycles 1000]

The order of an epoch in which the engine is killed must be that of an undisturbed one. After many loaders nothing may
be left: no process, no descriptor, no memory file. The hand-over is what `next` takes when a batch is complete.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cv2
import h5py
import numpy as np
from measure import Claim, finish

import penstock
from penstock._src.system.memory import descendants

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 kills and 20 cycles")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--cycles", type=int, default=1000)
    args = parser.parse_args()
    kills, cycles = (10, 20) if args.quick else (args.kills, args.cycles)
    with tempfile.TemporaryDirectory() as directory:
        path = make_file(Path(directory) / "replay.hdf5", 2400)
        with penstock.open(path) as store:
            finish([*killed(store, kills), *cycled(store, cycles), *handed_over(store)])


def make_file(path: Path, rows: int) -> Path:
    """JPEGs of 240×320 in an HDF5 file."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        small = rng.integers(0, 256, (32, 12, 16, 3), dtype=np.uint8)
        images = [cv2.resize(each, (320, 240), interpolation=cv2.INTER_CUBIC) for each in small]
        file["observations/images/top"] = np.stack([images[row % 32] for row in range(rows)])
        file["observations/qpos"] = rng.standard_normal((rows, 7)).astype(np.float32)
        file["action"] = rng.standard_normal((rows, 7)).astype(np.float32)
    return path


def loader_of(store: Any, **words: Any) -> penstock.Loader:
    given = {"batch_size": BATCH, "image_size": (96, 128), "memory": "512MiB", "view": "off", "output": "numpy"}
    return penstock.Loader(store, **{**given, "engine": "process", **words})


def fingerprints(loader: penstock.Loader) -> list[tuple[bytes, int]]:
    """Of one epoch: the rows of every batch, and a sum over all its bytes."""
    return [(batch["index"].tobytes(), sum(int(each.view(np.uint8).sum()) for each in batch.values()))
            for batch in loader]  # fmt: skip


def killed(store: Any, kills: int) -> list[Claim]:
    """One epoch after the other, until the engine was killed often enough: by another thread, whenever it likes."""
    undisturbed = {}
    with loader_of(store) as loader:
        for epoch in range(2):
            undisturbed[epoch] = fingerprints(loader)
    done, rng, stop = [0], random.Random(1), threading.Event()
    with loader_of(store) as loader:
        next(iter(loader))
        loader.set_epoch(0)

        def kill() -> None:
            batches = 0
            while done[0] < kills and not stop.is_set():
                time.sleep(rng.uniform(0.0, 0.1))
                stats = loader.stats()
                if stats["batches"] == batches:  # not again before the engine that replaced the last one has made any
                    continue
                batches = stats["batches"]
                with contextlib.suppress(ProcessLookupError):  # it is just being replaced
                    os.kill(stats["engine"]["pid"], signal.SIGKILL)
                    done[0] += 1

        killer = threading.Thread(target=kill)
        killer.start()
        epochs = wrong = 0
        while killer.is_alive():
            loader.set_epoch(epochs % 2)
            wrong += fingerprints(loader) != undisturbed[epochs % 2]
            epochs += 1
        stop.set()
        killer.join()
        restarts = loader.stats()["engine"]["restarts"]
    print(f"killed {done[0]} times in {epochs} epochs of {len(undisturbed[0])} batches, restarted {restarts} times; "
          f"{wrong} epochs differ")  # fmt: skip
    return [Claim("epochs that differ after the engine was killed", wrong, "<= 0"),
            Claim("kills of the engine", done[0], f">= {kills}")]  # fmt: skip


def cycled(store: Any, cycles: int) -> list[Claim]:
    """Loaders that are made, used and closed, or forgotten."""
    before = len(os.listdir("/proc/self/fd")), len(descendants(os.getpid()))
    began = time.perf_counter()
    for number in range(cycles):
        loader = loader_of(store)
        next(iter(loader))
        if number % 2:
            loader.close()
        del loader
    gc.collect()
    after = len(os.listdir("/proc/self/fd")), len(descendants(os.getpid()))
    each_s = (time.perf_counter() - began) / cycles
    print(f"{cycles} loaders, {each_s:.2f} s each: {after[0] - before[0]} descriptors and {after[1] - before[1]} "
          f"processes are left")  # fmt: skip
    return [Claim("descriptors left after all cycles", after[0] - before[0], "<= 0"),
            Claim("processes left after all cycles", after[1] - before[1], "<= 0")]  # fmt: skip


def handed_over(store: Any) -> list[Claim]:
    """What `next` takes when the batch is complete: a step of 10 ms gives the engine time."""
    times: dict[str, list[float]] = {"process": [], "thread": []}
    for _ in range(3):
        for engine, found in times.items():
            with loader_of(store, engine=engine) as loader:
                batches = iter(loader)
                next(batches)
                for _ in range(100):
                    time.sleep(0.01)
                    began = time.perf_counter()
                    next(batches)
                    found.append(time.perf_counter() - began)
    medians = {engine: 1e6 * statistics.median(found) for engine, found in times.items()}
    print(f"hand-over, median: {medians['process']:.0f} µs with the engine process, {medians['thread']:.0f} µs with "
          f"threads")  # fmt: skip
    return [Claim("µs of a hand-over with the engine process, informational", medians["process"], ">= 0")]


if __name__ == "__main__":
    main()
