"""Depth cameras in every packing: time, size and memory of keeping their values exactly, and whether they come back.

    python benchmarks/depth.py [--quick]

One recording per packing, 640×480, of a slanted scene with sensor noise and holes. Time: whole commands, start-up
included. Memory: peak RSS of the process tree, beside what penstock predicted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measure import Claim, finish, run

from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.image.depth import decode
from penstock._src.recordings.ros1.writer import BagWriter
from tests.media import depths

HEIGHT, WIDTH, FPS = 480, 640, 30
DISTINCT = 20  # images that are made; the recording repeats them
KEY = "observation.images.cam_depth"
_HEADER = "std_msgs/Header header\n"
_HEADER_TEXT = "\n" + "=" * 80 + "\nMSG: std_msgs/Header\nuint32 seq\ntime stamp\nstring frame_id\n"
_IMAGE = "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
IMAGE = ("sensor_msgs/Image", _HEADER + _IMAGE + _HEADER_TEXT)
COMPRESSED = ("sensor_msgs/CompressedImage", _HEADER + "string format\nuint8[] data" + _HEADER_TEXT)

Pack = Callable[[np.ndarray], bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter recordings, under a minute")
    rows = 150 if parser.parse_args().quick else 900
    whole = [_scene(number) for number in range(DISTINCT)]
    floats = [np.where(each == 0, np.nan, each / 1000.0).astype(np.float32) for each in whole]
    folder = Path(tempfile.mkdtemp(prefix="penstock-depth-"))
    claims: list[Claim] = []
    print(f"{rows} rows of {WIDTH}×{HEIGHT}, one depth camera\n")
    print(
        f"{'recorded as':<22}{'in MB':>8}{'out MB':>8}{'seconds':>9}{'rows/s':>8}{'peak MB':>9}{'predicted':>11}  exact"
    )
    try:
        for name, values, kind, pack, words in (
            ("compressedDepth PNG", whole, COMPRESSED, lambda p: _compressed(depths.packed_png(p), "png"), ()),
            ("compressedDepth RVL", whole, COMPRESSED, lambda p: _compressed(depths.packed_rvl(p), "rvl"), ()),
            ("raw 16UC1", whole, IMAGE, lambda p: _image(p, "16UC1"), ()),
            ("raw 32FC1", floats, IMAGE, lambda p: _image(p, "32FC1"), ()),
            ("16UC1, 8 bits", whole, IMAGE, lambda p: _image(p, "16UC1"), ("depth=8bit", "depth_range=[400,4000]")),
        ):
            claims += _measured(folder, name, values, kind, pack, words, rows)
    finally:
        shutil.rmtree(folder)
    finish(claims)


def _measured(
    folder: Path,
    name: str,
    values: list[np.ndarray],
    kind: tuple[str, str],
    pack: Pack,
    words: tuple[str, ...],
    rows: int,
) -> list[Claim]:
    bag, out = folder / "run.bag", folder / "out"
    topic = "/cam/depth/image_raw" + ("/compressedDepth" if kind is COMPRESSED else "")
    packed = [pack(each) for each in values]
    with BagWriter(bag) as writer:
        number = writer.add_topic(topic, *kind, "0" * 32)
        for row in range(rows):
            writer.write(number, 1_700_000_000_000_000_000 + row * 10**9 // FPS, packed[row % DISTINCT])
    result = run(
        [sys.executable, "-m", "penstock", "convert", str(bag), str(out), "--json", "--memory", "512MiB", *words]
    )
    report = json.loads(result.output)
    claims = [Claim(f"{name}: peak RSS against the prediction (times)",
                    result.peak_rss_bytes / report["predicted_peak_bytes"], "<= 1.15")]  # fmt: skip
    exact = "–"
    if not words:
        data = open_data_set(out)
        batches = (batch for file in data.data_files for _, batch in data.batches(file, [KEY], 64))
        images = (image for batch in batches for image in batch[KEY])
        wrong = sum(
            decode(image).tobytes() != values[row % DISTINCT].tobytes()
            for row, image in enumerate(images)
            if row % 7 == 0
        )
        exact = "yes" if wrong == 0 else "NO"
        claims.append(Claim(f"{name}: rows whose values differ from the recorded ones", wrong, "<= 0"))
    size, stored = bag.stat().st_size / 1e6, report["bytes_out"] / 1e6
    print(
        f"{name:<22}{size:>8.1f}{stored:>8.1f}{result.seconds:>9.2f}{rows / result.seconds:>8.0f}"
        f"{result.peak_rss_bytes / 1e6:>9.1f}{report['predicted_peak_bytes'] / 1e6:>11.1f}  {exact}"
    )
    bag.unlink()
    shutil.rmtree(out)
    return claims


def _scene(number: int) -> np.ndarray:
    """As a structured-light camera sees it: noise that grows with the distance, shadows without a reading."""
    rng = np.random.default_rng(number)
    depth = depths.millimetres(number, HEIGHT, WIDTH).astype(np.float64)
    depth = np.where(depth == 65_535, 4000, 600 + (depth % 4000) * 0.6)
    depth += rng.normal(0, 1, depth.shape) * (depth / 1000) ** 2 * 2
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    depth[((x - 200 - number) ** 2 + (y - 240) ** 2 < 3600) | (x < 12)] = 0
    return depth.round().astype(np.uint16)


def _image(pixels: np.ndarray, encoding: str) -> bytes:
    height, width = pixels.shape
    head = bytes(12) + _text("") + struct.pack("<II", height, width) + _text(encoding) + b"\0"
    return head + struct.pack("<II", width * pixels.itemsize, pixels.nbytes) + pixels.tobytes()


def _compressed(data: bytes, form: str) -> bytes:
    return bytes(12) + _text("") + _text(f"16UC1; compressedDepth {form}") + struct.pack("<I", len(data)) + data


def _text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


if __name__ == "__main__":
    main()
