"""Which folders are sequences, and which of their files belong together.

ROOT/[train|test/]SEQ/{blur,sharp,spike}                                         one folder per sequence
GOPRO_Large/train/SEQ/{blur_gamma,sharp}, GOPRO_Large_spike_seq/train/SEQ/spike  spikes beside the images (Spk-GoPro)
GOPRO/train/{blur_data,sharp_data,spike_data}/SEQ                                sequences below the kinds (S-SDM)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from penstock._src.recordings.split import natural_key
from penstock.errors import StoreError

SPLITS = ("train", "test", "val", "valid", "validation")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
SPIKE_SUFFIX = ".dat"
_SPIKES_BESIDE = "_spike_seq"
_BLUR_NAMES = ("blur", "blur_gamma")
_HINT = (
    "a sequence is a folder with blur/, sharp/ and spike/: `penstock prepare gopro-spike` makes such folders of the "
    "public data sets"
)


@dataclass(frozen=True)
class FrameFiles(Sequence[Path]):
    """Files of one folder, in order; kept as their names."""

    folder: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Path: ...

    @overload
    def __getitem__(self, index: slice) -> FrameFiles: ...

    def __getitem__(self, index: int | slice) -> Path | FrameFiles:
        if isinstance(index, slice):
            return FrameFiles(self.folder, self.names[index])
        return self.folder / self.names[index]

    def __repr__(self) -> str:
        return f"Files({str(self.folder)!r}, {len(self.names):,} files)"


@dataclass(frozen=True)
class Folders:
    """Where the files of one sequence lie; `sharp` is None where there are none."""

    name: str
    blur: Path
    sharp: Path | None
    spike: Path


def find_sequences(root: Path, split: str | None, spike_dir: str) -> list[Folders]:
    """The sequences below a directory, by name; an error that says what was looked for where there are none."""
    folders: dict[str, Folders] = {}
    for each in _sequences(root, split, spike_dir):
        folders.setdefault(each.name, each)
    if not folders:
        there = f"{root}/{split}" if split else str(root)
        raise StoreError(f"{there}: no sequence with images and {spike_dir}/*.dat was found", hint=_HINT)
    return sorted(folders.values(), key=lambda each: natural_key(each.name))


def is_spike_set(root: Path) -> bool:
    """Whether a directory holds sequences; spike files without images are none."""
    return next(_sequences(root, None, "spike"), None) is not None


def _sequences(root: Path, split: str | None, spike_dir: str) -> Iterator[Folders]:
    for prefix, images, spikes in _places(root, split):
        for each in _in_place(images, spikes, spike_dir):
            yield replace(each, name=f"{prefix}{each.name}")


def _places(root: Path, split: str | None) -> Iterator[tuple[str, Path, Path]]:
    """(prefix of names, folder of the images, folder of the spikes) in which sequences are looked for."""
    pairs = [(root, root)]
    for each in _directories(root):
        images = each.with_name(each.name.removesuffix(_SPIKES_BESIDE))
        if each.name.endswith(_SPIKES_BESIDE) and images.is_dir():
            pairs.append((images, each))
    for images, spikes in pairs:
        if split is not None:
            yield "", images / split, spikes / split
            continue
        yield "", images, spikes
        for name in SPLITS:
            yield f"{name}/", images / name, spikes / name


def _in_place(images: Path, spikes: Path, spike_dir: str) -> Iterator[Folders]:
    if images == spikes:
        own = _sequence(images.name, images, images / spike_dir)
        if own is not None:
            yield own
            return
        for each in _directories(images / "spike_data"):
            sharp = images / "sharp_data" / each.name
            blur = images / "blur_data" / each.name
            if blur.is_dir():
                yield Folders(each.name, blur, sharp if sharp.is_dir() else None, each)
    for each in _directories(spikes):
        sequence = _sequence(each.name, images / each.name, each / spike_dir, is_gamma_first=images != spikes)
        if sequence is not None:
            yield sequence


def _sequence(name: str, images: Path, spike: Path, is_gamma_first: bool = False) -> Folders | None:
    names = reversed(_BLUR_NAMES) if is_gamma_first else iter(_BLUR_NAMES)
    blur = next((images / each for each in names if (images / each).is_dir()), None)
    if blur is None or not spike.is_dir():
        return None
    return Folders(name, blur, images / "sharp" if (images / "sharp").is_dir() else None, spike)


def _directories(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((each for each in folder.iterdir() if each.is_dir()), key=lambda each: natural_key(each.name))


def list_files(folder: Path | None, suffixes: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Stem → (name, size in bytes) of the files with these suffixes, in order."""
    if folder is None:
        return {}
    files: dict[str, tuple[str, int]] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                # A link that leads nowhere is no file: its partner misses it.
                if suffix.lower() in suffixes and not entry.name.startswith(".") and entry.is_file():
                    files[stem] = (entry.name, entry.stat().st_size)
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {error.strerror}") from error
    return dict(sorted(files.items(), key=lambda item: natural_key(item[0])))
