"""Opening HDF5 files: what the child that looks first adds to healthy files, and what opening many costs.

A damaged file can crash the HDF5 library, so a child opens each file before this process does. `check=False` does
without: the difference is what the guard costs.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from measure import Claim

EPISODES = 50
ROUNDS = 9


def open_claims(directory: Path) -> list[Claim]:
    one = _episodes(directory / "aloha") / "episode_0.hdf5"
    many = one.parent
    claims: list[Claim] = []
    for name, path in (("one ALOHA episode", one), (f"{EPISODES} ALOHA episodes", many)):
        guarded, bare = _opening_s(path)
        print(f"{name}: opened in {guarded * 1e3:,.1f} ms; without the guard {bare * 1e3:,.1f} ms", flush=True)
        claims.append(Claim(f"{name}: what the guard adds to opening (ms)", (guarded - bare) * 1e3, "<= 50"))
    return claims


def _opening_s(path: Path) -> tuple[float, float]:
    """Seconds to open, with the guard and without, in turns."""
    import penstock

    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS + 1):
        for check, seconds in found.items():
            began = time.perf_counter()
            penstock.open(path, check=check).close()
            if number:  # the first loads libraries
                seconds.append(time.perf_counter() - began)
    return statistics.median(found[True]), statistics.median(found[False])


def _episodes(directory: Path) -> Path:
    """Small episodes: opening reads no more of large ones."""
    import h5py
    import numpy as np

    directory.mkdir(exist_ok=True)
    for number in range(EPISODES):
        with h5py.File(directory / f"episode_{number}.hdf5", "w") as file:
            for name in ("action", "observations/qpos", "observations/qvel", "observations/effort"):
                file[name] = np.zeros((40, 14))
            for camera in ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"):
                file[f"observations/images/{camera}"] = np.zeros((40, 48, 64, 3), np.uint8)
    return directory
