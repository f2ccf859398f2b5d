"""LeRobot's own writer on the same recording: run by benchmarks/convert.py inside an environment with lerobot.

Usage: python lerobot_writer.py video|stream BAG OUT ROWS. Prints one JSON object. Only LeRobot's work is timed: reading
and decoding a row lies between the timed calls.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import cv2
import numpy as np

from penstock import recordings
from penstock._src.recordings.values.images import ImageReader
from penstock._src.recordings.values.vectors import VectorReader


def fetch_one(recording, topic, number):  # type: ignore[no-untyped-def]
    for block in recording.fetch(np.array([topic.id], np.int32), np.array([number], np.int64)):
        payload = bytes(block.payloads[0])
        block.release()
    return memoryview(payload)


def main() -> None:
    mode, bag, out, rows = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    logging.disable(logging.CRITICAL)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with recordings.open(bag) as recording:
        cameras = [topic for topic in recording.topics if topic.type.endswith("CompressedImage")]
        joints = [recording.topic("/joint_states"), recording.topic("/joint_cmd")]
        images = {topic.name: ImageReader(recording.decoder(topic)) for topic in cameras}
        vectors = {topic.name: VectorReader(recording.decoder(topic), "position") for topic in joints}
        keys = {topic.name: "observation.images." + topic.name.split("/")[1] for topic in cameras}
        features = {
            "observation.state": {"dtype": "float32", "shape": (16,), "names": None},
            "action": {"dtype": "float32", "shape": (16,), "names": None},
        }
        for key in keys.values():
            features[key] = {"dtype": "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"]}
        options = {"streaming_encoding": True} if mode == "stream" else {"image_writer_threads": 4}
        began = time.perf_counter()
        data = LeRobotDataset.create("penstock/peer", 30, features, root=out, use_videos=True, **options)
        spent = time.perf_counter() - began
        times = {topic.name: recording.times_ns(topic) for topic in recording.topics}
        for row in range(rows):
            at = times[cameras[0].name][row]
            frame = {"task": "t"}
            for topic in recording.topics:
                payload = fetch_one(recording, topic, int(np.argmin(np.abs(times[topic.name] - at))))
                if topic.name in keys:
                    coded = np.frombuffer(images[topic.name](payload).data, np.uint8)
                    frame[keys[topic.name]] = cv2.cvtColor(cv2.imdecode(coded, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
                else:
                    key = "observation.state" if topic.name == "/joint_states" else "action"
                    frame[key] = vectors[topic.name](payload).astype(np.float32)
            began = time.perf_counter()
            data.add_frame(frame)
            spent += time.perf_counter() - began
        began = time.perf_counter()
        data.save_episode()
        data.finalize()
        spent += time.perf_counter() - began
    print(json.dumps({"seconds": spent, "rows": rows}))


main()
