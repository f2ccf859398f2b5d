"""The data that the loading benchmarks read: a replay file, LeRobot sets, and a sparse file larger than memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from penstock._src.demo.recording import Script, write_recording
from penstock._src.demo.scene import SceneCamera, joint_angles

CAMERAS = ("left_image", "right_image", "global_image")
HEIGHT, WIDTH, FPS = 480, 640, 30
EPISODE_ROWS = 250
DISTINCT_IMAGES = 200  # per camera; making them takes longer than writing them, and a resize costs the same


def replay_file(directory: Path, rows: int) -> Path:
    """Raw contiguous HDF5, flat steps, three cameras: the layout of an offline-RL replay buffer."""
    import h5py

    path = directory / f"replay-{rows}.hdf5"
    if not path.exists():
        half_done = path.with_suffix(".part")
        with h5py.File(half_done, "w") as file:
            _write_numbers(file, rows)
            for seed, name in enumerate(CAMERAS):
                images = file.create_dataset(f"observations/{name}", (rows, HEIGHT, WIDTH, 3), np.uint8)
                scene = SceneCamera(WIDTH, HEIGHT, seed)
                distinct = np.stack([scene.frame(k / FPS) for k in range(min(rows, DISTINCT_IMAGES))])
                for first in range(0, rows, len(distinct)):
                    last = min(first + len(distinct), rows)
                    images[first:last] = distinct[: last - first]
        half_done.rename(path)
    message = f"{path.stat().st_size / 1e9:.1f} GB, {rows:,} rows, three raw {HEIGHT}×{WIDTH} cameras, contiguous"
    print(f"replay file {path.name}: {message}")
    return path


def sparse_file(directory: Path, rows: int) -> Path:
    """The same layout without anything written into the images: the file system keeps no blocks and reads zeros."""
    import h5py

    path = directory / f"sparse-{rows}.hdf5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            _write_numbers(file, rows)
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            properties.set_layout(h5py.h5d.CONTIGUOUS)
            for name in CAMERAS:
                space = h5py.h5s.create_simple((rows, HEIGHT, WIDTH, 3))
                h5py.h5d.create(file["observations"].id, name.encode(), h5py.h5t.NATIVE_UINT8, space, properties)
    status = path.stat()
    message = f"{status.st_size / 1e9:.1f} GB in {status.st_blocks * 512 / 1e6:.1f} MB of blocks, {rows:,} rows"
    print(f"sparse file {path.name}: {message}")
    return path


def _write_numbers(file: object, rows: int) -> None:
    joints = np.stack([joint_angles(k / FPS) for k in range(rows)]).astype(np.float32)
    terminals = np.zeros(rows, np.bool_)
    terminals[EPISODE_ROWS - 1 :: EPISODE_ROWS] = True
    terminals[-1] = True
    numbers = {"observations/joint": joints, "actions": joints[:, :4], "terminals": terminals}
    numbers["rewards"] = terminals.astype(np.float32)
    for name, values in numbers.items():
        file.create_dataset(name, data=values)  # type: ignore[attr-defined]


def data_set(directory: Path, seconds: float, video: str | None) -> Path:
    """A LeRobot set that `penstock convert` writes from a made recording; `video` None: as it is done by default."""
    out = directory / f"set-{seconds:.0f}s-{video or 'default'}"
    if not (out / "meta" / "info.json").exists():
        bag = directory / f"run-{seconds:.0f}s.bag"
        write_recording(bag, Script(seconds=seconds, quality=95, distinct_images=DISTINCT_IMAGES))
        words = [f"video={video}"] if video else []
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "penstock", "convert", str(bag), str(out), "--json", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        bag.unlink()
    size = sum(each.stat().st_size for each in out.rglob("*.mp4"))
    print(f"LeRobot set {out.name}: {size / 1e6:,.0f} MB, {seconds:.0f} s at {FPS} fps, three {HEIGHT}×{WIDTH} cameras")
    return out


def jpeg_frames(data: Path, most: int = 1200) -> Path:
    """The JPEG frames of a set's cameras as bare bytes in one file, for contenders that know nothing of data sets."""
    from penstock._src.media.mp4.index import read_index

    out = data.with_name(f"{data.name}.jpegs.npz")
    if not out.exists():
        paths = sorted(data.glob("videos/**/*.mp4"))
        frames: list[bytes] = []
        for path in paths:
            index = read_index(path)
            with path.open("rb") as file:
                for offset, size in zip(index.offsets[: most // len(paths)], index.sizes, strict=False):
                    file.seek(int(offset))
                    frames.append(file.read(int(size)))
        np.savez(out, data=np.frombuffer(b"".join(frames), np.uint8), sizes=[len(frame) for frame in frames])
    return out


def demonstrations(directory: Path, source: Path, rows: int) -> Path:
    """Some rows of a replay file in robomimic's layout; `next_obs` are the same images under a second name."""
    import h5py

    path = directory / f"demonstrations-{rows}.hdf5"
    if not path.exists():
        with h5py.File(source, "r") as old, h5py.File(path, "w") as new:
            data = new.create_group("data")
            data.attrs["total"] = rows
            data.attrs["env_args"] = "{}"
            demo = data.create_group("demo_0")
            demo.attrs["num_samples"] = rows
            demo.create_dataset("actions", data=old["actions"][:rows])
            demo.create_dataset("rewards", data=old["rewards"][:rows])
            demo.create_dataset("dones", data=old["terminals"][:rows].astype(np.int64))
            for name in (*CAMERAS, "joint"):
                demo.create_dataset(f"obs/{name}", data=old["observations"][name][:rows])
            demo["next_obs"] = demo["obs"]
    return path


def read_through(paths: list[Path]) -> None:
    """Bring files into the page cache."""
    block = bytearray(1 << 24)
    for path in _files(paths):
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                continue


def forget(paths: list[Path]) -> None:
    """Ask the kernel to drop files from the page cache."""
    for path in _files(paths):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages that are not on the disk yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _files(paths: list[Path]) -> list[Path]:
    return [each for path in paths for each in (sorted(path.rglob("*")) if path.is_dir() else [path]) if each.is_file()]


def need_free(directory: Path, disk_bytes: float, cache_bytes: float) -> None:
    """Stop before a disk fills, or a page cache that cannot hold the data makes the figures meaningless."""
    free = shutil.disk_usage(directory).free
    if free < disk_bytes:
        raise SystemExit(f"{directory} has {free / 1e9:.1f} GB free, {disk_bytes / 1e9:.1f} GB are needed")
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    if available < cache_bytes:
        raise SystemExit(
            f"{available / 1e9:.1f} GB of memory available, {cache_bytes / 1e9:.1f} GB are needed; --quick"
        )
