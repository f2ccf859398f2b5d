"""One turn of `remote.py`, in a process of its own: prints one JSON object.

Ways: `bare` (obstore alone), `decoded` (obstore and OpenCV), `read` (stored bytes through penstock), `load` (a loader),
`open` (a cold open), `view` (a loader's second epoch: one turn for every line on standard input).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import penstock
from penstock._src.stores.store import Scratch
from penstock._src.system.files.remote.requests import counters

SIZE = (224, 224)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("bare", "decoded", "read", "load", "view", "open"))
    parser.add_argument("path")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--memory", default="768MiB")
    args = parser.parse_args()
    ways: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "bare": bare, "decoded": bare, "read": read, "load": load, "open": cold_open,
    }  # fmt: skip
    if args.way == "view":
        view(args)
    else:
        print(json.dumps(ways[args.way](args)), flush=True)
        if args.way in ("bare", "decoded"):
            os._exit(0)  # its threads are in foreign code, which may abort where the interpreter ends beside it


def ranges(path: str) -> tuple[int, list[tuple[str, Any, Any]]]:
    """Rows, and of each camera its file with offsets and sizes, as penstock finds them."""
    from penstock._src.media.mp4.index import read_index
    from penstock._src.system.files import as_path

    found = []
    for file in sorted(as_path(path).rglob("*.mp4")):
        index = read_index(file)
        found.append((str(file), index.offsets, index.sizes))
    return len(found[0][1]), found


def bare(args: argparse.Namespace) -> dict[str, Any]:
    """Threads that call get_range for random samples, three ranges each; `decoded`: OpenCV decodes and resizes them."""
    import cv2
    import obstore
    from obstore.store import S3Store

    cv2.setNumThreads(1)  # the threads are ours
    in_flight = int(os.environ["PENSTOCK_REMOTE_IN_FLIGHT"])
    rows, cameras = ranges(args.path)
    store = S3Store(
        args.path.split("/")[2], endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1",
        client_options={"allow_http": True, "pool_max_idle_per_host": str(2 * in_flight)},
    )  # fmt: skip
    order = np.random.default_rng(0).permutation(rows)
    lock, at, done = threading.Lock(), 0, 0
    deadline = [float("inf")]
    fetched: queue.Queue[Any] = queue.Queue(in_flight)

    def count() -> None:
        nonlocal done
        with lock:
            done += 1

    def fetch() -> None:
        nonlocal at
        while time.perf_counter() < deadline[0]:
            with lock:
                number = at
                at += 1
            path, offsets, sizes = cameras[number % len(cameras)]
            row = int(order[(number // len(cameras)) % rows])
            key = "/".join(path.split("/")[3:])
            data = obstore.get_range(store, key, start=int(offsets[row]), length=int(sizes[row]))
            assert len(data) == int(sizes[row])
            if args.way == "decoded":
                fetched.put(data)
            else:
                count()

    def decode() -> None:
        out = np.empty((*SIZE, 3), np.uint8)
        while True:
            data = np.frombuffer(fetched.get(), np.uint8)
            image = cv2.imdecode(data, cv2.IMREAD_REDUCED_COLOR_2 | cv2.IMREAD_IGNORE_ORIENTATION)
            cv2.resize(image, SIZE, dst=out, interpolation=cv2.INTER_LINEAR)
            count()

    work = [fetch] * in_flight + [decode] * (os.cpu_count() or 1) * (args.way == "decoded")
    for each in work:
        threading.Thread(target=each, daemon=True).start()
    time.sleep(1.0)  # connections are made, and the first answers have come
    before, began = done, time.perf_counter()
    time.sleep(args.seconds)
    made, took = done - before, time.perf_counter() - began
    deadline[0] = 0.0
    return {"samples_per_s": made / len(cameras) / took}


def read(args: argparse.Namespace) -> dict[str, Any]:
    """The stored bytes of random samples, batch by batch, the following ones asked for ahead."""
    store = penstock.open(args.path)
    names = [name for name, column in store.columns.items() if column.is_image]
    sources = [store.images(name) for name in names]
    scratch = Scratch()

    def batches() -> Iterator[list[int]]:
        generator = np.random.default_rng(0)
        while True:
            order = generator.permutation(store.rows)
            for first in range(0, len(order) - args.batch, args.batch):
                yield np.sort(order[first : first + args.batch]).tolist()

    coming, chosen = [], batches()
    samples, began = 0, 0.0
    first = time.perf_counter()
    while True:
        while len(coming) < 4:
            rows = next(chosen)
            coming.append((rows, [source.prefetch(rows) for source in sources]))
        rows, asked = coming.pop(0)
        for source in sources:
            for _ in source.read(rows, scratch):
                pass
        for each in asked:
            if each is not None:
                each.close()
        now = time.perf_counter()
        if began:
            samples += len(rows)
            if now - began >= args.seconds:
                return {"samples_per_s": samples / (now - began)}
        elif now - first >= 1.0:
            began = now


def load(args: argparse.Namespace) -> dict[str, Any]:
    """Decoded batches, the first second left out."""
    words: dict[str, Any] = {"batch_size": args.batch, "image_size": SIZE, "memory": args.memory, "view": "off"}
    with penstock.open(args.path) as store, penstock.Loader(store, **words) as loader:
        samples, began, first = 0, 0.0, time.perf_counter()
        while True:
            for batch in loader:
                now = time.perf_counter()
                if began:
                    samples += len(batch["index"])
                    if now - began >= args.seconds:
                        return {"samples_per_s": samples / (now - began)}
                elif now - first >= 1.0:
                    began = now


def view(args: argparse.Namespace) -> None:
    """Epochs after the first, from a view in memory."""
    from peers.rounds import Clock, serve

    words: dict[str, Any] = {"batch_size": args.batch, "image_size": (96, 128), "memory": args.memory, "view": "ram"}
    with penstock.open(args.path) as store, penstock.Loader(store, **words) as loader:
        for _ in loader:
            pass
        asked = counters.requests

        def play() -> dict[str, Any]:
            clock, samples, began = Clock(), 0, time.perf_counter()
            while time.perf_counter() - began < args.seconds:
                samples += sum(len(batch["index"]) for batch in loader)
            return {**clock.rate(samples), "requests": counters.requests - asked}

        serve(play)


def cold_open(args: argparse.Namespace) -> dict[str, Any]:
    """From the call to a store whose first row can be read; imports are not part of it."""
    import h5py  # noqa: F401
    import obstore  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    began = time.perf_counter()
    store = penstock.open(args.path)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "requests": counters.requests, "episodes": len(store.episode_starts) - 1}


if __name__ == "__main__":
    main()
