"""Runs made by hand for the verdict: a loader's stages, a step, what was measured on its rows; in round numbers."""

from __future__ import annotations

from typing import Any

from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.schema import decode
from penstock._src.profile.stats import LoaderInfo, Snapshot, SpanStats, StepPoint, StepStats
from tests.profile.made import MAIN, MS, START_NS, stats

STEPS = 100
IMAGES = 16  # of a batch


def run(
    step_ms: float, wait_ms: float, stages_ms: dict[str, float], *, computing_ms: dict[str, float] | None = None,
    hits: int = 0, threads: int = 2, loader: dict[str, Any] | None = None, steps: int = STEPS,
) -> Snapshot:  # fmt: skip
    """`stages_ms`: self time of each loader stage per batch, over all threads."""
    spans: list[SpanStats] = [
        stats(name, [int(ms * MS * steps / threads)], process=MAIN, thread=f"penstock-load-{number}")
        for name, ms in stages_ms.items()
        for number in range(threads)
    ]
    spans += [stats(name, [int(ms * MS)] * steps) for name, ms in (computing_ms or {}).items()]
    step, wait = int(step_ms * MS), int(wait_ms * MS)
    points = tuple(StepPoint(n, START_NS + n * step, step, wait) for n in range(steps))
    return Snapshot(
        spans=tuple(spans),
        counters={"view_hits": hits * steps, "images_decoded": (IMAGES - hits) * steps},
        steps=StepStats(count=steps, total_ns=steps * step, wait_total_ns=steps * wait, series=points),
        machine={"cores": 2},
        loaders=(decode(LoaderInfo, loader_told(threads=threads) if loader is None else loader),),
        process=MAIN,
    )


def image(column: str = "cam", **changed: Any) -> dict[str, Any]:
    """One camera of a loader's description: JPEG, 480×640, asked for at 224×224."""
    return {
        "column": column, "rows": 1000, "view_row_bytes": 150_528, "on_device": False, "is_jpeg": True,
        "can_scale": False, "view": None, **changed,
    }  # fmt: skip


def loader_told(**changed: Any) -> dict[str, Any]:
    """What a loader says of itself, as it stands in a file."""
    told: dict[str, Any] = {
        "kind": "penstock.Loader", "options": {"shard": None}, "batch_size": 16, "threads": 2, "cores": 2,
        "batches_handed": STEPS, "made_per_batch": float(IMAGES), "hit_share": 0.0, "images": [image()],
        "images_per_batch": float(IMAGES), "stored_bytes_per_batch": IMAGES * 90_000.0, "device": "cpu",
        "cuda": False, "memory_bytes": 2 << 30, "memory_left_bytes": 1 << 30,
        "memory_available_bytes": 16 << 30, "cache_free_bytes": 100 << 30,
    }  # fmt: skip
    return {**told, **changed}


def way(
    name: str, ms: float, cpu_ms: float | None = None, *, stored_bytes: float = 0.0, **by_threads: float
) -> AccessPath:
    """A measured way; `t4=2.0` is what four threads at once take, others take `ms`."""
    counted = {1: ms, 2: ms, 4: 2 * ms} | {int(word[1:]): value for word, value in by_threads.items()}
    return AccessPath(name, 48, counted, ms if cpu_ms is None else cpu_ms, stored_bytes)


class Measured:
    """A subject whose calibration is known beforehand."""

    def __init__(self, told: dict[str, Any], *ways: AccessPath) -> None:
        self.told, self.ways = told, ways
        self.asked: list[tuple[tuple[str, ...], tuple[int, ...]]] = []

    def describe(self) -> LoaderInfo:
        return decode(LoaderInfo, self.told)

    def calibrate(self, ways: Any, threads: Any) -> dict[str, AccessPath]:
        self.asked.append((tuple(ways), tuple(threads)))
        return {each.name: each for each in self.ways}
