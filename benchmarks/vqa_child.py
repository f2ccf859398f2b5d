"""One contender of benchmarks/vqa.py in a process of its own: opens a JSONL, reads at random, shares it with workers.

    python benchmarks/vqa_child.py lazy|datasets|list FILE open|all

Prints one JSON object. Exit code 3: the contender is not installed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

_ROUNDS, _ROUND_S = 100, 0.01  # short rounds: on a busy machine, some of them run undisturbed
_TRIED = 200  # records by which the length of a round is found
_WORKERS, _BATCH, _BATCHES = 4, 256, 160


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int:
    """What a process shares with no other (USS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def opener(kind: str, path: str) -> Any:
    """Imports what the contender needs; what it gives opens the file."""
    if kind == "lazy":
        import penstock

        lazy = penstock.LazyLoadVQADataset
        return lambda: lazy(path, load_images=False)
    if kind == "datasets":
        try:
            import datasets
        except ImportError:
            sys.exit(3)
        datasets.disable_progress_bars()
        return lambda: datasets.load_dataset("json", data_files=path, split="train")

    def read() -> list[Any]:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    return read


def random_access(data: Any) -> dict[str, float]:
    """Records a second, the best round; and the CPU time of one."""
    rng = np.random.default_rng(0)

    def read(count: int) -> tuple[float, float]:
        numbers = rng.integers(0, len(data), count).tolist()
        began, began_cpu = time.perf_counter(), time.process_time()
        for number in numbers:
            data[number]
        return (time.perf_counter() - began) / count, (time.process_time() - began_cpu) / count

    read(_TRIED)
    count = max(1, int(_ROUND_S / read(_TRIED)[1]))
    rounds = [read(count) for _ in range(_ROUNDS)]
    cpu_us = 1e6 * sum(cpu for _, cpu in rounds) / _ROUNDS
    return {"records_per_s": 1 / min(wall for wall, _ in rounds), "cpu_us": cpu_us}


class _Order:
    """Batches of random numbers, made one at a time: a permutation as a list would be memory of the data loader."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return _BATCHES

    def __iter__(self) -> Any:
        rng = np.random.default_rng(1)
        for _ in range(_BATCHES):
            yield rng.integers(0, self._count, _BATCH).tolist()


def workers(data: Any) -> float:
    """The own memory of the largest worker, while it works."""
    from torch.utils.data import DataLoader

    loader = DataLoader(data, batch_sampler=_Order(len(data)), num_workers=_WORKERS, collate_fn=len)
    iterator = iter(loader)
    most = 0
    pids = [worker.pid for worker in iterator._workers]
    for number, _ in enumerate(iterator):
        if number % 20 == 19 and number < _BATCHES - 2 * _WORKERS:  # all of them still work
            most = max(most, *(own_bytes(pid) for pid in pids))
    return most / 1e6


def main() -> None:
    warnings.simplefilter("ignore")
    kind, path, what = sys.argv[1:]
    try:
        import torch.utils.data  # noqa: F401 - before the baseline: it is no part of the contender
    except ImportError:
        sys.exit(3)
    open_data = opener(kind, path)
    gc.collect()
    base = rss_bytes()
    began = time.perf_counter()
    data = open_data()
    len(data), data[0]
    found: dict[str, float] = {"open_s": time.perf_counter() - began}
    if what == "all":
        found.update(random_access(data))
    found["memory_mb"] = (rss_bytes() - base) / 1e6
    if what == "all":
        found["worker_mb"] = workers(data)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
