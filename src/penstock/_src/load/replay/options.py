"""What a replay buffer is asked for, checked before anything is held; and what its batches are handed out as."""

from __future__ import annotations

import importlib
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.replay.columns import ReplayRequest
from penstock._src.load.settings import count_for, gives_tensors
from penstock.errors import MissingExtra, UsageError


def replay_request(
    action_dim: int, joint_dim: int, images: Sequence[str] | None, names: dict[str, str | None]
) -> ReplayRequest:  # fmt: skip
    """Sizes, and names of columns."""
    is_list = isinstance(images, Iterable) and not isinstance(images, (str, bytes))
    cameras = list(images) if images is not None and is_list else []
    if images is not None and not (cameras and all(isinstance(each, str) for each in cameras)):
        raise UsageError(f"images={images!r}", hint="names of cameras: images=('left_image', 'wrist_image')")
    for what, name in names.items():
        if name is not None and not isinstance(name, str):
            raise UsageError(f"{what}={name!r} is not the name of a column", hint=f"{what}='observations/…'")
    action, joint = count_for("action_dim", action_dim), count_for("joint_dim", joint_dim)
    columns = (names.get(what) for what in ("joint", "action", "reward", "terminal"))
    return ReplayRequest(action, joint, None if images is None else tuple(cameras), *columns)


def seed_for(seed: int | None) -> np.random.SeedSequence:
    """None is another one every time."""
    try:
        return np.random.SeedSequence(seed)
    except (TypeError, ValueError):
        raise UsageError(f"seed={seed!r}", hint="a whole number, 0 or more, or None: another each time") from None


def paths_for(path: Any) -> list[Path]:
    """A file, or several of them."""
    if isinstance(path, (str, os.PathLike)):
        return [Path(path)]
    is_many = isinstance(path, Iterable) and not isinstance(path, (bytes, Mapping))  # an open HDF5 file is a mapping
    several = list(path) if is_many else [path]
    for each in several:
        if not isinstance(each, (str, os.PathLike)):
            hint = "buffer.load_from_hdf5('data.hdf5'), or a list of such names"
            raise UsageError(f"{reprlib.repr(each)} is not the path of a file", hint=hint)
    if not several:
        raise UsageError("no files were given to load", hint="a pattern that matches nothing gives an empty list")
    return [Path(each) for each in several]


class ReplayOutput:
    """What a batch is handed out as."""

    def __init__(self, output: str, device: Any) -> None:
        self._torch: Any = None
        self._device = device
        if device is None and not gives_tensors(output):
            return
        try:
            self._torch = importlib.import_module("torch")
        except ImportError:
            raise MissingExtra("torch", "torch", f"output={output!r}, device={device!r}") from None
        if device is not None:
            self._check_device()

    @property
    def gives_tensors(self) -> bool:
        return self._torch is not None

    def _check_device(self) -> None:
        torch = self._torch
        try:
            chosen = torch.device(self._device)
        except (RuntimeError, TypeError):
            raise UsageError(f"device={self._device!r}", hint='"cpu" or "cuda", "cuda:1", …') from None
        if chosen.type == "cuda" and not torch.cuda.is_available():
            text = f"device={self._device!r}: torch {torch.__version__} sees no CUDA device"
            raise UsageError(text, hint='device="cpu"')

    def convert(self, arrays: dict[str, NDArray[Any]]) -> tuple[Any, ...]:
        """Tensors are views of the arrays; on a device, copies."""
        if self._torch is None:
            return tuple(arrays.values())
        tensors = tuple(self._torch.from_numpy(each) for each in arrays.values())
        return tensors if self._device is None else tuple(each.to(self._device) for each in tensors)

    def single(self, values: NDArray[np.float64]) -> Any:
        """One array of its own."""
        return self.convert({"": values.astype(np.float32)})[0]
