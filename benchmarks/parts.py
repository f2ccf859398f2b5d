"""Parts that penstock writes itself against the libraries that could stand in their place: is each worth its lines?

    python benchmarks/parts.py [--quick] [--only TEXT] [--rounds N] [--keep DIR]

The MP4 writer against PyAV's muxer; the readers of bag, db3 and mcap against rosbags and mcap; message decoding against
rosbags. Each does the same work on the same made data in a process of its own, in turns, everything in the page cache;
the median counts. Memory is the peak of the work over what the process held before. The time is without imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, finish, run
from parts_child import CAMERA, FPS, HEIGHT, WIDTH

from penstock._src.demo.recording import Script, write_recording

CHILD = Path(__file__).resolve().parent / "parts_child.py"
POSE, MARKS = "/pose", "/marks"
MARK_TYPE = "parts_msgs/msg/Marks"
MARK_TEXT = "std_msgs/Header header\nstring label\nuint16[4] box\nfloat32[] scores\ngeometry_msgs/Pose[] poses\n"
JOINTS = "/joint_states"


@dataclass(frozen=True)
class Part:
    """One work: what it is called, its data, and who does it beside penstock."""

    name: str
    work: str
    source: Path
    peers: tuple[str, ...]
    bar: float
    """So many times the peer's speed at least, or the part had better go."""
    options: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--rounds", type=int, default=None, help="how often all take turns")
    parser.add_argument("--only", default="", metavar="TEXT", help="only parts whose names hold this")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-parts-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        parts = _parts(directory, 10.0 if args.quick else 60.0)
        rounds = args.rounds or (3 if args.quick else 9)
        print(f"\n{'part':<38}{'who':<10}{'seconds':>10}{'of CPU':>10}{'MB':>8}   {'against penstock':<18}")
        wanted = [part for part in parts if args.only in part.name]
        finish([claim for part in wanted for claim in _compared(part, directory, rounds)])
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _parts(directory: Path, seconds: float) -> list[Part]:
    bag = directory / "run.bag"
    if not bag.exists():
        write_recording(bag, Script(seconds=seconds, quality=90, distinct_images=120))
    db3, mcap = (_ros2(bag, directory / f"run_{kind}", kind) for kind in ("SQLITE3", "MCAP"))
    jpegs = _jpegs(bag, directory / "frames.bin")
    video = _h264(directory / "frames.mp4", int(seconds * FPS))
    print(
        f"{seconds:.0f} s of three 640×480 cameras and joints, {bag.stat().st_size / 1e6:,.0f} MB, as bag, db3 and mcap"
    )
    readers = [("bag", bag, ("rosbags",)), ("db3", db3, ("rosbags",)), ("mcap", mcap, ("rosbags", "mcap"))]
    taken = [("JointState", JOINTS, "position"), ("PoseStamped", POSE, "pose.position.x"),
             ("CompressedImage", CAMERA, "data"), ("custom", MARKS, "scores")]  # fmt: skip
    return [
        Part("MP4 of JPEGs", "mp4_jpeg", jpegs, ("pyav",), 1.0),
        Part("MP4 of H.264, moved", "mp4_h264", video, ("pyav",), 1.0),
        *(Part(f"{name}: topics and times", "index", path, peers, 1.2) for name, path, peers in readers),
        *(Part(f"{name}: payloads of a camera", "payloads", path, peers, 1.2) for name, path, peers in readers),
        *(Part(f"{name}: {field}", "take", mcap, ("rosbags",), 1.2, (topic, field)) for name, topic, field in taken),
        *(Part(f"{name}: all", "decode", mcap, ("rosbags",), 0.8, (topic, field)) for name, topic, field in taken),
    ]


def _compared(part: Part, directory: Path, rounds: int) -> list[Claim]:
    """A line of the table for each who does the work, and a claim for each peer."""
    found: dict[str, list[dict[str, Any]]] = {who: [] for who in ("penstock", *part.peers)}
    for _ in range(rounds):
        for who, each in found.items():
            out = directory / "out.mp4"
            out.unlink(missing_ok=True)
            words = [part.work, who, str(part.source), str(out), *part.options]
            each.append(json.loads(run([sys.executable, str(CHILD), *words], memory=False).output))
    results = {who: each[0]["result"] for who, each in found.items()}
    if any(result != results["penstock"] for result in results.values()):
        raise SystemExit(f"{part.name}: the results differ: {results}")
    ours_s = _median(found["penstock"], "seconds")
    for who, each in found.items():
        seconds, cpu, added = (_median(each, name) for name in ("seconds", "cpu_seconds", "added_bytes"))
        times = "" if who == "penstock" else f"{seconds / ours_s:.2f}× the time"
        name = part.name if who == "penstock" else ""
        print(f"{name:<38}{who:<10}{seconds:>10.4f}{cpu:>10.4f}{added / 1e6:>8.1f}   {times}")
    return [
        Claim(f"{part.name}: time of {who} over penstock's", _median(found[who], "seconds") / ours_s, f">= {part.bar}")
        for who in part.peers
    ]


def _median(runs: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(each[name] for each in runs)


# The data


def _ros2(bag: Path, target: Path, plugin: str) -> Path:
    """The bag as ROS 2 records it, by rosbags' own writer, with poses and messages of a type of its own beside."""
    from rosbags.rosbag1 import Reader
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    if target.exists():
        return target
    ros2 = get_typestore(Stores.ROS2_HUMBLE)
    ros2.register(get_types_from_msg(MARK_TEXT, MARK_TYPE))
    with Reader(bag) as reader, Writer(target, version=9, storage_plugin=StoragePlugin[plugin]) as writer:
        added = {
            each.id: writer.add_connection(each.topic, each.msgtype, typestore=ros2) for each in reader.connections
        }
        pose = writer.add_connection(POSE, "geometry_msgs/msg/PoseStamped", typestore=ros2)
        marks = writer.add_connection(MARKS, MARK_TYPE, typestore=ros2)
        for number, (connection, time_ns, data) in enumerate(reader.messages()):
            writer.write(added[connection.id], time_ns, bytes(ros2.ros1_to_cdr(data, connection.msgtype)))
            if connection.topic == JOINTS:
                writer.write(pose, time_ns, _cdr(ros2, "geometry_msgs/msg/PoseStamped", time_ns, number))
                writer.write(marks, time_ns, _cdr(ros2, MARK_TYPE, time_ns, number))
    return target


def _cdr(store: Any, kind: str, time_ns: int, number: int) -> bytes:
    types = {name.rpartition("/")[2]: each for name, each in store.types.items() if "/msg/" in name}
    stamp = types["Time"](sec=time_ns // 10**9, nanosec=time_ns % 10**9)
    header = types["Header"](stamp=stamp, frame_id="base_link")
    place = types["Point"](x=number * 1e-3, y=0.5, z=-0.5)
    pose = types["Pose"](position=place, orientation=types["Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0))
    if kind == MARK_TYPE:
        scores = np.arange(number, number + 12, dtype=np.float32)
        message = types["Marks"](header=header, label="cup", box=np.arange(4, dtype=np.uint16), scores=scores,
                                 poses=[pose] * 3)  # fmt: skip
    else:
        message = types["PoseStamped"](header=header, pose=pose)
    return bytes(store.serialize_cdr(message, kind))


def _jpegs(bag: Path, target: Path) -> Path:
    """The images of one camera, one after the other; their sizes beside."""
    from penstock import recordings

    sizes: list[int] = []
    with recordings.open(bag) as recording, open(target, "wb") as file:
        topic = recording.topic(CAMERA)
        read = recording.decoder(topic).reader(["data"])
        for block in recording.fetch(np.full(topic.count, topic.id, np.int32), np.arange(topic.count)):
            for payload in block.payloads:
                if payload is not None:
                    sizes.append(file.write(read(payload)[0]))
            block.release()
    np.save(target.with_suffix(".npy"), sizes)
    return target


def _h264(target: Path, count: int) -> Path:
    """A video as a data set has it, by PyAV."""
    import av

    if target.exists():
        return target
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    with av.open(str(target), "w") as container:
        stream = container.add_stream(
            "libx264", rate=FPS, options={"crf": "23", "preset": "ultrafast", "g": "2", "bf": "0"}
        )
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 8 * number, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return target


if __name__ == "__main__":
    main()
