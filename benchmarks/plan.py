"""How good plans are: memory and samples/s as predicted, against what a run in a process of its own takes.

    python benchmarks/plan.py [--quick] [--keep DIR]

Loading: `plan_loading` in one process, then the loader (or VQA data set) that it describes in another. A consumer that
takes batches at once gives the rate, one that lets all slots fill up the memory: anonymous memory and views above what
the process held before. Plans and runs take turns, and the medians of the turns count: other work on the machine hits
both alike. Converting: the peak that the report predicts, against the peak of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import load_data as data
import spike_data
from measure import Claim, finish

BUDGETS = ("512MiB", "2GiB")
MIB = 1 << 20
_PLAN = """
import json, sys
from penstock._src.load.bench.planning import plan_loading
path, batch, memory, seconds, window = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5]
plan = plan_loading(path, batch, memory=memory, seconds=seconds, window=window)
found = {}
for each in plan.options:
    name = each.label.partition(",")[0] or each.view
    options = {**plan.loader_options, "view": each.view}
    found[name] = {"peak": each.peak_bytes, "rate": each.samples_per_s, "options": options, "code": each.code}
print(json.dumps(found))
"""
_LOAD = """
import json, sys, time
import penstock
from penstock._src.load.bench.memory import HeldMeter
from penstock._src.load.bench.points import window_for
path, planned, seconds, window = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
options = planned["options"]
options["image_size"] = tuple(options["image_size"])

def batches(loader):
    while True:
        yield from loader

with penstock.open(path) as store, HeldMeter() as meter:
    loader = penstock.Loader(store, window_for(window, store), output="numpy", drop_last=True, **options)
    with loader:
        views = {name: view for source in loader._sources for name, view in source.views.items()}
        for _ in loader if views else ():  # fills the view
            pass
        count, began = -2 * loader.memory_split.slots, 0.0
        for batch in batches(loader):
            count += 1
            if count == 0:
                began = time.perf_counter()
            elif count >= 4 and time.perf_counter() - began >= seconds:
                break
            del batch
        rate = count * options["batch_size"] / (time.perf_counter() - began)
        taken = iter(loader)
        next(taken)
        until = time.perf_counter() + 30
        while not loader.is_full and time.perf_counter() < until:
            time.sleep(0.02)
        next(taken)
        held = sum(view.n_bytes for view in views.values() if view.path is None)
print(json.dumps({"peak": meter.peak_bytes - meter.start_bytes + held, "rate": rate}))
"""
_VQA = """
import json, sys, time
import numpy as np
import penstock
from penstock._src.load.bench.memory import HeldMeter
from penstock._src.load.vqa.samples import collate
path, planned, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
size = planned["options"]["batch_size"]

def batches(dataset):
    random = np.random.default_rng(1)
    while True:
        if isinstance(dataset, penstock.StreamingVQADataset):
            yield from dataset
        else:
            yield collate([dataset[row] for row in random.integers(0, len(dataset), size).tolist()])

with HeldMeter() as meter, eval(planned["code"], {"penstock": penstock, "tokenizer": None}) as dataset:
    cache = dataset.images.cache
    for row in range(dataset.store.rows) if cache is not None else ():
        dataset[row]
    count, began = -4, 0.0
    for batch in batches(dataset):
        count += 1
        if count == 0:
            began = time.perf_counter()
        elif count >= 4 and time.perf_counter() - began >= seconds:
            break
    rate = count * size / (time.perf_counter() - began)
    held = 0 if cache is None else cache.filled_bytes
print(json.dumps({"peak": meter.peak_bytes - meter.start_bytes + held, "rate": rate}))
"""


@dataclass(frozen=True)
class Work:
    """Data, and the ways in which they are loaded: a view, or a VQA data set by its name."""

    name: str
    path: Path
    ways: tuple[str, ...]
    batch: int = 32
    window: str = "auto"


@dataclass(frozen=True)
class Line:
    """A line of the table; without rates for a conversion."""

    name: str
    budget: str
    predicted_bytes: float
    measured_bytes: float
    predicted_rate: float = 0.0
    measured_rate: float = 0.0
    rate_ratio: float = 1.0

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def text(self) -> str:
        sizes = f"{self.predicted_bytes / MIB:,.0f} MiB | {self.measured_bytes / MIB:,.0f} MiB"
        rates = "– | – | –"
        if self.predicted_rate:
            rates = f"{self.predicted_rate:,.0f} | {self.measured_rate:,.0f} | {self.rate_ratio - 1:+.0%}"
        return f"| {self.name} | {self.budget} | {sizes} | {self.memory_error:+.0%} | {rates} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, one turn: some minutes")
    parser.add_argument("--only", metavar="TEXT", help="of the workloads those with this in their name")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["PENSTOCK_CACHE"] = str(directory / "cache")
    try:
        finish(_claims(directory, args.only or "", quick=args.quick))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(directory: Path, only: str, *, quick: bool) -> list[Claim]:
    works = _works(directory, quick=quick)
    print(f"\n{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}\n")
    print("| workload | budget | predicted | measured | error | predicted samples/s | measured | error |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    lines: list[Line] = []
    for work in works:
        if only in work.name:
            for budget in BUDGETS:
                lines += _loaded(work, budget, turns=1 if quick else 3, seconds=1.0)
    if only in "convert":
        lines += _converted(directory, 10.0 if quick else 40.0)
    memory = [abs(each.memory_error) for each in lines]
    rates = [abs(each.rate_ratio - 1) for each in lines if each.predicted_rate] or [0.0]
    names = {each.name for each in lines}
    return [
        Claim("workloads, each under two budgets", len(names), ">= 8"),
        Claim("peak memory, predicted against measured: largest error", max(memory), "<= 0.15"),
        Claim("peak memory, predicted against measured: median error", statistics.median(memory), "<= 0.1"),
        Claim("samples/s, predicted against measured: largest error", max(rates), "<= 0.2"),
        Claim("samples/s, predicted against measured: median error", statistics.median(rates), "<= 0.1"),
    ]


def _works(directory: Path, *, quick: bool) -> list[Work]:
    from penstock._src.demo.vqa import ShapeScript, write_vqa_set

    clips, vqa = directory / "clips", directory / "vqa"
    if not clips.exists():
        spike_data.write_scene(clips, spike_data.Scene(sequences=2, rows=20 if quick else 60, height=240, width=320))
    if not vqa.exists():
        write_vqa_set(vqa, ShapeScript(scenes=300 if quick else 1500, height=240, width=320))
    return [
        Work("raw HDF5", data.replay_file(directory, 300 if quick else 1200), ("off", "ram")),
        Work("JPEG LeRobot", data.data_set(directory, 10.0 if quick else 40.0, None), ("off", "ram")),
        Work("AV1 LeRobot", data.data_set(directory, 6.0 if quick else 12.0, "av1"), ("off", "ram")),
        Work("spike clips of 5", clips / "train", ("off", "ram"), batch=4, window="clip:5"),
        Work("VQA", vqa / "train.jsonl", ("ram", "LazyLoadVQADataset", "StreamingVQADataset")),
    ]


def _loaded(work: Work, budget: str, turns: int, seconds: float) -> list[Line]:
    """Every way of a workload: medians over the turns, of ratios for the rate."""
    seen: dict[str, list[tuple[Any, Any]]] = {}
    for _ in range(turns):
        planned = _child(_PLAN, str(work.path), str(work.batch), budget, str(seconds), work.window)
        for way in work.ways:
            code, words = (_VQA, ()) if planned[way]["code"] else (_LOAD, (work.window,))
            measured = _child(code, str(work.path), json.dumps(planned[way]), str(2 * seconds), *words)
            seen.setdefault(way, []).append((planned[way], measured))
    lines = []
    for way, pairs in seen.items():
        named = {"off": "no view", "ram": "view in memory"}.get(way, way)
        peaks = [statistics.median(each[side]["peak"] for each in pairs) for side in (0, 1)]
        rates = [statistics.median(each[side]["rate"] for each in pairs) for side in (0, 1)]
        ratio = statistics.median(plan["rate"] / found["rate"] for plan, found in pairs)
        lines.append(Line(f"{work.name}, {named}", budget, *peaks, *rates, ratio))
        print(lines[-1].text, flush=True)
    return lines


def _converted(directory: Path, seconds: float) -> list[Line]:
    source, lines = directory / f"convert-{seconds:.0f}s.bag", []
    if not source.exists():
        data.write_recording(source, data.Script(seconds=seconds, quality=95))
    for video in ("copy", "h264", "av1"):
        for budget in BUDGETS:
            out = directory / "out"
            words = ["convert", str(source), str(out), f"video={video}", "--memory", budget, "--overwrite", "--json"]
            command = [sys.executable, "-m", "penstock", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            report = json.loads(done.stdout)
            sizes = report["predicted_peak_bytes"], report["peak_rss_bytes"]
            lines.append(Line(f"convert, video={video}", budget, *sizes))
            print(lines[-1].text, flush=True)
    return lines


def _child(code: str, *words: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
