"""The folder `compat/` as a user has it: copied somewhere, its lines typed into a shell there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def copy_of_the_folder(directory: Path) -> Path:
    """A copy to run in, with the examples where `compat/` has them; nothing is written into the repository."""
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / "compat"
    shutil.copytree(REPOSITORY / "compat", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "examples").symlink_to(REPOSITORY / "examples")
    return folder


def typed(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """One line of a document in that folder, with this Python as `python`."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
