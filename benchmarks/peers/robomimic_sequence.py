"""robomimic's SequenceDataset behind torch's DataLoader, reading its own HDF5 layout: full-size images and the next.

Usage: python robomimic_sequence.py FILE [--workers 2] [--batch 32] [--batches 8]; a round for every line on standard
input. The file is read row by row through h5py (`hdf5_cache_mode=None`), as one does where it is larger than memory.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from typing import Any

import torch
from rounds import serve, timed

CAMERAS = ("left_image", "right_image", "global_image")


def sequence_dataset() -> Any:
    """The class, also where robomimic's simulators and loggers, which it does not need, are not installed."""
    for _ in range(20):
        try:
            return importlib.import_module("robomimic.utils.dataset").SequenceDataset
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("robomimic"):
                raise
            sys.modules[error.name] = _absent(error.name)
    raise SystemExit("robomimic cannot be imported")


def _absent(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # so that its parts are looked for, and found absent in their turn
    module.__getattr__ = lambda attribute: type(attribute, (), {})  # type: ignore[method-assign]
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4)
    args = parser.parse_args()
    data = sequence_dataset()(
        args.path,
        obs_keys=(*CAMERAS, "joint"),
        dataset_keys=("actions", "rewards", "dones"),
        load_next_obs=True,
        hdf5_cache_mode=None,
        hdf5_use_swmr=False,
    )
    wanted = (args.warmup + args.batches + 2 * args.workers) * args.batch
    sampler = torch.utils.data.RandomSampler(data, num_samples=wanted)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=args.workers)

    def play() -> dict[str, Any]:
        batches = iter(loader)
        found = timed(batches, warmup=args.warmup, count=args.batches, samples=args.batch)
        del batches  # ends the workers
        return found

    serve(play, rows=len(data), workers=args.workers)


if __name__ == "__main__":
    main()
