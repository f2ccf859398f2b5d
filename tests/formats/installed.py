"""A package with a plug-in, as pip would leave it: a directory with the entry points of a distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import penstock

REPOSITORY = Path(__file__).resolve().parents[2]


def install(place: Path, name: str, **entry_points: str) -> Path:
    """A directory for `sys.path`."""
    described = place / f"{name.replace('-', '_')}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (described / "entry_points.txt").write_text("\n".join(["[penstock.formats]", *lines, ""]))
    return place


def penstock_with(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own that has the package."""
    source = Path(penstock.__file__).parents[1]
    paths = os.pathsep.join([str(place), str(REPOSITORY), str(source)])
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
