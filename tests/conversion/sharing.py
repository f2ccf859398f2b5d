"""Recordings that make several groups of 1 MB, for conversions that machines share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from penstock._src.conversion.job import new_job, shared_settings
from penstock._src.conversion.report import MemoryStage, NoProgress, Report
from penstock._src.conversion.settings import read_settings
from penstock._src.conversion.shards.commit import commit
from penstock._src.conversion.shards.shard import ShardReport, convert_shard
from penstock.errors import Interrupted
from tests.conversion import bags
from tests.conversion.bags import CAM_H, CAM_L, STATE, Jpeg

SETTINGS: dict[str, Any] = {"task": "fold", "split_episodes": True, "rosbag": {"chunk_size": 5}, "fps": 30}
FILES = {"group_mb": 1, "data_mb": 1}
FRAMES = (14, 6, 6, 15, 5, 12, 4)  # 75 kB each: the groups of 1 MB are 0, 1+2, 3, 4, 5+6 or so


@lru_cache(maxsize=256)
def noise(number: int, seed: int) -> bytes:
    """An image of about 80 kB."""
    rng = np.random.default_rng(1000 * seed + number)
    pixels = rng.integers(0, 256, (160, 240, 3)).astype(np.uint8)
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 97])
    assert done
    return data.tobytes()


def tape(frames: int, seed: int) -> list[bags.Message]:
    at = bags.times(30, frames / 30)
    high = bags.messages(CAM_H, at, lambda n: Jpeg(noise(n, seed)))
    low = bags.camera(CAM_L, at, seed=seed)
    return high + low + bags.joints(STATE, bags.times(60, frames / 30), seed=seed)


def make_recordings(directory: Path, frames: tuple[int, ...] = FRAMES) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    return [bags.write(directory / f"run_{seed}.bag", tape(each, seed)) for seed, each in enumerate(frames)]


def run_shard(
    sources: list[Path], out: Path | str, shard: str, *, append: bool = False, overwrite: bool = False, **more: Any
) -> ShardReport:
    """What `penstock convert … --shard` does."""
    values = {**SETTINGS, "files": FILES, **more}
    keep_going, jobs = bool(values.pop("keep_going", False)), values.pop("jobs", 1)
    settings = read_settings(None, [], values)
    job = new_job(
        sources,
        out,
        settings if append else shared_settings(settings),
        memory="1GiB",
        jobs=jobs,
        strict=False,
        keep_going=keep_going,
        progress=None,
    )
    command = f"penstock convert in {out}"
    return convert_shard(job, shard, append=append, overwrite=overwrite, command=command)


def share_out(sources: list[Path], out: Path | str, shards: int = 2, **more: Any) -> Report:
    """All shards, the last one first, and the commit."""
    for number in reversed(range(shards)):
        run_shard(sources, out, f"{number}/{shards}", **more)
    return commit(out, memory="1GiB")


class StopAfter(NoProgress):
    """Ends the job as Ctrl-C does, once so many rows are through."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def stage(self, stage: MemoryStage) -> None:
        if stage.at.startswith("row") and int(stage.at.split()[1].replace(",", "")) >= self._rows:
            raise Interrupted("interrupted")


def local(sources: list[Path], out: Path, **more: Any) -> dict[str, Any]:
    """The arguments of the same conversion on one machine."""
    words = {"sources": [str(path) for path in sources], "out": str(out), "jobs": 1, "memory": "1GiB"}
    return {**words, **SETTINGS, "files": FILES, **more}
