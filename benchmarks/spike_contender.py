# ruff: noqa: E402
"""Clips out of a torch DataLoader, as a contender of benchmarks/spike.py.

Usage: python spike_contender.py penstock|cached|cached-bytes|decoder|usual ROOT [options]; a round for every line on
standard input.
  penstock  `penstock.clip_loaders`; cached: with all images in the RAM cache; cached-bytes: DTYPE: uint8, too
  decoder   nothing but cv2.imdecode of the images of each clip, from memory
  usual     cv2.imread, whole spike files through a mask of bits, whole images as floats, then the crop
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(HERE)]
sys.path += [str(HERE), str(HERE / "peers")]

import numpy as np
import psutil
import torch
from rounds import serve, timed
from spike_voxels import usual_voxel
from torch.utils.data import DataLoader, Dataset

import penstock

CLIP_LEN, CROP_PX, PREFETCH = 5, 256, 2


class ImageClips(Dataset[Any]):
    """Clips of the first sequence of a set, by the names of its files."""

    def __init__(self, root: Path) -> None:
        (self.sequence,) = sorted((root / "train").iterdir())
        self.names = sorted(path.stem for path in (self.sequence / "blur").iterdir())

    def __len__(self) -> int:
        return len(self.names) - CLIP_LEN + 1


class DecoderClips(ImageClips):
    """Decodes the images of a clip and gives nothing."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._encoded = {
            (part, name): np.fromfile(self.sequence / part / f"{name}.png", np.uint8)
            for part in ("blur", "sharp")
            for name in self.names
        }

    def __getitem__(self, clip: int) -> int:
        import cv2

        cv2.setNumThreads(1)
        for part in ("blur", "sharp"):
            for name in self.names[clip : clip + CLIP_LEN]:
                cv2.imdecode(self._encoded[part, name], cv2.IMREAD_COLOR)
        return 0


class UsualClips(ImageClips):
    """As training scripts have it."""

    def __getitem__(self, clip: int) -> dict[str, torch.Tensor]:
        import cv2

        cv2.setNumThreads(1)
        rng = np.random.default_rng(clip)
        names = self.names[clip : clip + CLIP_LEN]
        found = {part: np.stack([self._image(part, name) for name in names]) for part in ("blur", "sharp")}
        top, left = (2 * int(rng.integers((side - CROP_PX) // 2 + 1)) for side in found["blur"].shape[2:])
        cropped = {part: images[..., top : top + CROP_PX, left : left + CROP_PX] for part, images in found.items()}
        voxels = np.stack([usual_voxel(self.sequence / "spike" / f"{name}.dat") for name in names])
        half = CROP_PX // 2
        cropped["spike_vox"] = voxels[..., top // 2 : top // 2 + half, left // 2 : left // 2 + half]
        return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in cropped.items()}

    def _image(self, part: str, name: str) -> Any:
        import cv2

        pixels = cv2.cvtColor(cv2.imread(str(self.sequence / part / f"{name}.png")), cv2.COLOR_BGR2RGB)
        return pixels.transpose(2, 0, 1).astype(np.float32) / 255


def batches_of(args: argparse.Namespace) -> Any:
    """A DataLoader of one clip a batch."""
    if args.what in ("decoder", "usual"):
        clips = (DecoderClips if args.what == "decoder" else UsualClips)(args.root)
        return DataLoader(clips, 1, shuffle=True, num_workers=args.workers, prefetch_factor=PREFETCH,
                          persistent_workers=True)  # fmt: skip
    config = {
        "DATA": {"ROOT": str(args.root), "VAL_SPLIT": None, "CROP_SIZE": CROP_PX, "CLIP_LEN": CLIP_LEN,
                 "USE_RAM_CACHE": args.what.startswith("cached"),
                 "DTYPE": "uint8" if args.what == "cached-bytes" else "float32"},
        "DATALOADER": {"TRAIN_WORKERS": args.workers, "TRAIN_PREFETCH_FACTOR": PREFETCH},
    }  # fmt: skip
    return penstock.clip_loaders(config, log=None, gpus=1).train


def cpu_s() -> float:
    """Of this process and its workers, so far."""
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("penstock", "cached", "cached-bytes", "decoder", "usual"))
    parser.add_argument("root", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=4)
    args = parser.parse_args()
    loader = batches_of(args)
    for _ in loader if args.what.startswith("cached") else ():
        pass  # the first epoch fills the cache

    def play() -> dict[str, Any]:
        batches: Iterator[Any] = iter(loader)
        for _ in range(args.warmup):
            next(batches)
        before_s = cpu_s()
        found = timed(batches, warmup=0, count=args.batches, samples=1)
        return {**found, "cpu_s": cpu_s() - before_s}

    serve(play)


main()
