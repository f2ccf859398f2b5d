"""Is the budget kept? Budget, prediction and measured peak of conversions: long and short, wide and narrow.

    python benchmarks/budget.py [--quick] [--only TEXT] [--keep DIR]

Every conversion runs with the smallest budget that is not refused and with some larger ones, in a process of its own.
Peak: the larger of what the report says (child processes included) and of the kernel's high-water mark.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, finish, run

from penstock._src.demo.recording import Script, write_recording

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One conversion: what is converted, with which options, and budgets besides the smallest."""

    name: str
    sources: tuple[Path, ...]
    options: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What one conversion took, in MiB."""

    case: str
    budget: float
    predicted: float
    peak: float
    rows: int
    smallest: bool
    says_so: bool  # a note where the peak is above the budget

    @property
    def is_kept(self) -> bool:
        return self.peak <= self.budget

    @property
    def too_much(self) -> float:
        """How far the prediction is above the peak."""
        return self.predicted - self.peak

    def line(self) -> str:
        off = 100 * self.too_much / self.peak
        kept = "kept" if self.is_kept else "OVER"
        smallest = "  smallest budget" if self.smallest else ""
        return (
            f"{self.case:<44} {self.rows:>7,} {self.predicted:>9.1f} {self.budget:>8.0f} {self.peak:>7.1f}  {kept}"
            f"  {off:+4.0f} %{smallest}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter recordings, under a minute")
    parser.add_argument("--only", metavar="TEXT", default="", help="conversions whose name contains the text")
    parser.add_argument("--keep", metavar="DIR", help="make the recordings here and keep them")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-budget-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        cases = [case for case in _cases(directory, quick=args.quick) if args.only in case.name]
        finish(_claims(_measure_all(cases, directory / "out")))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _measure_all(cases: Sequence[Case], out: Path) -> list[Measured]:
    print(f"{'conversion':<44} {'rows':>7} {'predicted':>9} {'budget':>8} {'peak':>7}  MiB")
    found: list[Measured] = []
    for case in cases:
        smallest = _smallest_budget(case, out)
        for budget in dict.fromkeys((smallest, *case.budgets)):
            measured = _measure(case, out, budget, smallest=budget == smallest)
            if measured is not None:
                print(measured.line(), flush=True)
                found.append(measured)
    return found


def _claims(found: Sequence[Measured]) -> list[Claim]:
    off = [abs(each.too_much) / each.peak for each in found if each.smallest]
    return [
        Claim("conversions that end above their budget", sum(not each.is_kept for each in found), "<= 0"),
        Claim(
            "conversions above their budget without a note",
            sum(not each.is_kept and not each.says_so for each in found),
            "<= 0",
        ),
        Claim("peak above the prediction, the largest (MiB)", max(-each.too_much for each in found), "<= 4"),
        Claim("prediction off the peak at the smallest budget, the largest (%)", 100 * max(off), "<= 20"),
        Claim("prediction off the peak at the smallest budget, the median (%)", 100 * float(np.median(off)), "<= 10"),
    ]


def _cases(directory: Path, *, quick: bool) -> list[Case]:
    long_s = 300 if quick else 1200
    long = _cameras(directory, long_s, 64, 48)
    short = _cameras(directory, 20, 64, 48)
    large = _cameras(directory, 20, 640, 480)
    packed = _cameras(directory, 20, 640, 480, compression="lz4")
    wide = _wide(directory, 300_000, 12)
    scan = _wide(directory, 1081, 300 if quick else 1500)
    several = tuple(_cameras(directory, 20, 64, 48, seed=seed) for seed in range(1, 5))
    wide_feature = ("features[observation.wide]=/wide", "timeline=/wide")
    cases = [
        Case(f"{long_s} s, 64×48, chunk_size=0", (long,), ("rosbag.chunk_size=0",), ("150MiB", "1GiB")),
        Case(f"{long_s} s, 64×48, chunk_size=auto", (long,), ("rosbag.chunk_size=auto",), ("132MiB", "1GiB")),
        Case(f"{long_s} s, 64×48, chunk_size=1000", (long,), (), ("125MiB", "1GiB")),
        Case("20 s, 64×48", (short,), (), ("256MiB",)),
        Case("20 s, 64×48, chunk_size=0", (short,), ("rosbag.chunk_size=0",)),
        Case("20 s, 640×480", (large,), (), ("256MiB",)),
        Case("20 s, 640×480, lz4", (packed,), (), ("256MiB",)),
        Case("20 s, 640×480, video=images", (large,), ("video=images",), ("512MiB",)),
        Case("20 s, 640×480, video=images, auto", (large,), ("video=images", "rosbag.chunk_size=auto"), ("160MiB",)),
        Case("20 s, 640×480, video=h264", (large,), ("video=h264",), ("512MiB",)),
        Case("four recordings of 20 s, 64×48", several, (), ("256MiB",)),
        Case("300,000 numbers in a row", (wide,), wide_feature, ("256MiB",)),
        Case("300,000 numbers in a row, auto", (wide,), (*wide_feature, "rosbag.chunk_size=auto"), ("160MiB",)),
        Case("1,081 numbers in a row", (scan,), wide_feature, ("256MiB",)),
        Case("1,081 numbers in a row, auto", (scan,), (*wide_feature, "rosbag.chunk_size=auto"), ("160MiB",)),
        Case("1,081 numbers in a row, chunk_size=0", (scan,), (*wide_feature, "rosbag.chunk_size=0"), ("512MiB",)),
        Case("HDF5, 20,000 rows of 200 numbers", (_hdf5(directory, 20_000, 200),), ("fps=50",), ("256MiB",)),
        Case(
            "HDF5, 20,000 rows of 200 numbers, 0",
            (_hdf5(directory, 20_000, 200),),
            ("fps=50", "rosbag.chunk_size=0"),
            ("512MiB",),
        ),
        Case(
            "HDF5, 40 rows of 300,000 numbers",
            (_hdf5(directory, 40, 300_000),),
            ("fps=50", "features[observation.state]=observations/state"),
            ("256MiB",),
        ),
        Case(f"data set of {long_s} s, 64×48", (_data_set(long),), (), ("256MiB",)),
        Case(
            "six HDF5 files of 200 rows, one camera",
            tuple(_hdf5_camera(directory, number) for number in range(6)),
            ("fps=50",),
            ("256MiB",),
        ),
    ]
    return cases


def _cameras(
    directory: Path, seconds: int, width: int, height: int, *, compression: str = "none", seed: int = 0
) -> Path:
    path = directory / f"cameras-{seconds}-{width}-{compression}-{seed}.bag"
    if not path.exists():
        script = Script(
            seconds=seconds,
            width=width,
            height=height,
            distinct_images=300,
            compression=compression,  # type: ignore[arg-type]
            seed=seed,
        )
        write_recording(path, script)
    return path


def _wide(directory: Path, values: int, messages: int) -> Path:
    """A recording with one topic: an array of float32 in each message, ten a second."""
    from penstock._src.recordings.ros1.writer import BagWriter

    path = directory / f"wide-{values}-{messages}.bag"
    if path.exists():
        return path
    layout = "\n".join(
        [
            "std_msgs/MultiArrayLayout layout\nfloat32[] data",
            "=" * 80,
            "MSG: std_msgs/MultiArrayLayout\nstd_msgs/MultiArrayDimension[] dim\nuint32 data_offset",
            "=" * 80,
            "MSG: std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n",
        ]
    )
    rng = np.random.default_rng(0)
    with BagWriter(path) as bag:
        topic = bag.add_topic("/wide", "std_msgs/Float32MultiArray", layout, "6a40e0ffa6a17a503ac3f8616991b1f6")
        for number in range(messages):
            head = np.array([0, 0, values], "<u4").tobytes()
            numbers = rng.normal(size=values).astype("<f4").tobytes()
            bag.write(topic, 1_700_000_000 * 10**9 + number * 10**8, head + numbers)
    return path


def _hdf5(directory: Path, rows: int, values: int) -> Path:
    import h5py

    path = directory / f"replay-{rows}-{values}.hdf5"
    if not path.exists():
        rng = np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            numbers = file.create_dataset("observations/state", (rows, values), np.float32)
            for start in range(0, rows, 1000):
                numbers[start : start + 1000] = rng.normal(size=(min(1000, rows - start), values))
            file["actions"] = rng.normal(size=(rows, 7)).astype(np.float32)
            file["rewards"] = np.zeros(rows, np.float32)
            file["terminals"] = np.arange(rows) == rows - 1
    return path


def _hdf5_camera(directory: Path, number: int) -> Path:
    """An episode of raw images, packed, as ALOHA has them."""
    import h5py

    path = directory / f"episode_{number}.hdf5"
    if not path.exists():
        rng = np.random.default_rng(number)
        with h5py.File(path, "w") as file:
            images = rng.integers(0, 255, (200, 96, 128, 3), dtype=np.uint8)
            file.create_dataset("observations/images/cam", data=images, chunks=(1, 96, 128, 3), compression="gzip")
            file["observations/qpos"] = rng.normal(size=(200, 14))
            file["action"] = rng.normal(size=(200, 14))
    return path


def _data_set(recording: Path) -> Path:
    out = recording.with_suffix("")
    if not out.exists():
        command = [sys.executable, "-m", "penstock", "convert", str(recording), str(out)]
        subprocess.run(command, check=True, capture_output=True)
    return out


def _command(case: Case, out: Path, budget: str) -> list[str]:
    sources = [str(path) for path in case.sources]
    command = [sys.executable, "-m", "penstock", "convert", *sources, str(out), "--json", "--memory", budget]
    return [*command, *case.options]


def _smallest_budget(case: Case, out: Path) -> str:
    """What the refusal of a budget far too small says, and below which a conversion is refused; in whole MiB."""
    shutil.rmtree(out, ignore_errors=True)
    refused = subprocess.run(_command(case, out, "32MiB"), capture_output=True, text=True, check=False)
    found = re.search(r"needs ([\d,]+) MiB.*\(in MiB: (.*?)\)", refused.stderr)
    if found is None:
        raise SystemExit(f"{case.name}: 32 MiB are not refused: {refused.stderr[-2000:]}")
    parts = sum(int(size.replace(",", "")) for size in re.findall(r" ([\d,]+)(?: \+|$)", found[2]))
    needs = int(found[1].replace(",", ""))
    if parts != needs:
        raise SystemExit(f"{case.name}: the parts {found[2]} add up to {parts}, not {needs}")
    return f"{needs}MiB"


def _measure(case: Case, out: Path, budget: str, *, smallest: bool) -> Measured | None:
    shutil.rmtree(out, ignore_errors=True)
    try:
        done = run(_command(case, out, budget))
    except SystemExit as failed:
        if "and the budget is" not in str(failed):
            raise
        print(f"{case.name:<44} refused with {budget}")
        return None
    finally:
        shutil.rmtree(out, ignore_errors=True)
    report = json.loads(done.output)
    return Measured(
        case.name,
        report["budget_bytes"] / MIB,
        report["predicted_peak_bytes"] / MIB,
        max(done.own_rss_bytes, report["peak_rss_bytes"]) / MIB,
        report["frames"],
        smallest,
        report.get("over_budget_bytes", 0) > 0 and any("above the budget" in note for note in report["notes"]),
    )


if __name__ == "__main__":
    main()
