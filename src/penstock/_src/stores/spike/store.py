"""`SpikeStore`: a sequence is an episode, a row is a blurred image with its sharp image and its spike file.

store = penstock.open("data/gopro_spike", split="train", num_bins=5)
store.numbers("spike_vox", np.array([0, 7]))                       # (2, 5, 360, 640) uint8 counts
store.voxel(7, Box(64, 100, 256, 256))                             # the counts of a crop
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.detect import find_flip
from penstock._src.media.spike.files import read_packed, read_voxel
from penstock._src.media.spike.frames import count_dtype
from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout, SpikeSettings
from penstock._src.stores.caches import ERRORS, content_sample
from penstock._src.stores.spike.folders import Folders, find_sequences
from penstock._src.stores.spike.sequence import OnMissing, SkippedRows, SpikeSequence, open_sequence
from penstock._src.stores.spike.voxel_files import read_voxel_file, voxel_facts
from penstock._src.stores.spike.voxel_record import check_voxels
from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store, row_numbers
from penstock._src.system.files import as_path, open_source
from penstock.errors import StoreError

VOXEL = "spike_vox"
_IMAGES = ("blur", "sharp")
_COMPARED_SEQUENCES = 3  # which row comes first is one question for the whole set
_SHOWN = 4


class SpikeStore(Store):
    """Sequences of blurred and sharp images with spike files. Every read opens its file for itself."""

    kind = "spike clips"
    plural = "spike data sets"
    fps = None
    has_doctor = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        episodes: Sequence[int] | str | None = None,
        columns: Sequence[str] | None = None,
        split: str | None = None,
        num_bins: int = 5,
        spike_dir: str = "spike",
        layout: str = "auto",
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
        flip: bool | None = None,
        voxel_dir: str | None = None,
        on_missing: OnMissing = "raise",
    ) -> None:
        """`voxel_dir` takes `spike_vox` from `SEQ/voxel_dir/NAME.npy`, which `penstock prepare voxels` makes.
        `on_missing="skip"` leaves out rows that are not whole; `notes` counts them."""
        self.path, self.num_bins, self.voxel_dir = as_path(path), num_bins, voxel_dir
        if on_missing not in ("raise", "skip"):
            raise StoreError(f"on_missing={on_missing!r}", hint='on_missing="raise" or on_missing="skip"')
        self.settings = SpikeSettings(layout, height, width, frames, flip)  # type: ignore[arg-type]  # it checks
        self._words = {
            "episodes": episodes, "columns": columns, "split": split, "num_bins": num_bins, "spike_dir": spike_dir,
            "layout": layout, "height": height, "width": width, "frames": frames, "voxel_dir": voxel_dir,
            "on_missing": on_missing,
        }  # fmt: skip
        skipped = SkippedRows(on_missing)
        folders = self._chosen(find_sequences(self.path, split, spike_dir), episodes)
        self.sequences: Sequence[SpikeSequence] = self._open(folders, skipped)
        lengths = [each.frames for each in self.sequences]
        self.episode_starts = np.cumsum([0, *lengths], dtype=np.int64)
        self.skipped: Mapping[str, int] = dict(skipped.counts)
        """Rows that were left out, by reason."""
        self.first_skipped: Mapping[str, str] = dict(skipped.first)
        """The first of them, in words."""
        if voxel_dir is not None:
            rows = range(self.rows)
            files = ((self.voxel_path(row), self.spike_path(row), self.sequence_of(row)[0].layout) for row in rows)
            check_voxels(self.path, files, num_bins)
        self.columns = self._columns(columns)
        self.notes = [*self._notes(), *skipped.notes()]
        self.reading_bytes = Store.reading_bytes + max(each.layout.n_bytes for each in self.sequences)

    # Opening

    def _chosen(self, folders: list[Folders], episodes: Sequence[int] | str | None) -> list[Folders]:
        if episodes is None:
            return folders
        if isinstance(episodes, str):
            raise StoreError(f"{self.path}: episodes={episodes!r}", hint="episodes=[0, 3]")
        if wrong := [each for each in episodes if not 0 <= each < len(folders)]:
            raise StoreError(f"{self.path}: there is no sequence {wrong[0]}, there are 0 to {len(folders) - 1}")
        self.episode_numbers = np.array(episodes, np.int64)
        return [folders[each] for each in episodes]

    def _open(self, folders: Sequence[Folders], skipped: SkippedRows) -> list[SpikeSequence]:
        needs_sharp = any(each.sharp is not None for each in folders)
        opened = [open_sequence(each, self.settings, needs_sharp, skipped) for each in folders]
        if self.episode_numbers is not None:
            there = np.array([each is not None for each in opened], np.bool_)
            self.episode_numbers = self.episode_numbers[there]
        sequences = [each for each in opened if each is not None]
        if not sequences:
            first = next(iter(skipped.first.values()), "")
            raise StoreError(f"{self.path}: no valid samples were found", hint=f"first: {first}" if first else None)
        flip, self.flip_why = self.settings.flip, "declared"
        if flip is None:
            step = -(-len(sequences) // _COMPARED_SEQUENCES)
            flip, self.flip_why = find_flip(_middle(each) for each in sequences[::step])
        self.flip = bool(flip)
        return [replace(each, layout=replace(each.layout, flip=self.flip)) for each in sequences]

    def _columns(self, chosen: Sequence[str] | None) -> dict[str, Column]:
        first = self.sequences[0]
        columns = {}
        for name in _IMAGES:
            if getattr(first, name) is None:
                continue
            suffix = os.path.splitext(getattr(first, name).names[0])[1].lower()
            encoding = "png" if suffix == ".png" else "jpeg"
            why = "a file per row, given as it is stored"
            shape = (first.image_height, first.image_width, 3)
            columns[name] = Column(name, "image", shape, "uint8", encoding, "file", why, self._stored(name))
        voxel, dtype, why = self._voxel_facts()
        columns[VOXEL] = Column(VOXEL, "numbers", voxel, dtype, "numbers", "file", why, self._stored("spike"))
        if chosen is None:
            return columns
        self.columns = columns
        names = [chosen] if isinstance(chosen, str) else chosen
        return {self.column(name).name: columns[name] for name in names}

    def _voxel_facts(self) -> tuple[tuple[int, ...], str, str]:
        """Shape, dtype and way of `spike_vox`: that of the first sequence, in numbers that hold those of all."""
        first = self.sequences[0].layout
        if self.voxel_dir is not None:
            return voxel_facts(self.voxel_path(0), self.num_bins)
        dtype = max(
            (count_dtype(each.layout, self.num_bins) for each in self.sequences), key=lambda each: each.itemsize
        )
        return (self.num_bins, first.height, first.width), str(dtype), f"counted from {first} when a row is read"

    def _stored(self, kind: str) -> int:
        return sum(each.stored_bytes.get(kind, 0) for each in self.sequences)

    def _notes(self) -> Iterator[str]:
        """What was found, and what differs between sequences."""
        layouts: dict[str, list[SpikeSequence]] = {}
        for each in self.sequences:
            layouts.setdefault(str(each.layout), []).append(each)
        for text, members in list(layouts.items())[:_SHOWN]:
            names = ", ".join(each.name for each in members[:_SHOWN]) + (", …" if len(members) > _SHOWN else "")
            counted = "1 sequence" if len(members) == 1 else f"{len(members)} sequences"
            yield f"spikes {text}: {counted} ({names}); {members[0].why}"
        if len(layouts) > _SHOWN:
            yield f"and {len(layouts) - _SHOWN} more layouts of spikes"
        yield f"spikes: {self.flip_why}"
        sizes = dict.fromkeys((each.image_height, each.image_width) for each in self.sequences)
        if len(sizes) > 1:
            shown = ", ".join(f"{height}×{width}" for height, width in sizes)
            yield f"images of {len(sizes)} sizes: {shown}; a batch of whole images holds one of them"

    # Rows

    def sequence_of(self, row: int) -> tuple[SpikeSequence, int]:
        """The sequence of a row, and its place there."""
        if not 0 <= row < self.rows:
            raise StoreError(f"{self.path}: row {row:,} was requested, there are {self.rows:,}")
        number = int(np.searchsorted(self.episode_starts, row, side="right")) - 1
        return self.sequences[number], row - int(self.episode_starts[number])

    def spike_path(self, row: int) -> Path:
        """The spike file of a row."""
        sequence, place = self.sequence_of(row)
        return sequence.spike[place]

    def image_path(self, name: str, row: int) -> Path:
        """The file of an image; `name` is "blur" or "sharp"."""
        sequence, place = self.sequence_of(row)
        files = getattr(sequence, name) if name in _IMAGES else None
        if files is None:
            raise StoreError(f"{self.path} has no images {name!r}", hint='there are "blur" and, where known, "sharp"')
        path: Path = files[place]
        return path

    def voxel_path(self, row: int, voxel_dir: str | None = None) -> Path:
        """Where the precomputed voxel of a row lies: in a folder beside that of the spike file."""
        sequence, place = self.sequence_of(row)
        folder = sequence.spike.folder
        voxels = voxel_dir or self.voxel_dir or VOXEL
        beside = folder.parent / voxels
        if folder.parent.name == "spike_data":  # the folder of a sequence lies below that of the spikes
            beside = folder.parent.parent / voxels / folder.name
        return beside / f"{os.path.splitext(sequence.spike.names[place])[0]}.npy"

    def voxel(self, row: int, box: PlaneRegion | None = None, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The counts of a row, (bins, height, width), or of a crop: from its spike file, or precomputed; in `out` where
        one is given."""
        sequence, place = self.sequence_of(row)
        if self.voxel_dir is None:
            return read_voxel(sequence.spike[place], sequence.layout, self.num_bins, box, out)
        voxel = read_voxel_file(self.voxel_path(row), sequence.layout, self.num_bins, box)
        if out is None:
            return voxel
        out[...] = voxel
        return out

    def packed(self, row: int, box: PlaneRegion | None = None) -> tuple[NDArray[np.uint8], int]:
        """The packed bytes of a row or of a crop, for `packed_to_voxel`, and the bit at which it begins."""
        sequence, place = self.sequence_of(row)
        return read_packed(sequence.spike[place], sequence.layout, box)

    def images(self, name: str) -> ImageSource:
        if not self.column(name).is_image:
            raise StoreError(f"{self.path}: {name!r} holds no images", hint="images: blur, sharp")
        return _SpikeImages(self, name)

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        column = self.column(name)
        if column.kind != "numbers":
            raise StoreError(f"{self.path}: {name!r} does not hold numbers but {column.kind}")
        wanted = row_numbers(rows, str(self.path))
        made = np.empty((len(wanted), *column.shape), column.dtype)
        for place, row in enumerate(wanted.tolist()):
            sequence, _ = self.sequence_of(row)
            if (sequence.layout.height, sequence.layout.width) != column.shape[1:]:
                self._refuse_mixed(sequence)
            self.voxel(row, out=made[place])
        return made

    def _refuse_mixed(self, other: SpikeSequence) -> None:
        first = self.sequences[0]
        alike = [
            number
            for number, each in enumerate(self.sequences)
            if (each.layout.height, each.layout.width) == (first.layout.height, first.layout.width)
        ]
        numbers = [self.episode_number(each) for each in alike]
        shown = f"[{', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}]"
        raise StoreError(
            f"{self.path}: the spikes of {other.name} are {other.layout.height}×{other.layout.width}, those of "
            f"{first.name} {first.layout.height}×{first.layout.width}: one array cannot hold both",
            hint=f"penstock.open(…, episodes={shown}) has one size; penstock.clip_loaders takes crops of all",
        )

    # What stores have in common

    def fingerprint(self, name: str) -> str:
        column = self.column(name)
        digest = hashlib.sha256(f"{name} {column.shape} {column.dtype} {self.num_bins}".encode())
        for row in range(self.rows):
            path = self.image_path(name, row) if column.is_image else self.spike_path(row)
            if column.name == VOXEL:
                digest.update(repr((self.sequence_of(row)[0].layout, self.voxel_dir)).encode())
                path = path if self.voxel_dir is None else self.voxel_path(row)
            status = path.stat()
            digest.update(f"{path.relative_to(self.path)} {status.st_size} {status.st_mtime_ns}".encode())
            digest.update(content_sample(path, status.st_size))
        return digest.hexdigest()

    def episode_label(self, position: int) -> str:
        return f"sequence {self.sequences[position].name}"

    def row_number(self, row: int) -> int:
        return self.sequence_of(row)[1]

    def file_of(self, row: int, name: str = "") -> Path:
        return self.image_path(name, row) if name in _IMAGES else self.spike_path(row)

    def close(self) -> None:
        pass  # no file stays open

    def reopening(self) -> tuple[Path, dict[str, Any]]:
        return self.path.absolute(), {**self._words, "flip": self.flip}  # which row comes first is known by now

    def __reduce__(self) -> tuple[Any, ...]:
        path, words = self.reopening()
        return _reopen, (str(path), words)


class _SpikeImages(ImageSource):
    """The images of one column, as their files hold them."""

    def __init__(self, store: SpikeStore, name: str) -> None:
        self._store, self._name = store, name
        height, width, channels = store.columns[name].shape
        self.scratch_bytes = height * width * channels + (
            1 << 20
        )  # no PNG or JPEG is larger than its pixels and a header

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            with open_source(self._store.image_path(self._name, row), ERRORS) as source:
                data = scratch.take(source.size_bytes)
                source.read_into(data.data, 0)
            yield data


def _middle(sequence: SpikeSequence) -> tuple[Path, SpikeLayout, Path]:
    place = sequence.frames // 2
    return sequence.spike[place], sequence.layout, sequence.blur[place]


def _reopen(path: str, words: dict[str, Any]) -> SpikeStore:
    return SpikeStore(path, **words)
