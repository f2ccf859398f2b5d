"""How good plans are: memory and samples/s as predicted, against what a run in a process of its own takes.

    python benchmarks/plan.py [--quick] [--keep DIR]

Loading: `plan_loading` in one process, then the loader that obeys it in another, with a consumer that keeps the loader
waiting for memory (all slots fill up), and one that takes batches at once for the rate. Memory is anonymous memory and
views above what the process held before. Converting: the peak that the report predicts, against the peak of
the command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import load_data as data
from measure import Claim, finish

_PLAN = """
import json, sys
from penstock.load.planning import plan_loading
path, batch, memory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
plan = plan_loading(path, batch, memory=memory, seconds=float(sys.argv[4]))
wanted = next((each for each in plan.options if each.view == sys.argv[5]), plan.chosen)
options = {**plan.loader_options, "view": wanted.view}
print(json.dumps({"peak": wanted.peak_bytes, "rate": wanted.samples_per_s, "options": options}))
"""
_RUN = """
import json, sys, time
import penstock
from penstock.load.bench_memory import HeldMeter
from penstock.load.bench_plan import window_for
path, options, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
options["image_size"] = tuple(options["image_size"])
with penstock.open(path) as store, HeldMeter() as meter:
    window = window_for("auto", store)
    with penstock.Loader(store, window, output="numpy", drop_last=True, **options) as loader:
        for batch in loader:  # fills the view
            pass
        count, began = 0, None
        while began is None or time.perf_counter() - began < seconds:
            for batch in loader:
                began = began or time.perf_counter()
                count += len(batch["index"])
                if time.perf_counter() - began >= seconds:
                    break
        rate = (count - options["batch_size"]) / (time.perf_counter() - began)
        batches = iter(loader)
        next(batches)
        until = time.perf_counter() + 30
        while not loader.is_full and time.perf_counter() < until:
            time.sleep(0.05)
        next(batches)
        views = sum(view.n_bytes for view in loader._views if view.path is None)
print(json.dumps({"peak": meter.peak_bytes - meter.start_bytes + views, "rate": rate}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, under two minutes")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        finish(_claims(directory, quick=args.quick))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(directory: Path, *, quick: bool) -> list[Claim]:
    replay = data.replay_file(directory, 300 if quick else 1200)
    jpegs = data.data_set(directory, 10.0 if quick else 40.0, None)
    av1 = data.data_set(directory, 6.0 if quick else 12.0, "av1")
    budgets = ("512MiB", "2GiB")
    memory_errors, rate_errors = [], []
    print(f"\n{'workload':<44}{'budget':>8}{'predicted':>12}{'measured':>12}{'':>7}{'predicted/s':>13}{'measured/s':>12}")
    for name, path, view in (
        ("raw HDF5, no view", replay, "off"),
        ("raw HDF5, view in memory", replay, "ram"),
        ("JPEG LeRobot, no view", jpegs, "off"),
        ("JPEG LeRobot, view in memory", jpegs, "ram"),
        ("AV1 LeRobot, no view", av1, "off"),
        ("AV1 LeRobot, view in memory", av1, "ram"),
    ):
        for budget in budgets:
            planned, found = _loaded(path, budget, view, 1.0 if quick else 2.0)
            memory_errors.append(planned["peak"] / found["peak"] - 1)
            rate_errors.append(planned["rate"] / found["rate"] - 1)
            print(
                f"{name:<44}{budget:>8}{planned['peak'] / 2**20:>8,.0f} MiB{found['peak'] / 2**20:>8,.0f} MiB"
                f"{memory_errors[-1]:>+7.0%}{planned['rate']:>13,.0f}{found['rate']:>12,.0f}{rate_errors[-1]:>+7.0%}",
                flush=True,
            )
    source = directory / ("run-10s.bag" if quick else "run-40s.bag")
    if not source.exists():
        data.write_recording(source, data.Script(seconds=10.0 if quick else 40.0, quality=95))
    for video in ("copy", "h264"):
        for budget in budgets:
            memory_errors.append(_converted(source, directory / "out", video, budget))
    memory, rates = [abs(each) for each in memory_errors], [abs(each) for each in rate_errors]
    return [
        Claim("peak memory, predicted against measured: largest error", max(memory), "<= 0.15"),
        Claim("peak memory, predicted against measured: median error", statistics.median(memory), "<= 0.1"),
        Claim("samples/s, predicted against measured: largest error", max(rates), "<= 0.2"),
        Claim("samples/s, predicted against measured: median error", statistics.median(rates), "<= 0.1"),
    ]


def _loaded(path: Path, budget: str, view: str, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    planned = _child(_PLAN, str(path), "32", budget, str(seconds), view)
    return planned, _child(_RUN, str(path), json.dumps(planned["options"]), str(3 * seconds))


def _converted(source: Path, out: Path, video: str, budget: str) -> float:
    words = ["convert", str(source), str(out), f"video={video}", "--memory", budget, "--overwrite", "--json"]
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    predicted, peak = report["predicted_peak_bytes"], report["peak_rss_bytes"]
    error = predicted / peak - 1
    name = f"convert, video={video}"
    print(f"{name:<44}{budget:>8}{predicted / 2**20:>8,.0f} MiB{peak / 2**20:>8,.0f} MiB{error:>+7.0%}")
    return float(error)


def _child(code: str, *words: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
