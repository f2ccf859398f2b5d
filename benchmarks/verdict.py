"""Is the verdict right? Three built situations, each judged, and the change that is recommended tried.

    python benchmarks/verdict.py [--quick] [--only decode compute storage] [--keep DIR] [--all-fixes]

decode: JPEG cameras decoded whole, a light step. compute: a real matrix-multiplying step, a loader that keeps up.
storage: reads throttled to some MB/s for all threads together, by sleeping outside Python's lock. Each has to be
classified right, by the right stage, and the step time predicted for the recommended change has to be within 15 % of
what is measured when it is made (the median of three windows). With --all-fixes every change that can be tried is.
The step without the change is measured again before and after a trial: where it differs by more than a tenth from
that of the run, somebody else used the machine meanwhile, and the situation is built anew (four times at most).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import load_data as data
import numpy as np
from measure import Claim, finish

import penstock
from penstock import profile
from penstock._src.profile.verdict.trial import FixTrial, Replay, try_fix
from penstock._src.profile.verdict.verdict import Verdict, verdict
from penstock._src.stores.store import ImageArray, ImageSource, Scratch, Store

PARTS = ("decode", "compute", "storage")
ATTEMPTS = 4
DISTURBED = 0.1
Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Amounts:
    set_seconds: float
    run_s: float
    window_s: float


FULL = Amounts(30.0, 8.0, 2.0)
QUICK = Amounts(8.0, 3.5, 0.8)


@dataclass(frozen=True)
class Situation:
    """A loader and a step, what binds them, and by which stages that may be told."""

    name: str
    loader: Callable[[], penstock.Loader]
    step: Step
    bound: str
    stages: tuple[str, ...]
    gives_step: bool = False
    """Whether `verdict` gets the step itself, not only its length."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data and shorter windows, under a minute")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="these situations alone")
    parser.add_argument("--all-fixes", action="store_true", help="try every change, not only the recommended one")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    amounts = QUICK if args.quick else FULL
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["PENSTOCK_CACHE"] = str(directory / "cache")
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {busy:.1f}" + (": not quiet enough for figures" if busy > 0.7 else ""))
    claims: list[Claim] = []
    try:
        path = data.data_set(directory, amounts.set_seconds, None)
        data.read_through([path])
        for name in args.only:
            made = {"decode": decode_bound, "compute": compute_bound, "storage": storage_bound}[name](path)
            claims += judge(made, amounts, args.all_fixes)
    finally:
        if not args.keep:
            shutil.rmtree(directory)
    finish(claims)


def judge(situation: Situation, amounts: Amounts, all_fixes: bool) -> list[Claim]:
    """Run it, judge it, try what is recommended; anew where the machine was another in the trial than in the run."""
    for attempt in range(1, ATTEMPTS + 1):
        print(f"\n== {situation.name}" + (f", attempt {attempt}" if attempt > 1 else ""))
        with situation.loader() as loader:
            snapshot = recorded(loader, situation.step, amounts.run_s)
            step = situation.step if situation.gives_step else None
            found = verdict(snapshot, check=True, loader=loader, step=step, seconds=amounts.window_s)
            print(found)
            others = tried(found, loader, situation, amounts) if all_fixes else []
        # Told by the step *without* the change, which knows nothing of the prediction.
        beside = found.trial.control_ms if found.trial is not None else None
        if beside is None or abs(beside / found.step_ms - 1) <= DISTURBED:
            break
        print(f"disturbed: without the change the step took {found.step_ms:.1f} ms in the run, {beside:.1f} ms now")
    for trial in others:
        print(f"also {trial.fix.name}: {trial.predicted_ms:.1f} ms predicted, {trial.measured_ms:.1f} ms measured")
    right = found.bound == situation.bound and found.stage in situation.stages
    error = abs(found.trial.error) if found.trial is not None else 9.0
    fix = found.best.name if found.best is not None else "nothing"
    claims = [
        Claim(f"{situation.name}: classified right (1: {found.bound}-bound by {found.stage})", float(right), ">= 1"),
        Claim(f"{situation.name}: {fix}, predicted against measured step, error", error, "<= 0.15"),
    ]
    for trial in others:
        claims.append(Claim(f"{situation.name}: {trial.fix.name}, error", abs(trial.error), "<= 0.15"))
    return claims


def tried(found: Verdict, loader: penstock.Loader, situation: Situation, amounts: Amounts) -> list[FixTrial]:
    """Every other change that the loader itself can make."""
    step = situation.step if situation.gives_step else Replay(found.now.compute_ms)
    results = []
    profile.disable()
    for fix in found.fixes:
        if fix is not found.best and fix.change and fix.predicted_step_ms is not None:
            results.append(try_fix(loader, fix, step, seconds=amounts.window_s, batch_ms=found.now.batch_ms))
    profile.enable()
    return results


def recorded(loader: penstock.Loader, step: Step, seconds: float) -> profile.Snapshot:
    """A training loop as anybody has it, for some seconds."""
    profile.enable()
    profile.reset()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for batch in loader:
            step(batch)
            if time.perf_counter() >= end:
                break
    return profile.snapshot()


# The situations


def decode_bound(path: Path) -> Situation:
    def loader() -> penstock.Loader:
        return penstock.Loader(penstock.open(path), batch_size=8, exact=True, view="off", output="numpy", threads=2)

    return Situation("decode-bound", loader, Replay(8.0), "input", ("03b_image_decode",))


def compute_bound(path: Path) -> Situation:
    def loader() -> penstock.Loader:
        store = penstock.open(path)
        camera = next(name for name, column in store.columns.items() if column.is_image)
        window = penstock.Window(columns=[camera, "action"])
        return penstock.Loader(store, window, batch_size=8, view="off", output="numpy", threads=1)

    return Situation("compute-bound", loader, matmul_step(), "compute", ("20_train_forward_pass", "21_backward"), True)


def storage_bound(path: Path) -> Situation:
    def loader() -> penstock.Loader:
        store = Throttled(penstock.open(path), bytes_per_s=20e6)
        return penstock.Loader(store, batch_size=8, view="off", output="numpy", threads=2)

    return Situation("storage-bound", loader, Replay(10.0), "input", ("03c_fetch_bytes",))


def matmul_step() -> Step:
    """A part that grows with the batch, and one that does not (as an optimizer has): torch on one thread, or numpy."""
    try:
        import torch

        torch.set_num_threads(1)
        weights, first = torch.randn(768, 768), torch.randn(1, 768)

        def multiply(rows: int) -> None:
            values = first.expand(rows, 768).contiguous()
            for _ in range(6):
                values = torch.tanh(values @ weights)

    except ImportError:
        values = np.random.default_rng(0).standard_normal((768, 768), np.float32)

        def multiply(rows: int) -> None:
            for _ in range(6):
                np.tanh(np.ones((rows, 768), np.float32) @ values)

    def step(batch: Any) -> None:
        rows = len(batch["index"])
        with profile.span("20_train_forward_pass"):
            multiply(16 * rows)
        with profile.span("22_optimizer_step"):
            multiply(128)

    return step


class Throttled(Store):
    """A store whose images come at so many bytes per second, for all threads together."""

    def __init__(self, store: Store, bytes_per_s: float) -> None:
        self._store, self._bytes_per_s = store, bytes_per_s
        self.path, self.kind, self.fps = store.path, f"throttled {store.kind}", store.fps
        self.columns, self.episode_starts, self.roles = store.columns, store.episode_starts, store.roles
        self.ends_terminal = store.ends_terminal
        self.line = _Line(bytes_per_s)

    def images(self, name: str) -> ImageSource:
        return _ThrottledSource(self._store.images(name), self.line)

    def numbers(self, name: str, rows: Any) -> Any:
        return self._store.numbers(name, rows)

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
        return self._store.number_blocks(names, block_bytes)

    def texts(self, name: str, rows: Any) -> list[str]:
        return self._store.texts(name, rows)

    def fingerprint(self, name: str) -> str:
        return self._store.fingerprint(name)

    def close(self) -> None:
        self._store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Throttled, (self._store, self._bytes_per_s)


class _Line:
    """One wire that all reads share: each waits until those before it and its own bytes are through."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def send(self, n_bytes: int) -> None:
        with self._lock:
            now = time.perf_counter()
            self._free_at = max(self._free_at, now) + n_bytes / self._rate
            wait = self._free_at - now
        time.sleep(wait)


class _ThrottledSource(ImageSource):
    def __init__(self, source: ImageSource, line: _Line) -> None:
        self._source, self._line = source, line
        self.scratch_bytes = source.scratch_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for image in self._source.read(rows, scratch):
            self._line.send(image.nbytes)
            yield image

    def keys(self, rows: Any) -> Any:
        return self._source.keys(rows)

    def runs(self, rows: Any) -> Any:
        return self._source.runs(rows)


if __name__ == "__main__":
    main()
