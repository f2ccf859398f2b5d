"""A child looks at an HDF5 file first: what crashes HDF5, or never comes back from it, ends with the child.

A flipped bit is enough for both: HDF5 2.0 crashes on some fill values, and hangs in a text heap with a run of zeros.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import StoreCorrupt, StoreError

TIMEOUT_S = 120.0  # a busy machine or a slow network takes its time; what spins is ended by its CPU time
_MODULE = "penstock.stores.hdf5.trial_child"

Texts = dict[tuple[str, str | None], Any]
"""By (group, attribute), or by (data set, None) for a data set that is one string."""


def try_file(path: Path, names: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Texts:
    """The texts under the given names, from a file that was opened, walked and read here and there without harm."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE],
            input=json.dumps([str(path.absolute()), list(names)]).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent; the child ends by itself
        )
    except subprocess.TimeoutExpired:
        raise _never_came_back(path) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be looked at: no child could be started: {error}") from error
    if done.returncode == -signal.SIGXCPU:
        raise _never_came_back(path)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise StoreCorrupt(f"{path} cannot be read: it crashes HDF5 ({name})", hint="the file is damaged")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return {}  # an error in words: the parent meets it again, and knows what it was doing
    return {(node, name): text for node, name, text in found}


def _never_came_back(path: Path) -> StoreCorrupt:
    return StoreCorrupt(f"{path} cannot be read: HDF5 does not come back from it", hint="the file is damaged")
