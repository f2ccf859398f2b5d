"""One part of penstock, or the library that could stand in its place, at one piece of work: what `parts.py` starts.

    python benchmarks/parts_child.py WORK WHO SOURCE OUT

The work is done six times, and the median of the last five counts: imports and code that is made at first use are in
the first. Prints one JSON object: `seconds` and `cpu_seconds` of the work, `added_bytes`, the peak of this process over
what it held after the first, and `result`, which has to be the same for all that do one work.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

CAMERA = "/cam_h/color/image_raw/compressed"
FRAMES_AT_ONCE = 32  # about what a conversion gets in one block
WIDTH, HEIGHT, FPS = 640, 480, 30
REPEATS = 5

Work = Callable[[], Any]


# MP4: samples that exist already go into a file


def _frames(source: Path) -> Iterator[list[bytes]]:
    """Samples that lie one after the other in a file, whose sizes lie beside it; some at once."""
    sizes = np.load(source.with_suffix(".npy")).tolist()
    with open(source, "rb") as file:
        for first in range(0, len(sizes), FRAMES_AT_ONCE):
            yield [file.read(size) for size in sizes[first : first + FRAMES_AT_ONCE]]


def mp4_jpeg_penstock(source: Path, out: Path) -> Work:
    from penstock._src.media.mp4.boxes import mjpeg_stsd
    from penstock._src.media.mp4.writer import Mp4Writer

    def work() -> int:
        with Mp4Writer(out, stsd=mjpeg_stsd(WIDTH, HEIGHT), width=WIDTH, height=HEIGHT, fps=FPS) as video:
            for frames in _frames(source):
                video.append(frames)
            count = video.samples
        return count

    return work


def mp4_jpeg_pyav(source: Path, out: Path) -> Work:
    import av

    time_base = Fraction(1, FPS * 512)

    def work() -> int:
        count = 0
        with av.open(str(out), "w", format="mp4") as container:
            stream = container.add_mux_stream("mjpeg", rate=FPS, width=WIDTH, height=HEIGHT)
            for frames in _frames(source):
                for frame in frames:
                    packet = av.Packet(frame)
                    packet.stream, packet.is_keyframe = stream, True
                    packet.pts = packet.dts = count * 512
                    packet.duration, packet.time_base = 512, time_base
                    container.mux(packet)
                    count += 1
        _to_disk(out)
        return count

    return work


def mp4_h264_penstock(source: Path, out: Path) -> Work:
    from penstock._src.media.mp4.index import read_index
    from penstock._src.media.mp4.writer import Mp4Writer

    def work() -> int:
        index = read_index(source)
        shape = {"width": index.width, "height": index.height, "fps": FPS, "timescale": index.timescale}
        fd = os.open(source, os.O_RDONLY)
        with Mp4Writer(out, stsd=index.description, **shape) as video:
            for first in range(0, index.count, FRAMES_AT_ONCE):
                part = slice(first, first + FRAMES_AT_ONCE)
                places = zip(index.sizes[part].tolist(), index.offsets[part].tolist(), strict=True)
                video.append([os.pread(fd, size, offset) for size, offset in places], index.key[part].tolist())
        os.close(fd)
        return index.count

    return work


def mp4_h264_pyav(source: Path, out: Path) -> Work:
    import av

    def work() -> int:
        count = 0
        with av.open(str(source)) as container, av.open(str(out), "w", format="mp4") as made:
            stream = made.add_stream_from_template(container.streams.video[0])
            for packet in container.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    made.mux(packet)
                    count += 1
        _to_disk(out)
        return count

    return work


def _to_disk(path: Path) -> None:
    """As penstock's writer does when it closes."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


# Recordings: all topics with all times; all payloads of a camera


def index_penstock(source: Path, out: Path) -> Work:
    from penstock import recordings

    def work() -> dict[str, list[int]]:
        with recordings.open(source) as recording:
            return {each.name: [each.count, int(recording.times_ns(each).sum() % 2**53)] for each in recording.topics}

    return work


def payloads_penstock(source: Path, out: Path) -> Work:
    from penstock import recordings

    def work() -> list[int]:
        count = n_bytes = 0
        with recordings.open(source) as recording:
            topic = recording.topic(CAMERA)
            for block in recording.fetch(np.full(topic.count, topic.id, np.int32), np.arange(topic.count)):
                count += len(block)
                n_bytes += sum(map(len, block.payloads))
                block.release()
        return [count, n_bytes]

    return work


def _rosbags_reader(source: Path) -> Any:
    if source.suffix == ".bag":
        from rosbags.rosbag1 import Reader

        return Reader(source)
    from rosbags.rosbag2 import Reader as Reader2

    return Reader2(source)


def index_rosbags(source: Path, out: Path) -> Work:
    """It gives times only with the messages."""

    def work() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        with _rosbags_reader(source) as reader:
            for connection, time_ns, _ in reader.messages():
                _add(found, connection.topic, time_ns)
        return found

    return work


def payloads_rosbags(source: Path, out: Path) -> Work:
    def work() -> list[int]:
        with _rosbags_reader(source) as reader:
            wanted = [each for each in reader.connections if each.topic == CAMERA]
            sizes = [len(data) for _, _, data in reader.messages(connections=wanted)]
        return [len(sizes), sum(sizes)]

    return work


def index_mcap(source: Path, out: Path) -> Work:
    from mcap.reader import make_reader

    def work() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        with open(next(source.glob("*.mcap")), "rb") as file:
            for _, channel, message in make_reader(file).iter_messages(log_time_order=False):
                _add(found, channel.topic, message.log_time)
        return found

    return work


def payloads_mcap(source: Path, out: Path) -> Work:
    from mcap.reader import make_reader

    def work() -> list[int]:
        with open(next(source.glob("*.mcap")), "rb") as file:
            found = make_reader(file).iter_messages(topics=[CAMERA], log_time_order=False)
            sizes = [len(message.data) for _, _, message in found]
        return [len(sizes), sum(sizes)]

    return work


def _add(found: dict[str, list[int]], topic: str, time_ns: int) -> None:
    each = found.setdefault(topic, [0, 0])
    each[0] += 1
    each[1] = (each[1] + time_ns) % 2**53


# Messages: all values of each, and the one vector that a conversion takes


def _messages(source: Path, topic: str) -> tuple[Any, list[bytes]]:
    """The decoder and the payloads of a topic."""
    from penstock import recordings

    payloads: list[bytes] = []
    with recordings.open(source) as recording:
        found = recording.topic(topic)
        for block in recording.fetch(np.full(found.count, found.id, np.int32), np.arange(found.count)):
            payloads += map(bytes, block.payloads)
            block.release()
        return recording.decoder(found), payloads


def decode_penstock(source: Path, out: Path, topic: str, path: str) -> Work:
    decoder, payloads = _messages(source, topic)
    return lambda: _digest(_at(decoder.decode(payload), path) for payload in payloads)


def take_penstock(source: Path, out: Path, topic: str, path: str) -> Work:
    decoder, payloads = _messages(source, topic)
    read = decoder.reader([path])
    return lambda: _digest(read(payload)[0] for payload in payloads)


def decode_rosbags(source: Path, out: Path, topic: str, path: str) -> Work:
    """It decodes whole messages only."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    _, payloads = _messages(source, topic)
    store = get_typestore(Stores.ROS2_HUMBLE)
    with _rosbags_reader(source) as reader:
        connection = next(each for each in reader.connections if each.topic == topic)
        if connection.msgtype not in store.types:
            store.register(get_types_from_msg(connection.msgdef.data, connection.msgtype))

    def work() -> str:
        return _digest(_at(store.deserialize_cdr(each, connection.msgtype), path) for each in payloads)

    return work


take_rosbags = decode_rosbags


def _at(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = message[name] if isinstance(message, dict) else getattr(message, name)
    return message


def _digest(values: Iterator[Any]) -> str:
    """That every value was really made; long arrays by their ends."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, (int, float)):
            digest.update(b"%r" % float(value))
        else:
            data = memoryview(value).cast("B")
            digest.update(data[:64])
            digest.update(data[-64:])
    return digest.hexdigest()[:16]


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    work, who, source, out, *options = sys.argv[1:]
    do = globals()[f"{work}_{who}"](Path(source), Path(out), *options)
    result = do()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    floor_bytes = _memory_bytes("VmRSS")
    times: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        Path(out).unlink(missing_ok=True)
        began, cpu_began = time.perf_counter(), time.process_time()
        do()
        times.append((time.perf_counter() - began, time.process_time() - cpu_began))
    seconds, cpu_seconds = (statistics.median(each) for each in zip(*times, strict=True))
    added_bytes = max(_memory_bytes("VmHWM") - floor_bytes, 0)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "added_bytes": added_bytes, "result": result}))


if __name__ == "__main__":
    main()
