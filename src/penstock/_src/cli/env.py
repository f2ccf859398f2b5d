"""penstock env: what this machine grants, and which limit rules."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock import __version__
from penstock._src.cli.display import print_json, row
from penstock._src.system.units import format_bytes, format_size, parse_duration_ns, parse_workers

LIBRARIES = ("av", "h5py", "numpy", "opencv-python-headless", "psutil", "pyarrow", "pyyaml", "rich", "rosbags")
NEIGHBOURS = ("lerobot", "torch", "torchcodec")


def add_parser(verbs: Any) -> None:
    """Add `env` to the verbs of the command line."""
    parser = verbs.add_parser(
        "env",
        help="show what this machine grants, and which limit rules",
        description="Show the memory, CPUs, shared memory, disk and GPUs that this process may use, the limit that "
        "rules each, and the versions of the libraries that penstock works with.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; with --watch one a line")
    parser.add_argument(
        "--watch", nargs="?", type=int, const=0, metavar="PID",
        help="show memory and GPUs live, with PID also what that process and its workers hold, until Ctrl-C",
    )  # fmt: skip
    parser.add_argument("--every", default="1s", metavar="TIME", help="interval of --watch (1s)")
    parser.add_argument("--count", type=int, metavar="N", help="end --watch after N readings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the machine grants; 0."""
    if args.watch is not None:
        return _watch(args)
    facts = describe()
    if args.json:
        print_json(facts)
    else:
        _show(facts)
    return 0


def _watch(args: argparse.Namespace) -> int:
    from penstock._src.plan.memory.watch import MemoryWatch

    every_s = max(parse_duration_ns(args.every), 0) / 1e9
    MemoryWatch(args.watch or None, every_s=every_s, count=args.count).run(as_json=args.json)
    return 0


def describe() -> dict[str, Any]:
    """Everything that env shows, as plain data."""
    import platform

    from penstock._src.system.budget import Budget
    from penstock._src.system.limits import read_limits

    limits = read_limits(gpus=True)
    return {
        **limits._asdict(),
        "memory": _with_candidates(limits.memory._asdict()),
        "cpus": _with_candidates(vars(limits.cpus)),
        "gpus": [asdict(gpu) for gpu in limits.gpus],
        "auto_budget_bytes": Budget.parse("auto").limit_bytes,
        "auto_workers": parse_workers("auto", limits.cpus.granted),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": library_versions(),
        "video_encoders": video_encoders(),
    }


def _with_candidates(limit: Mapping[str, Any]) -> dict[str, Any]:
    return {**limit, "candidates": [each._asdict() for each in limit["candidates"]]}


def video_encoders() -> list[dict[str, Any]]:
    """Every video encoder that PyAV brings, and whether it works here: each encodes a few images."""
    from penstock._src.media.video.hardware import survey

    return [each._asdict() for each in survey()]


def library_versions() -> dict[str, str | None]:
    """Installed version of penstock, of each library that it depends on, and of those it works next to.

    None means: not installed. Read from the packages' metadata, because importing them would take seconds.
    """
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in ("penstock", *LIBRARIES, *NEIGHBOURS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = __version__ if name == "penstock" else None  # run from its source tree
    return versions


def _show(facts: dict[str, Any]) -> None:
    memory, cpus = facts["memory"], facts["cpus"]
    rows = [("memory", f"{format_bytes(memory['bytes'])} · ruled by {memory['ruled_by']}")]
    rows.append(("", f"{format_bytes(memory['available_bytes'])} available · ruled by {memory['available_ruled_by']}"))
    for each in memory["candidates"]:
        numbers = f"{format_bytes(each['limit_bytes'])}, {format_bytes(each['available_bytes'])} available"
        rows.append(("", f"  {each['name']}: {numbers}"))
    rows.append(("budget", f"{format_bytes(facts['auto_budget_bytes'])} (--memory auto)"))
    rows.append(("CPUs", f"{cpus['granted']:g} · ruled by {cpus['ruled_by']}"))
    rows += [("", f"  {each['name']}: {each['cpus']:g}") for each in cpus["candidates"]]
    rows.append(("workers", f"{facts['auto_workers']} (auto: 0.8 × the CPUs granted)"))
    rows.append(("/dev/shm", _shared_memory(facts)))
    rows.append(("disk", f"{format_size(facts['disk_free_bytes'])} free at {facts['disk_path']}"))
    rows += [("GPU" if n == 0 else "", _gpu(each)) for n, each in enumerate(facts["gpus"])] or [("GPU", "none found")]
    rows.append(("Python", f"{facts['python']} · {facts['platform']}"))
    for n, each in enumerate(facts["video_encoders"]):
        fate = "works" if each["works"] else f"– {each['reason']}"
        rows.append(("encoders" if n == 0 else "", f"{each['codec']} on {each['device']}: {fate}"))
    for n, (name, version) in enumerate(facts["versions"].items()):
        rows.append(("libraries" if n == 0 else "", f"{name} {version or '– (not installed)'}"))
    for label, text in rows:
        print(row(label, text))


def _shared_memory(facts: dict[str, Any]) -> str:
    if facts["shm_bytes"] is None:
        return "none"
    return f"{format_bytes(facts['shm_free_bytes'])} free of {format_bytes(facts['shm_bytes'])} · charged to memory"


def _gpu(gpu: dict[str, Any]) -> str:
    if gpu["memory_bytes"] is None:
        size = "memory shared with the CPU"
    else:
        size = f"{format_bytes(gpu['free_bytes'] or 0)} free of {format_bytes(gpu['memory_bytes'])}"
    hidden = "" if gpu["visible"] else " · hidden by CUDA_VISIBLE_DEVICES"
    return f"{gpu['index']}: {gpu['name']} · {size} · driver {gpu['driver']}{hidden}"
