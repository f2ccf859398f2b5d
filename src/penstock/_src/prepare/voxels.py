"""`prepare_voxels`: a `.npy` of counts for every spike file, whole or not at all; what is there and current is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock._src.formats.findings import CheckReport, Findings
from penstock._src.media.spike.files import read_voxel
from penstock._src.media.spike.frames import count_dtype
from penstock._src.media.spike.layout import SpikeLayout
from penstock._src.prepare.disk_space import check_space
from penstock._src.stores.spike.store import SpikeStore
from penstock._src.stores.spike.voxel_record import fits_record, has_record, write_record
from penstock._src.system.files import replacing
from penstock.errors import OutputExists, OutputFailed, SpikeError

_HEADER_BYTES = 128  # of a `.npy` file with three dimensions


@dataclass(frozen=True)
class VoxelTask:
    """One voxel file to make."""

    spike: Path
    voxel: Path
    layout: SpikeLayout
    num_bins: int

    @property
    def n_bytes(self) -> int:
        layout = self.layout
        return (
            _HEADER_BYTES + self.num_bins * layout.height * layout.width * count_dtype(layout, self.num_bins).itemsize
        )

    def is_current(self) -> bool:
        """Whether the file is there, whole, and made from the spike file as it is."""
        try:
            stat = self.voxel.stat()
        except FileNotFoundError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.n_bytes, self.spike.stat().st_mtime_ns)

    def make(self) -> int:
        """Write the file; returns its bytes."""
        time_ns = self.spike.stat().st_mtime_ns
        counts = read_voxel(self.spike, self.layout, self.num_bins)
        with replacing(self.voxel) as fresh:
            with open(fresh, "wb") as file:
                np.save(file, counts, allow_pickle=False)
            os.utime(fresh, ns=(time_ns, time_ns))
        return self.n_bytes


def prepare_voxels(
    stores: Sequence[SpikeStore],
    voxel_dir: str,
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Make the voxels of stores in `SEQ/voxel_dir`; the report counts them, and names what could not be read.

    `jobs`: threads. `progress` is called with the bytes written so far and in all.
    """
    findings = Findings()
    counted = findings.counted
    for store in stores:
        for reason, rows in store.skipped.items():
            findings.add("loss", reason, store.path, f"{rows:,} rows left out: {store.first_skipped[reason]}")
    folders = [folder for store in stores for folder in _folders(store, voxel_dir)]
    waiting = [task for folder in folders for task in folder.waiting]
    total_bytes = sum(task.n_bytes for task in waiting)
    hint = "USE_PRECOMPUTED_VOXELS: false counts in real time, without files; or make room"
    check_space(stores[0].path, total_bytes, hint)
    counted["sequences"] = len(folders)
    counted["kept"] = sum(len(folder.tasks) - len(folder.waiting) for folder in folders)
    counted["stale"] = sum(task.voxel.exists() for task in waiting)
    counted["made"] = counted["bytes"] = 0
    try:
        for folder in folders:
            folder.open()
        for task, error in _run(waiting, jobs):
            if error is not None:
                findings.add("loss", "unreadable", task.spike, error.message, error.hint)
            else:
                counted["made"] += 1
                counted["bytes"] += task.n_bytes
            if progress is not None:
                progress(counted["bytes"], total_bytes)
    except OSError as error:
        raise OutputFailed(error.filename or stores[0].path, "voxels cannot be written", error) from error
    return findings.report()


@dataclass(frozen=True)
class _Folder:
    """The voxels of one sequence, all of them and those to be made."""

    path: Path
    tasks: tuple[VoxelTask, ...]
    waiting: tuple[VoxelTask, ...]

    def open(self) -> None:
        """Make the folder and its record; voxels of another layout or of other bins go before the record changes."""
        first = self.tasks[0]
        self.path.mkdir(parents=True, exist_ok=True)
        if not has_record(self.path) or not fits_record(self.path, first.layout, first.num_bins):
            for task in self.tasks:
                task.voxel.unlink(missing_ok=True)
            write_record(self.path, first.layout, first.num_bins)


def _folders(store: SpikeStore, voxel_dir: str) -> Iterator[_Folder]:
    row = 0
    for sequence in store.sequences:
        tasks = tuple(
            VoxelTask(spike, store.voxel_path(row + place, voxel_dir), sequence.layout, store.num_bins)
            for place, spike in enumerate(sequence.spike)
        )
        row += sequence.frames
        path = tasks[0].voxel.parent
        is_ours = has_record(path)
        if not is_ours and (other := next(path.glob("*.npy"), None)):
            raise OutputExists(
                f"{other} was not made by `penstock prepare voxels`: it is left alone",
                hint="choose another VOXEL_CACHE_DIRNAME, or remove that folder yourself",
            )
        is_alike = is_ours and fits_record(path, sequence.layout, store.num_bins)
        yield _Folder(path, tasks, tuple(task for task in tasks if not (is_alike and task.is_current())))


def _run(tasks: list[VoxelTask], jobs: int) -> Iterator[tuple[VoxelTask, SpikeError | None]]:
    """Each task when it is done, with what was wrong with its spike file."""

    def attempt(task: VoxelTask) -> SpikeError | None:
        try:
            task.make()
        except SpikeError as error:
            return error
        return None

    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        yield from zip(tasks, pool.map(attempt, tasks), strict=True)
