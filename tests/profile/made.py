"""Snapshots made by hand: a training run with loader threads, worker processes and a GPU, of any length."""

from __future__ import annotations

import random
from collections.abc import Sequence

from penstock._src.profile.record.histogram import Histogram
from penstock._src.profile.stats import (
    EpochStats,
    GaugeStats,
    LoaderInfo,
    MemoryPoint,
    Snapshot,
    SpanEvent,
    SpanStats,
    StepPoint,
    StepStats,
    ThreadEvents,
)

MS = 1_000_000
MAIN, WORKER = 4100, 4107
START_NS = 5_000_000_000_000


def stats(
    name: str,
    durations_ns: list[int],
    *,
    self_ns: int | None = None,
    path: tuple[str, ...] = (),
    process: int = MAIN,
    thread: str = "MainThread",
) -> SpanStats:
    """A span's statistics from the durations of its calls."""
    histogram = Histogram()
    for each in durations_ns:
        histogram.add(each)
    own_ns = histogram.total_ns if self_ns is None else self_ns
    known = vars(histogram.durations())
    return SpanStats(name=name, **known, self_ns=own_ns, path=path, process=process, thread=thread)


def steps_of(points: Sequence[StepPoint]) -> StepStats:
    """The statistics of steps that are all in the series."""
    histogram = Histogram()
    for each in points:
        histogram.add(each.duration_ns)
    wait_ns = sum(point.wait_ns for point in points)
    return StepStats(**vars(histogram.durations()), wait_total_ns=wait_ns, series=tuple(points))


def empty_run() -> Snapshot:
    return Snapshot(process=MAIN, start_ns=START_NS, taken_ns=START_NS + 1, taken_at=1_760_000_000.0)


def training_run(
    steps: int = 120, *, threads: int = 3, seed: int = 0, extra_name: str | None = None, gpu_track: bool = True
) -> Snapshot:
    """A run whose images are decoded too slowly: about a third of each step is data wait."""
    chance = random.Random(seed)
    main, points, clock = _main_thread(steps, chance)
    crew = [_loader_thread(main_end_ns=clock, chance=chance) for _ in range(threads)]
    worker = _loader_thread(main_end_ns=clock, chance=chance)
    lanes = [ThreadEvents(MAIN, "train", "MainThread", tuple(main))]
    lanes += [ThreadEvents(MAIN, "train", f"loader-{n}", tuple(each)) for n, each in enumerate(crew)]
    lanes.append(ThreadEvents(WORKER, "DataLoader worker 0", "MainThread", tuple(worker)))
    if gpu_track:
        lanes.append(ThreadEvents(MAIN, "train", "GPU", tuple(_gpu_events(main))))
    if extra_name is not None:
        lanes[0] = ThreadEvents(
            MAIN, extra_name, "MainThread", (*main, SpanEvent(extra_name, points[-1].start_ns, 3 * MS, 0))
        )
    spans = [each for lane in lanes if lane.thread != "GPU" for each in _spans_of(lane)]
    half = len(points) // 2
    return Snapshot(
        spans=tuple(spans),
        counters={"bytes_read": 93_000 * steps * 16, "images_decoded": steps * 16},
        gauges={"queue_depth": GaugeStats(1.0, 1.4, 0.0, 3.0, steps)},
        steps=steps_of(points),
        epochs=(_epoch(0, points[:half]), _epoch(1, points[half:])) if half else (),
        memory=tuple(_memory(clock, chance)),
        gpu=(stats("20_train_forward_pass", [11 * MS] * steps), stats("21_backward", [19 * MS] * steps)),
        machine={"cores": 2, "memory_bytes": 4 << 30},
        loaders=(LoaderInfo(kind="Loader", threads=threads, batch_size=4),),
        events=tuple(lanes),
        lost={"events": 0},
        process=MAIN,
        start_ns=START_NS,
        taken_ns=clock,
        taken_at=1_760_000_000.0,
    )  # fmt: skip


def _main_thread(steps: int, chance: random.Random) -> tuple[list[SpanEvent], list[StepPoint], int]:
    events, points, clock = [], [], START_NS
    for number in range(steps):
        begin = clock
        wait = int(MS * (chance.uniform(14, 24) if number else 160))
        parts = [("data_wait", wait, 0), ("20_train_forward_pass", int(MS * chance.uniform(11, 13)), 0)]
        parts += [("21_backward", int(MS * chance.uniform(18, 21)), 0), ("22_optimizer_step", int(MS * 3.1), 0)]
        for name, duration, depth in parts:
            if name == "20_train_forward_pass":
                events.append(SpanEvent("to_device", clock + 50_000, 2 * MS, 1))
            events.append(SpanEvent(name, clock, duration, depth))
            clock += duration + 40_000
        points.append(StepPoint(number, begin, clock - begin, wait))
    return events, points, clock


def _loader_thread(main_end_ns: int, chance: random.Random) -> list[SpanEvent]:
    events, clock = [], START_NS
    while clock < main_end_ns:
        begin = clock
        for _ in range(4):
            decode = int(MS * chance.uniform(2.8, 4.4))
            events.append(SpanEvent("03b_image_decode", clock + 400_000, decode, 2))
            events.append(SpanEvent("03a_read_one_camera", clock, decode + 500_000, 1))
            clock += decode + 510_000
        events.append(SpanEvent("03_read_images_total", begin, clock - begin, 0))
        events.append(SpanEvent("05_to_tensor_normalize", clock, 700_000, 0))
        clock += 800_000
    return events


def _gpu_events(main: list[SpanEvent]) -> list[SpanEvent]:
    names = {"20_train_forward_pass": 11 * MS, "21_backward": 19 * MS}
    return [SpanEvent(each.name, each.start_ns + MS, names[each.name], 0) for each in main if each.name in names]


def _spans_of(lane: ThreadEvents) -> list[SpanStats]:
    children = {"03_read_images_total": "03a_read_one_camera", "03a_read_one_camera": "03b_image_decode"}
    times: dict[str, list[int]] = {}
    for event in lane.events:
        times.setdefault(event.name, []).append(event.duration_ns)
    return [
        stats(
            name,
            durations,
            self_ns=sum(durations) - sum(times.get(children.get(name, ""), ())),
            process=lane.process,
            thread=lane.thread,
        )
        for name, durations in times.items()
    ]


def _epoch(number: int, points: list[StepPoint]) -> EpochStats:
    duration = sum(point.duration_ns for point in points)
    return EpochStats(
        number, points[0].start_ns, duration, len(points), duration, sum(point.wait_ns for point in points)
    )


def _memory(end_ns: int, chance: random.Random) -> list[MemoryPoint]:
    points, held = [], 600 << 20
    for number in range(60):
        held = min(held + int(chance.uniform(0, 40) * 2**20), 1700 << 20)
        at = START_NS + (end_ns - START_NS) * number // 60
        points.append(MemoryPoint(at, held, int(held * 1.3)))
    return points
