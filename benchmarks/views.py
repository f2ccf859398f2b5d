"""Views in RAM: what filling one costs beside decoding, and what reading from it costs.

    python benchmarks/views.py [--quick] [--threads 12] [--rows 6000] [--rounds 5]

Makes JPEGs of 480×640 in an HDF5 file (cv2 and h5py alone), which lies in the page cache. Each round does everything in
turn, so that a noisy moment hits all; ratios are taken within a round, and their median counts. Milliseconds are those
of one thread: wall time × threads / images. A virtual machine may give free memory back to its host, and getting it
again takes ten times as long as filling it: each stage begins with as much memory at hand as it may take.
"Memory alone" is what no view in RAM can do without: fresh memory, which the system zeroes, and one copy into it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(Path(__file__).resolve().parent)]
sys.path.append(str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
from measure import Claim, finish  # noqa: E402

import penstock  # noqa: E402
from penstock._src.demo.scene import SceneCamera  # noqa: E402
from penstock._src.load.engine.images import Fitter, begin_quiet, end_quiet, fit_for  # noqa: E402
from penstock._src.stores.store import Scratch, Store  # noqa: E402
from penstock._src.system.files import memory_file  # noqa: E402
from penstock._src.system.mapped_memory import HUGE_BYTES, make_present, map_shared  # noqa: E402

SIZES = {"480×640": (480, 640), "224×224": (224, 224)}
DISTINCT = 100
CAMERA = "observations/images/cam"
STAGES = ("decode alone", "build_view", "epoch, no view", "first epoch, fills a view", "epoch from the view")
MEMORY = "memory alone"
ROWS_AT_ONCE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="600 rows, three rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    args = parser.parse_args()
    rows, rounds = args.rows or (600 if args.quick else 4000), args.rounds or (3 if args.quick else 5)
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}, {args.threads} threads, {rows:,} rows")
    for name in ("enabled", "shmem_enabled"):
        path = Path("/sys/kernel/mm/transparent_hugepage") / name
        print(f"transparent_hugepage/{name}: {path.read_text().strip() if path.exists() else 'none'}")
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        os.environ["PENSTOCK_RUNTIME"] = directory
        path = Path(directory) / "jpegs.hdf5"
        make(path, rows)
        store = penstock.open(path)
        name = next(column.name for column in store.columns.values() if column.kind == "image")
        for text, size in SIZES.items():
            decode(store, name, size, args.threads, min(rows, 200))  # libraries are loaded
            found = [measure(store, name, size, args.threads) for _ in range(rounds)]
            claims += claims_of(text, found)
    finish(claims)


def make(path: Path, rows: int) -> None:
    """JPEG bytes, padded with zeros, as ALOHA's files have them."""
    import h5py

    jpegs = [np.frombuffer(each, np.uint8) for each in SceneCamera(640, 480, 0).jpegs(DISTINCT, 30.0, 95)]
    longest = max(map(len, jpegs))
    padded = np.zeros((DISTINCT, longest), np.uint8)
    for number, jpeg in enumerate(jpegs):
        padded[number, : len(jpeg)] = jpeg
    with h5py.File(path, "w") as file:
        file.attrs["sim"], file.attrs["compress"] = False, True
        images = file.create_dataset(CAMERA, (rows, longest), np.uint8)
        for first in range(0, rows, DISTINCT):
            images[first : first + DISTINCT] = padded[: min(DISTINCT, rows - first)]
        file.create_dataset("observations/qpos", data=np.zeros((rows, 14), np.float32))
        file.create_dataset("action", data=np.zeros((rows, 14), np.float32))
    print(f"{rows:,} JPEGs of 480×640, {sum(map(len, jpegs)) / DISTINCT / 1e3:.0f} kB each")


@dataclass(frozen=True)
class Cost:
    """Milliseconds per image."""

    thread_ms: float
    cpu_ms: float


class Timer:
    """What a block costs per image: of one of its threads, and of all processors together."""

    def __init__(self, threads: int, images: int) -> None:
        self._threads, self._images = threads, images

    def __enter__(self) -> Timer:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        wall_s, cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        self.cost = Cost(wall_s * self._threads / self._images * 1e3, cpu_s / self._images * 1e3)


def measure(store: Store, name: str, size: tuple[int, int], threads: int) -> dict[str, Cost]:
    """What each stage costs."""
    took: dict[str, Cost] = {}
    timer, memory_bytes = Timer(threads, store.rows), store.rows * size[0] * size[1] * 3 + (2 << 30)
    with timer:
        decode(store, name, size, threads, store.rows)
    took["decode alone"] = timer.cost
    have_at_hand(memory_bytes)
    with timer:
        views = penstock.build_view(store, name, size, where="ram", threads=threads)
    took["build_view"] = timer.cost
    for view in views.values():
        view.close()
    options: dict[str, Any] = {"batch_size": 64, "image_size": size, "threads": threads, "drop_last": False}
    options["memory"] = memory_bytes
    have_at_hand(memory_bytes)
    with penstock.Loader(store, view="off", **options) as loader, timer:
        epoch(loader)
    took["epoch, no view"] = timer.cost
    have_at_hand(memory_bytes)
    with penstock.Loader(store, view="ram", **options) as loader:
        with timer:
            epoch(loader)
        took["first epoch, fills a view"] = timer.cost
        with timer:
            epoch(loader)
        took["epoch from the view"] = timer.cost
        assert loader.stats()["images_made"] == store.rows, "each image is decoded once"
    have_at_hand(memory_bytes)
    with timer:
        fill_memory(store.rows, size, threads)
    took[MEMORY] = timer.cost
    print("  ".join(f"{stage} {cost.thread_ms:.3f} ({cost.cpu_ms:.3f})" for stage, cost in took.items()), flush=True)
    return took


def have_at_hand(n_bytes: int) -> None:
    """This machine has as much free memory, without asking its host."""
    fd = memory_file("penstock-bench")
    os.ftruncate(fd, n_bytes)
    mapping, memory = map_shared(fd, n_bytes)
    make_present(memory[: n_bytes // HUGE_BYTES * HUGE_BYTES])
    del memory
    mapping.close()
    os.close(fd)


def fill_memory(rows: int, size: tuple[int, int], threads: int) -> None:
    """Threads make shared memory present and copy images into it, from a batch of 64."""
    row_bytes = size[0] * size[1] * 3
    batch = np.ones((64, row_bytes), np.uint8)
    fd = memory_file("penstock-bench")
    os.ftruncate(fd, -(-rows * row_bytes // HUGE_BYTES) * HUGE_BYTES)
    mapping, memory = map_shared(fd, -(-rows * row_bytes // HUGE_BYTES) * HUGE_BYTES)

    def work(first: int, memory: np.ndarray[Any, Any]) -> None:
        images = memory[: rows * row_bytes].reshape(rows, row_bytes)
        for begin in range(first * ROWS_AT_ONCE, rows, threads * ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, rows)
            head = begin * row_bytes // HUGE_BYTES * HUGE_BYTES
            make_present(memory[head : -(-end * row_bytes // HUGE_BYTES) * HUGE_BYTES])
            np.take(batch, np.arange(begin, end) % 64, axis=0, out=images[begin:end], mode="clip")

    workers = [threading.Thread(target=work, args=(number, memory)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    del workers, worker, memory  # the threads hold it, too
    mapping.close()
    os.close(fd)


def decode(store: Store, name: str, size: tuple[int, int], threads: int, rows: int) -> None:
    """Threads read and decode all rows, each into one array that it has."""
    fit = fit_for(store.column(name), size)

    def work(first: int) -> None:
        reader, scratch, fitter = store.images(name), Scratch(), Fitter()
        out = np.empty((fit.channels, *size), np.uint8)
        for begin in range(first * 64, rows, threads * 64):
            for image in reader.read(list(range(begin, min(begin + 64, rows))), scratch):
                fitter.fit(image, fit, out)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    begin_quiet()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    end_quiet()


def epoch(loader: penstock.Loader) -> None:
    for _ in loader:
        pass


def claims_of(text: str, found: list[dict[str, Cost]]) -> list[Claim]:
    print(f"\n{text}, median of {len(found)} rounds: ms of a thread per image, ms of CPU time per image")
    for stage in (*STAGES, MEMORY):
        thread_ms = statistics.median(each[stage].thread_ms for each in found)
        cpu_ms = statistics.median(each[stage].cpu_ms for each in found)
        print(f"  {stage:<28} {thread_ms:8.3f} {cpu_ms:8.3f}")

    def times(above: str, below: str) -> float:
        return statistics.median(each[above].thread_ms / each[below].thread_ms for each in found)

    fills, plain, reads = STAGES[3], STAGES[2], STAGES[4]
    least = statistics.median(
        each[fills].thread_ms / (each[plain].thread_ms + each[MEMORY].thread_ms) for each in found
    )
    return [
        Claim(f"{text}: filling a view against decoding alone (times)", times("build_view", "decode alone"), "<= 1.3"),
        Claim(f"{text}: an epoch that fills a view against one without (times)", times(fills, plain), "<= 1.1"),
        Claim(f"{text}: the same, against one without and the memory alone (times)", least, "<= 1.1"),
        Claim(f"{text}: an epoch from the view against one without (times faster)", times(plain, reads), ">= 5"),
    ]


if __name__ == "__main__":
    main()
