"""Clips of 720p images with spikes: penstock, the usual way, the image decoder alone; and where the time goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from contend import Contest
from measure import Claim
from spike_data import Scene, repeat_rows, write_scene

ROWS, DISTINCT_ROWS = 60, 12  # an epoch is longer than a round; its files repeat after 12 rows
SCRIPT = "spike_contender.py"


def clip_claims(directory: Path, rounds: int, batches: int, workers: int) -> list[Claim]:
    """The bars: 90 % of what the decoder alone reaches on the same workers, and 5 times that with the cache."""
    began = time.perf_counter()
    root = write_scene(directory / "clips", Scene(sequences=1, rows=DISTINCT_ROWS, test_sequences=0), workers)
    repeat_rows(root / "train", ROWS)
    print(f"made {DISTINCT_ROWS} rows of 720p in {time.perf_counter() - began:.0f} s", flush=True)
    show_stages(root, batches)
    options = ("--workers", workers)
    with Contest() as contest:
        bare = contest.add("cv2.imdecode alone", SCRIPT, "decoder", root, *options, "--batches", batches)
        ours = contest.add("penstock", SCRIPT, "penstock", root, *options, "--batches", batches)
        usual = contest.add("usual Dataset", SCRIPT, "usual", root, *options, "--batches", max(batches // 4, 2))
        cached = contest.add("penstock, images in the RAM cache", SCRIPT, "cached", root, *options, "--batches", 40)
        lean = contest.add("the same with DTYPE: uint8", SCRIPT, "cached-bytes", root, *options, "--batches", 40)
        contest.play(rounds, units=("clips",) * 5)
    return [
        Claim("clips, share of what the image decoder alone reaches", ours.per_s / bare.per_s, ">= 0.9"),
        Claim("clips with the RAM cache, against without (times)", cached.per_s / ours.per_s, ">= 5"),
        Claim("clips with the RAM cache and DTYPE: uint8, against neither (times)", lean.per_s / ours.per_s, ">= 5"),
        Claim("clips against a usual Dataset, informational (times)", ours.per_s / usual.per_s, ">= 0"),
    ]


def show_stages(root: Path, clips: int) -> None:
    """CPU time of one clip in one thread, stage by stage (medians); files are in the page cache."""
    import cv2

    import penstock
    from penstock._src.load.clips import frames
    from penstock._src.stores.spike.store import SpikeStore

    cv2.setNumThreads(1)  # as in workers
    stages = {
        "PNG files read": (type(penstock.open(root, split="train").images("blur")), "read"),
        "PNG decoded": (frames.codec, "decode"),
        "cropped, turned, made floats": (frames.ClipFrames, "_place"),
        "spike files to voxels": (SpikeStore, "voxel"),
    }
    taken: dict[str, list[float]] = {name: [] for name in stages}
    whole: list[float] = []
    made = penstock.SpikeClips(root, 5, 256, augment=True, split="train", output="numpy")
    with ExitStack() as stack:
        clocks = {name: stack.enter_context(_timed(*place)) for name, place in stages.items()}
        for number in range(clips + 1):
            for clock in clocks.values():
                clock.clear()
            began = time.thread_time()
            made[7 * number]
            whole.append(time.thread_time() - began)
            for name, clock in clocks.items():
                taken[name].append(sum(clock))
    total_ms = 1e3 * statistics.median(whole[1:])
    print(f"one clip: {total_ms:.1f} ms of CPU (median of {clips})")
    medians = {name: 1e3 * statistics.median(values[1:]) for name, values in taken.items()}
    for name, took_ms in {**medians, "the rest": total_ms - sum(medians.values())}.items():
        print(f"  {name:<30} {took_ms:8.2f} ms  {100 * took_ms / total_ms:5.1f} %", flush=True)


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[list[float]]:
    """What every call of a function takes, meanwhile; of one that gives its results one by one, what each takes."""
    taken: list[float] = []
    plain = getattr(owner, name)

    def timed(*words: Any, **options: Any) -> Any:
        with _clock(taken):
            found = plain(*words, **options)
        return one_by_one(found) if isinstance(found, Iterator) else found

    def one_by_one(results: Iterator[Any]) -> Iterator[Any]:
        while True:
            with _clock(taken):
                found = next(results, None)
            if found is None:
                return
            yield found

    with mock.patch.object(owner, name, timed):
        yield taken


@contextmanager
def _clock(taken: list[float]) -> Iterator[None]:
    began = time.thread_time()
    yield
    taken.append(time.thread_time() - began)
