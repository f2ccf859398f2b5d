"""What `LazyLoadVQADataset` and `StreamingVQADataset` take and give, measured on a part of the data.

They are measured in a process of their own, as a DataLoader's worker is one: what the calling process has imported and
freed before changes the memory and the speed of fresh arrays.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from penstock._src.load.bench.memory import HeldMeter
from penstock._src.load.vqa.dataset import LazyLoadVQADataset
from penstock._src.load.vqa.images import COLUMN
from penstock._src.load.vqa.samples import collate
from penstock._src.load.vqa.streaming import StreamingVQADataset
from penstock._src.plan.load_plan import LoadOption
from penstock._src.plan.view_choice import share_in_memory
from penstock._src.stores.opening import open_store
from penstock._src.system.units import MIB
from penstock.errors import StoreError

_PART_BYTES = 192 * MIB  # of images in the part that is measured: several times what processors cache
_PART_BATCHES = 8
_WARM_UP_BATCHES = 3
_LEAST_BATCHES = 3
_OWN = "batches, texts and libraries"


def vqa_options(
    path: str, batch_size: int, image_size: tuple[int, int] | None, memory: int, seconds: float,
    options: Mapping[str, Any],
) -> list[LoadOption]:  # fmt: skip
    """Samples by number with an image cache of `memory` bytes, and a stream; samples/s are those of one worker."""
    candidates = []
    for way in ("lazy", "stream"):
        words = json.dumps([way, path, batch_size, image_size, memory, seconds, dict(options)])
        command = [sys.executable, "-m", "penstock._src.load.vqa.planning", words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise StoreError(f"{path}: measuring it failed: {done.stderr.strip()[-500:]}")
        candidates.append(LoadOption(**json.loads(done.stdout)))
    return candidates


def _measured(
    way: str, path: str, batch_size: int, image_size: list[int] | None, memory: int, seconds: float,
    options: dict[str, Any],
) -> LoadOption:  # fmt: skip
    size = None if image_size is None else (image_size[0], image_size[1])
    with open_store(path, **options) as store:
        has_images = COLUMN in store.columns
    words = "".join(f", {name}={value!r}" for name, value in options.items())
    words = f"{path!r}, tokenizer, image_size={size!r}{'' if has_images else ', load_images=False'}{words}"
    shaped = {**options, "image_size": size, "load_images": has_images}
    if way == "lazy":
        return _lazy(path, batch_size, memory, seconds, shaped, words)
    return _stream(path, batch_size, seconds, shaped, words)


def _lazy(
    path: str, batch_size: int, memory: int, seconds: float, options: dict[str, Any], words: str
) -> LoadOption:  # fmt: skip
    has_images = options["load_images"]
    with (
        HeldMeter() as meter,
        LazyLoadVQADataset(path, cache_images=has_images, memory=memory, **options) as dataset,
    ):
        image_bytes = 0 if dataset.images is None else dataset.images.image_bytes
        rows = min(len(dataset), max(_PART_BATCHES * batch_size, _PART_BYTES // max(image_bytes, 1)))
        began = time.perf_counter()
        for row in range(rows):
            dataset[row]
        fill_s = time.perf_counter() - began
        rate = _rate(_batches(dataset, rows, batch_size), batch_size, seconds)
        cache = None if dataset.images is None else dataset.images.cache
        n_images, filled_bytes = (0, 0) if cache is None else (len(cache), cache.filled_bytes)
    all_bytes = n_images * image_bytes
    share = share_in_memory([all_bytes], memory, 0.0)
    if has_images:
        rate = 1 / (share / rate + (1 - share) * fill_s / rows)
    held = {_OWN: meter.peak_bytes - meter.start_bytes, "image cache": int(share * all_bytes)}
    code = f"penstock.LazyLoadVQADataset({words}"
    code += f", cache_images=True, memory='{memory >> 20}MiB')" if has_images else ")"
    fill_s *= share * all_bytes / max(filled_bytes, 1)
    return LoadOption("ram", share, held, 0, fill_s, rate, label="LazyLoadVQADataset, one worker", code=code)


def _stream(path: str, batch_size: int, seconds: float, options: dict[str, Any], words: str) -> LoadOption:
    with HeldMeter() as meter, StreamingVQADataset(path, batch_size=batch_size, drop_last=True, **options) as dataset:
        rate = _rate(_restart_forever(dataset), batch_size, seconds)
    held = {_OWN: meter.peak_bytes - meter.start_bytes}
    code = f"penstock.StreamingVQADataset({words}, batch_size={batch_size})"
    return LoadOption("off", 0.0, held, 0, 0.0, rate, label="StreamingVQADataset, one worker", code=code)


def _batches(dataset: LazyLoadVQADataset, rows: int, batch_size: int) -> Iterator[Any]:
    random = np.random.default_rng(0)
    while True:
        yield collate([dataset[row] for row in random.integers(0, rows, batch_size).tolist()])


def _restart_forever(dataset: StreamingVQADataset) -> Iterator[Any]:
    while True:
        yield from dataset


def _rate(batches: Iterable[Any], batch_size: int, seconds: float) -> float:
    """Samples/s behind the first batches. As in a training loop, a batch stays until the next one is there: where all
    memory is freed in between, malloc hands it back to the system, and every page is made anew."""
    began = 0.0
    for count, _batch in enumerate(batches, start=1 - _WARM_UP_BATCHES):
        now = time.perf_counter()
        if not count:
            began = now
        elif count >= _LEAST_BATCHES and now - began >= seconds:
            return count * batch_size / (now - began)
    raise AssertionError("batches never end")


if __name__ == "__main__":
    print(json.dumps(asdict(_measured(*json.loads(sys.argv[1])))))
