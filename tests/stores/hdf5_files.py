"""Small HDF5 files as robots record them, made with h5py; what was written is given back as plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

HEIGHT, WIDTH = 48, 64


def image(seed: int) -> np.ndarray:
    """An image with something in it that JPEG keeps."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def images(rows: int, seed: int = 0) -> np.ndarray:
    found = np.empty((rows, HEIGHT, WIDTH, 3), np.uint8)
    for row in range(rows):
        found[row] = image(seed * 1000 + row)
    return found


def encoded(rows: int, seed: int = 0, kind: str = ".jpg") -> list[np.ndarray]:
    return [cv2.imencode(kind, each)[1].reshape(-1) for each in images(rows, seed)]


def padded(rows: list[np.ndarray]) -> np.ndarray:
    longest = max(len(row) for row in rows) + 3
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def aloha(path: Path, rows: int = 9, seed: int = 0, *, raw: bool = False, **attributes: Any) -> dict[str, Any]:
    """One episode of ACT / ALOHA: two cameras, joints and actions."""
    rng = np.random.default_rng(seed)
    cameras = {
        name: images(rows, seed + i) if raw else encoded(rows, seed + i)
        for i, name in enumerate(("cam_high", "cam_low"))
    }
    numbers = {name: rng.normal(size=(rows, 14)) for name in ("action", "qpos", "qvel", "effort")}
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        file.attrs.update(attributes)
        for name, values in cameras.items():
            file[f"observations/images/{name}"] = values if raw else padded(values)
        for name, values in numbers.items():
            file[name if name == "action" else f"observations/{name}"] = values
        if not raw:
            file.attrs["compress"] = True
            lengths = [[len(each) for each in cameras[name]] for name in ("cam_low", "cam_high")]
            file["compress_len"] = np.array(lengths, np.float32)
    return {**cameras, **numbers}


def robomimic(path: Path, lengths: tuple[int, ...] = (5, 7, 6)) -> dict[str, Any]:
    """Demonstrations demo_0, demo_1, demo_10: natural order is not that of the letters."""
    names = [f"demo_{number}" for number in (0, 2, 10, 11, 12)][: len(lengths)]
    written: dict[str, Any] = {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = '{"env_name": "Lift", "env_kwargs": {"control_freq": 20, "robots": ["Panda"]}}'
        for i, (name, rows) in enumerate(zip(names, lengths, strict=True)):
            rng = np.random.default_rng(i)
            demo: dict[str, Any] = {
                "actions": rng.normal(size=(rows, 7)),
                "rewards": rng.random(rows),
                "dones": (np.arange(rows) == rows - 1).astype(np.int64),
                "states": rng.normal(size=(rows, 9)),
                "obs/robot0_eef_pos": rng.normal(size=(rows, 3)),
                "obs/robot0_eef_quat": rng.normal(size=(rows, 4)),
                "obs/robot0_gripper_qpos": rng.normal(size=(rows, 2)),
                "obs/object": rng.normal(size=(rows, 10)),
                "obs/agentview_image": images(rows, i),
                "next_obs/object": rng.normal(size=(rows, 10)),
            }
            group = data.create_group(name)
            group.attrs["num_samples"] = rows
            for key, values in demo.items():
                group.create_dataset(key, data=values, compression="gzip" if "image" in key else None)
            written[name] = demo
        data["demo_2"].attrs["task_description"] = "lift the cube"
        file["mask/train"] = np.array([names[0].encode(), names[-1].encode()])
    return written


def replay(path: Path, ends: tuple[int, ...] = (4, 11), rows: int = 15, *, first: bool = False) -> dict[str, Any]:
    """Flat steps with three cameras' worth of names; `first` puts the channels first."""
    rng = np.random.default_rng(3)
    terminals = np.zeros(rows, bool)
    timeouts = np.zeros(rows, bool)
    terminals[ends[0] - 1] = True
    timeouts[ends[1] - 1] = True
    left = images(rows, 5)
    written: dict[str, Any] = {
        "observations/left_image": left.transpose(0, 3, 1, 2) if first else left,
        "observations/joint": rng.normal(size=(rows, 16)).astype(np.float32),
        "actions": rng.normal(size=(rows, 16)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }
    with h5py.File(path, "w") as file:
        for name, values in written.items():
            file[name] = values
    return {**written, "left": left}
