"""The memory of a loader over data far larger than its budget: its peak, and whether it creeps, for every `view`.

Private memory is what smaps_rollup calls Private_Clean + Private_Dirty (USS), and with it the whole of every memory
file that the process holds, mapped or not. `pss` is the proportional share; `held` leaves out pages that are only
cache of files, which the kernel takes back without writing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from measure import Claim

SAMPLE_S = 0.02
VIEWS = ("off", "ram", "disk")


@dataclass(frozen=True)
class Footprint:
    """What one process has at one moment."""

    private_bytes: int
    pss_bytes: int
    held_bytes: int
    memory_file_bytes: int


def footprint(pid: int) -> Footprint:
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split(":")
        fields[name] = int(amount.split()[0]) * 1024
    files: dict[tuple[int, int], int] = {}  # by device and inode: a mapping keeps a second descriptor of its file
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(link).startswith("/memfd:"):
                status = os.stat(link)
                files[status.st_dev, status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # closed meanwhile
    memory_files = sum(files.values())
    unmapped = max(0, memory_files - fields["Pss_Shmem"])
    private = fields["Private_Clean"] + fields["Private_Dirty"] + unmapped
    held = fields["Pss_Anon"] + fields["Pss_Shmem"] + unmapped
    return Footprint(private, fields["Pss"] + unmapped, held, memory_files)


class Watch:
    """A child that says after every batch how many there were; its memory is sampled all the time."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdout.readline()
        time.sleep(0.2)
        self.baseline = footprint(self._process.pid)
        self.samples: list[tuple[int, Footprint]] = []
        self.batches = 0
        self.last_words = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        began = time.perf_counter()
        self._process.stdin.write("\n")
        self._process.stdin.close()
        while self._reader.is_alive():
            try:
                self.samples.append((self.batches, footprint(self._process.pid)))
            except (OSError, KeyError, ValueError):
                break  # it has ended
            self._reader.join(SAMPLE_S)
        self._reader.join()
        self.seconds = time.perf_counter() - began
        if self._process.wait() != 0:
            raise SystemExit(f"{' '.join(command)} exited with {self._process.returncode}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.batches = int(line)
            else:
                self.last_words = line.strip()

    def peak(self, field: str, first: float = 0.0, last: float = 1.0) -> int:
        """The largest value of a field between two fractions of the batches."""
        chosen = [getattr(each, field) for n, each in self.samples if first <= n / self.batches <= last]
        return max(chosen)


def memory_claims(path: Path, directory: Path, *, batches: int, batch: int = 32, memory: str = "512MiB") -> list[Claim]:
    """Run every setting in a process of its own."""
    claims: list[Claim] = []
    print(f"{'view':<6} {'import':>8} {'private':>9} {'pss':>9} {'held':>9} {'memory files':>13}  (MiB, peaks)")
    for view in VIEWS:
        cache = directory / "views"
        command = [sys.executable, str(Path(__file__)), str(path), view, str(batches), str(batch), memory]
        watch = Watch(command, {"PENSTOCK_CACHE": str(cache)})
        on_disk = sum(each.stat().st_blocks * 512 for each in cache.rglob("*") if each.is_file())
        shutil.rmtree(cache, ignore_errors=True)
        shown = [watch.baseline.private_bytes, *map(watch.peak, ("private_bytes", "pss_bytes", "held_bytes"))]
        shown.append(watch.peak("memory_file_bytes"))
        message = f"{watch.batches:,} batches of {batch} in {watch.seconds:.0f} s, {len(watch.samples):,} looks"
        message += f", {on_disk / 1e9:.1f} GB in the cache directory" if on_disk else ""
        print(
            f"{view:<6} " + " ".join(f"{n / 2**20:{w}.0f}" for n, w in zip(shown, (8, 9, 9, 9, 13), strict=True)),
            message,
        )
        print(f"       {watch.last_words}", flush=True)
        above = (watch.peak("private_bytes") - watch.baseline.private_bytes) / 2**20
        limit_mib = int(memory.removesuffix("MiB"))
        claims.append(
            Claim(f"memory={memory}, view={view}: peak private memory over imports (MiB)", above, f"<= {limit_mib}")
        )
        creep = watch.peak("private_bytes", 0.75, 1.0) / watch.peak("private_bytes", 0.25, 0.5)
        claims.append(Claim(f"view={view}: memory of the last quarter against the second (times)", creep, "<= 1.02"))
    return claims


def child() -> None:
    path, view, batches, batch, memory = sys.argv[1:]
    import cv2  # noqa: F401
    import h5py  # noqa: F401
    import numpy as np  # noqa: F401

    import penstock

    store_class, loader_class, window = penstock.open, penstock.Loader, penstock.Window()
    print("imported", flush=True)
    sys.stdin.readline()
    done = 0
    with store_class(path) as store:
        loader = loader_class(store, window, int(batch), memory=memory, view=view, threads=2, output="numpy")
        with loader:
            while done < int(batches):
                for found in loader:
                    del found
                    done += 1
                    print(done, flush=True)
                    if done == int(batches):
                        break
            counts = loader.stats()
            print(f"{counts['view_hits']:,} images from the view, {counts['images_made']:,} decoded;", *loader.notes)


if __name__ == "__main__":
    child()
