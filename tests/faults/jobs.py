"""The small job that the faults happen to: three recordings, five episodes, two cameras and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conversion.bags import robot, write

SETTINGS: dict[str, Any] = {"split_episodes": True, "rosbag": {"chunk_size": 9}, "task": "fold", "memory": "1GiB"}
SECONDS = (0.5, 0.4, 0.3)  # at 30 fps: two episodes, two, one


def make_sources(directory: Path) -> list[Path]:
    """Three bags that differ."""
    return [
        write(directory / f"run_{number}.bag", robot(seconds, hz=50, seed=number, width=32, height=24))
        for number, seconds in enumerate(SECONDS)
    ]


def call(sources: list[Path], out: Path, **more: Any) -> dict[str, Any]:
    """The arguments of penstock.convert, as JSON can carry them."""
    return {"sources": [str(path) for path in sources], "out": str(out), "jobs": 1, **SETTINGS, **more}


def call_of_many(sources: list[Path], out: Path, **more: Any) -> dict[str, Any]:
    """Ten episodes: more than one group of commits."""
    return call(sources, out, rosbag={"chunk_size": 4}, **more)


def contents(data_set: Path) -> dict[str, bytes]:
    """Every file of a data set but penstock's own."""
    return {
        str(path.relative_to(data_set)): path.read_bytes()
        for path in sorted(data_set.rglob("*"))
        if path.is_file() and path.relative_to(data_set).parts[0] != "penstock"
    }


def leftovers(out: Path) -> list[str]:
    """What lies beside a data set and should not."""
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name + "."))
