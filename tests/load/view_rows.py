"""Rows for tests of views: pixels that follow from the row number, and other processes that use a view."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views.view import View, ViewSpec


def spec_of(**changes: Any) -> ViewSpec:
    words: dict[str, Any] = {"column": "cam", "fingerprint": "f00d", "size": (8, 12), "channels": 3}
    return ViewSpec(**{**words, **changes})


def pixels_of(spec: ViewSpec, row: int) -> NDArray[np.uint8]:
    """Noise, so that no two rows are alike and no byte can be guessed."""
    return np.random.default_rng(row).integers(0, 256, spec.shape, dtype=np.uint8)


def fill(view: View, rows: range) -> None:
    for row in rows:
        assert view.put(int(view.slots(np.array([row]))[0]), pixels_of(view.spec, row))


def assert_holds(view: View, rows: range) -> None:
    out = np.empty(view.spec.shape, np.uint8)
    for row in rows:
        assert view.get(int(view.slots(np.array([row]))[0]), out), f"row {row} is not there"
        assert np.array_equal(out, pixels_of(view.spec, row)), f"row {row} is another"


def verified(view: View, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each slot gives its row."""
    out = np.empty(view.spec.shape, np.uint8)
    return np.array([view.get(slot, out) for slot in slots.ravel().tolist()]).reshape(slots.shape)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


def start(code: str, *words: object, **more: str) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code`; it cannot outlive a test that uses it as a context."""
    head = "import os, pickle, sys\nimport numpy as np\nfrom penstock._src.load.views.view import View, ViewSpec\n"
    head += "from tests.load.view_rows import *\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", head + code, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        cwd=Path(__file__).parents[2],
    )


def run(code: str, *words: object, **more: str) -> str:
    """What it prints; it must end well."""
    with start(code, *words, **more) as process:
        try:
            out, stderr = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, stderr
    return out


def pickled(thing: object) -> str:
    return pickle.dumps(thing).hex()


def unpickled(text: str) -> Any:
    return pickle.loads(bytes.fromhex(text))


def open_files() -> set[str]:
    """What the descriptors of this process point to; without the profile's, of which each thread has one."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    return {each for each in found if "penstock-profile" not in each}
