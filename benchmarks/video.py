"""What each way of keeping camera images costs: size, write speed, random-read speed, fidelity, memory.

    python benchmarks/video.py [--quick] [--compat PYTHON]

`--compat` names a Python that has lerobot and torchcodec; its reader then gets a column of its own. The images are a
camera's view wandering over photographs (scikit-image's, when it is installed; else a made texture) with sensor noise.
Speeds are per thread: every encoder gets one. The table ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from measure import Claim, finish
from numpy.typing import NDArray

from penstock._src.media.image import codec
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.index import read_index
from penstock._src.media.mp4.writer import Mp4Writer
from penstock._src.media.video import decode
from penstock._src.media.video.encode import CODECS, VideoEncoder
from penstock._src.media.video.hardware import encoder_settings

HEIGHT, WIDTH, FPS = 480, 640, 30
CAMERA_QUALITY = 90
FINE_CRF = 18  # brings H.264 near the fidelity of MJPEG q95; LeRobot's crf 30 is far below it
Rgb = NDArray[np.uint8]


@dataclass
class Row:
    """One way of keeping images, measured."""

    name: str
    path: Path
    bytes_per_frame: float
    write_fps: float
    write_cpu_ms: float
    psnr_db: float | None
    pyav_ms: float | None = None
    penstock_ms: float | None = None
    torchcodec_ms: float | None = None


def canvas() -> Rgb:
    spec = importlib.util.find_spec("skimage")
    folder = Path(spec.origin).parent / "data" if spec is not None and spec.origin else Path("/nonexistent")
    names = ["coffee.png", "astronaut.png", "chelsea.png", "motorcycle_left.png", "rocket.jpg", "hubble_deep_field.jpg"]
    found = [folder / name for name in names if (folder / name).exists()]
    if len(found) == len(names):
        print("images: photographs of scikit-image, with sensor noise", file=sys.stderr)
        tiles = [cv2.resize(codec.decode(path.read_bytes()), (WIDTH, HEIGHT)) for path in found]
        return np.asarray(np.vstack([np.hstack(tiles[:3]), np.hstack(tiles[3:])]), np.uint8)
    print("images: a made texture, with sensor noise (install scikit-image for photographs)", file=sys.stderr)
    rng = np.random.default_rng(0)
    layers = [cv2.resize(rng.normal(0, s**0.7, (1 + 960 // s, 1 + 1920 // s, 3)), (1920, 960)) for s in (2, 6, 20, 90)]
    return np.asarray(np.clip(128 + 4 * np.sum(layers, axis=0), 0, 255), np.uint8)


def images(count: int) -> list[Rgb]:
    """A camera that moves over the canvas; the noise differs in every frame, as a sensor's does."""
    rng = np.random.default_rng(1)
    background = canvas()
    noise = rng.normal(0, 3, (2 * HEIGHT, 2 * WIDTH, 3)).astype(np.int16)
    made = []
    for k in range(count):
        x = int((background.shape[1] - WIDTH) * (0.5 + 0.5 * np.sin(k / 150)))
        y = int((background.shape[0] - HEIGHT) * (0.5 + 0.5 * np.sin(k / 220 + 1)))
        dy, dx = rng.integers(0, HEIGHT), rng.integers(0, WIDTH)
        view = background[y : y + HEIGHT, x : x + WIDTH].astype(np.int16)
        made.append(np.clip(view + noise[dy : dy + HEIGHT, dx : dx + WIDTH], 0, 255).astype(np.uint8))
    return made


def timed(work: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def mean_psnr_db(path: Path, frames: list[Rgb]) -> float:
    numbers = range(0, len(frames), max(1, len(frames) // 12))
    errors = [np.mean((rgb.astype(float) - frames[k].astype(float)) ** 2) for k, rgb in decode.frames(path, numbers)]
    return float(10 * np.log10(255**2 / np.mean(errors)))


def write_jpegs(name: str, path: Path, frames: list[Rgb], encode: Callable[[Rgb], bytes] | None) -> Row:
    copied = [] if encode else [codec.encode_jpeg(rgb, CAMERA_QUALITY) for rgb in frames]

    def work() -> None:
        with Mp4Writer(path, stsd=mjpeg_stsd(WIDTH, HEIGHT), width=WIDTH, height=HEIGHT, fps=FPS) as video:
            if encode:
                for rgb in frames:
                    video.append([encode(rgb)])
            for start in range(0, len(copied), 16):
                video.append(copied[start : start + 16])

    wall_s, cpu_s = timed(work)
    row = Row(name, path, path.stat().st_size / len(frames), len(frames) / wall_s, 1e3 * cpu_s / len(frames), None)
    if encode:
        row.psnr_db = mean_psnr_db(path, frames)
    else:
        stored = read_samples(path)
        assert stored == copied, "copied JPEGs must be in the file byte for byte"
    return row


def read_samples(path: Path) -> list[bytes]:
    index = read_index(path)
    with open(path, "rb") as file:
        return [os.pread(file.fileno(), int(s), int(o)) for o, s in zip(index.offsets, index.sizes, strict=True)]


def write_encoded(codec: str, path: Path, frames: list[Rgb], crf: int | None = None) -> Row:
    settings = encoder_settings(codec, crf=crf)
    count = 0

    def work() -> None:
        nonlocal count
        with (
            VideoEncoder(settings, WIDTH, HEIGHT, FPS, threads=1) as encoder,
            Mp4Writer(path, stsd=encoder.stsd, width=WIDTH, height=HEIGHT, fps=FPS) as video,
        ):
            for batch in _batches(encoder, frames):
                video.append([sample.data for sample in batch], [sample.key for sample in batch])
                count += len(batch)

    wall_s, cpu_s = timed(work)
    assert count == len(frames), f"{codec}: {count} samples for {len(frames)} images"
    label = {"h264": "H.264", "hevc": "HEVC", "av1": "AV1"}[codec]
    name = f"{label} crf {settings.crf} g {settings.g}"
    row = Row(name, path, path.stat().st_size / count, count / wall_s, 1e3 * cpu_s / count, None)
    row.psnr_db = mean_psnr_db(path, frames)
    return row


def _batches(encoder: VideoEncoder, frames: list[Rgb]) -> Iterator[list[Any]]:
    for rgb in frames:
        yield encoder.encode(rgb)
    yield encoder.flush()


def write_parquet(path: Path, frames: list[Rgb]) -> Row:
    import pyarrow as pa
    import pyarrow.parquet as pq

    jpegs = [codec.encode_jpeg(rgb, CAMERA_QUALITY) for rgb in frames]

    def work() -> None:
        schema = pa.schema({"image": pa.struct({"bytes": pa.binary(), "path": pa.string()})})
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for start in range(0, len(jpegs), 100):
                part = [{"bytes": data, "path": None} for data in jpegs[start : start + 100]]
                writer.write_table(pa.table({"image": part}, schema=schema))

    wall_s, cpu_s = timed(work)
    name = "JPEG in parquet, copied"
    return Row(name, path, path.stat().st_size / len(frames), len(frames) / wall_s, 1e3 * cpu_s / len(frames), None)


def random_rows(count: int, reads: int) -> list[int]:
    return list(map(int, np.random.default_rng(2).integers(0, count, reads)))


def pyav_ms(path: Path, rows: list[int]) -> float:
    """As LeRobot's pyav backend reads: seek to the key frame before, decode up to the frame; the file stays open."""
    import av

    with av.open(str(path)) as container:
        stream: Any = container.streams.video[0]
        ticks = int(1 / stream.time_base) // FPS
        start = time.perf_counter()
        for row in rows:
            container.seek(row * ticks, stream=stream)
            for frame in container.decode(stream):
                if frame.pts == row * ticks:
                    frame.to_ndarray(format="rgb24")
                    break
        return 1e3 * (time.perf_counter() - start) / len(rows)


def pread_ms(path: Path, rows: list[int]) -> float:
    """As penstock reads JPEG samples: bytes by their offset, OpenCV decodes."""
    index = read_index(path)
    with open(path, "rb") as file:
        start = time.perf_counter()
        for row in rows:
            codec.decode(os.pread(file.fileno(), int(index.sizes[row]), int(index.offsets[row])))
        return 1e3 * (time.perf_counter() - start) / len(rows)


def parquet_ms(path: Path, rows: list[int]) -> float:
    import pyarrow.parquet as pq

    table = pq.read_table(path, memory_map=True)["image"]
    start = time.perf_counter()
    for row in rows:
        codec.decode(table[row]["bytes"].as_py())
    return 1e3 * (time.perf_counter() - start) / len(rows)


TORCHCODEC = """
import json, sys, time
from torchcodec.decoders import VideoDecoder
rows, paths = json.loads(sys.argv[1]), sys.argv[2:]
result = []
for path in paths:
    decoder = VideoDecoder(path, seek_mode="approximate")
    decoder.get_frames_at(indices=rows[:2])
    start = time.perf_counter()
    for row in rows:
        decoder.get_frames_at(indices=[row])
    result.append(1e3 * (time.perf_counter() - start) / len(rows))
print(json.dumps(result))
"""


def add_torchcodec(python: str, videos: list[Row], rows: list[int]) -> None:
    command = [python, "-c", TORCHCODEC, json.dumps(rows), *(str(video.path) for video in videos)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{python} could not read with torchcodec: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return
    for video, milliseconds in zip(videos, json.loads(done.stdout.splitlines()[-1]), strict=True):
        video.torchcodec_ms = milliseconds


MEMORY = """
import sys, threading
import numpy as np
from penstock._src.media.video.encode import VideoEncoder
from penstock._src.media.video.hardware import encoder_settings
codec, cameras, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
noise = np.random.default_rng(0).integers(0, 256, (480, 1280, 3), dtype=np.uint8)
def work():
    with VideoEncoder(encoder_settings(codec), 640, 480, 30, threads=1) as encoder:
        for k in range(count):
            encoder.encode(noise[:, k % 600 : k % 600 + 640])
        encoder.flush()
threads = [threading.Thread(target=work) for _ in range(cameras)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
# VmHWM belongs to this program; ru_maxrss would be that of the process that started it, when that one is larger.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def encoder_memory_mb(codec: str, cameras: int, count: int) -> float:
    command = [sys.executable, "-c", MEMORY, codec, str(cameras), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1]) * 1024 / 1e6


def copy_against_cp(folder: Path, total_bytes: int, rounds: int) -> tuple[float, float, float]:
    """Seconds, all medians: three videos of JPEG-sized samples with fsync; `cp` of as many bytes; `cp` with fsync."""
    source = folder / "source.bin"
    block = np.random.default_rng(3).bytes(4 << 20)
    with open(source, "wb") as file:
        for _ in range(total_bytes // len(block)):
            file.write(block)
    sample_bytes, batch = 87_000, 16
    view = memoryview(block)
    ours_s, cp_s, cp_fsync_s = [], [], []
    for _ in range(rounds):
        (folder / "copy.bin").unlink(missing_ok=True)
        start = time.perf_counter()
        subprocess.run(["cp", str(source), str(folder / "copy.bin")], check=True)
        cp_s.append(time.perf_counter() - start)
        with open(folder / "copy.bin", "rb") as file:
            os.fsync(file.fileno())
        cp_fsync_s.append(time.perf_counter() - start)
        paths = [folder / f"camera{k}.mp4" for k in range(3)]
        for path in paths:
            path.unlink(missing_ok=True)
        start = time.perf_counter()
        videos = [Mp4Writer(p, stsd=mjpeg_stsd(WIDTH, HEIGHT), width=WIDTH, height=HEIGHT, fps=FPS) for p in paths]
        for _ in range(total_bytes // (3 * batch * sample_bytes)):
            for k, video in enumerate(videos):
                at = k * batch * sample_bytes
                video.append([view[at + j * sample_bytes : at + (j + 1) * sample_bytes] for j in range(batch)])
        for video in videos:
            video.close()
        ours_s.append(time.perf_counter() - start)
    return statistics.median(ours_s), statistics.median(cp_s), statistics.median(cp_fsync_s)


def show(rows: list[Row]) -> None:
    header = ("kept as", "KB/frame", "write fps", "CPU ms", "PSNR dB", "PyAV ms", "torchcodec ms", "penstock ms")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        cells = [
            row.name,
            f"{row.bytes_per_frame / 1e3:.1f}",
            f"{row.write_fps:,.0f}",
            f"{row.write_cpu_ms:.2f}",
            "same bytes" if row.psnr_db is None else f"{row.psnr_db:.1f}",
            *("–" if ms is None else f"{ms:.1f}" for ms in (row.pyav_ms, row.torchcodec_ms, row.penstock_ms)),
        ]
        print("| " + " | ".join(cells) + " |")


def measure(folder: Path, quick: bool, compat: str | None) -> list[Claim]:
    frames = images(60 if quick else 300)
    reads = random_rows(len(frames), 40 if quick else 200)
    rows = [
        write_jpegs(f"MJPEG, copied (camera q{CAMERA_QUALITY})", folder / "copied.mp4", frames, None),
        write_jpegs("MJPEG q95 4:2:0", folder / "q95.mp4", frames, lambda rgb: codec.encode_jpeg(rgb, 95)),
        write_jpegs("MJPEG q95 4:4:4", folder / "q95_444.mp4", frames, lambda rgb: codec.encode_jpeg(rgb, 95, "4:4:4")),
        *(write_encoded(codec, folder / f"{codec}.mp4", frames) for codec in CODECS),
        write_encoded("h264", folder / "h264_fine.mp4", frames, crf=FINE_CRF),
    ]
    for row in rows:
        row.pyav_ms = pyav_ms(row.path, reads)
    for row in rows[:3]:
        row.penstock_ms = pread_ms(row.path, reads)
    if compat:
        add_torchcodec(compat, rows, reads)
    parquet = write_parquet(folder / "images.parquet", frames)
    parquet.penstock_ms = parquet_ms(parquet.path, reads)
    show([*rows, parquet])
    memory = {(c, n): encoder_memory_mb(c, n, 60 if quick else 240) for c in ("h264", "av1") for n in (1, 3)}
    for (name, cameras), peak_mb in memory.items():
        print(f"peak memory, {cameras} × {name} 640×480: {peak_mb:.0f} MB")
    ours_s, cp_s, cp_fsync_s = copy_against_cp(folder, 470_000_000, 5 if quick else 9)
    print(f"470 MB of copied JPEGs into three videos, with fsync: {ours_s:.3f} s")
    print(f"cp of 470 MB: {cp_s:.3f} s, with fsync {cp_fsync_s:.3f} s")
    jpeg, h264, fine = rows[1], rows[3], rows[6]
    write_ratio = fine.write_cpu_ms / jpeg.write_cpu_ms
    read_ratio = (fine.pyav_ms or 0) / (jpeg.pyav_ms or 1)
    return [
        Claim(f"CPU time to write raw images: H.264 crf {FINE_CRF} over MJPEG q95", write_ratio, ">= 2"),
        Claim(f"time of random reads through PyAV: H.264 crf {FINE_CRF} over MJPEG q95", read_ratio, ">= 1"),
        Claim("PSNR of MJPEG q95 over H.264 crf 30, dB", (jpeg.psnr_db or 0) - (h264.psnr_db or 0), ">= 2"),
        Claim("peak memory of three H.264 encoders, MB", memory["h264", 3], "<= 600"),
        Claim("peak memory of three AV1 encoders, MB", memory["av1", 3], "<= 600"),
        Claim("time of copied JPEGs into three videos over cp, both with fsync", ours_s / cp_fsync_s, "<= 1.5"),
        Claim("time of copied JPEGs into three videos with fsync over cp without", ours_s / cp_s, "<= 2"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer frames, under a minute")
    parser.add_argument("--compat", metavar="PYTHON", help="a Python with torchcodec, for LeRobot's own reader")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-video-"))
    try:
        claims = measure(folder, given.quick, given.compat)
    finally:
        shutil.rmtree(folder)
    finish(claims)
    return 0


if __name__ == "__main__":
    sys.exit(main())
