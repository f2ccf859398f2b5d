"""What lies in a data set, read with pyarrow and the MP4 index alone: columns, JPEG samples, all files as digests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock._src.media.mp4.index import read_index

REPORT = "penstock/report.json"


def info(out: Path) -> dict[str, Any]:
    return json.loads((out / "meta/info.json").read_text())


def table(out: Path) -> pa.Table:
    """All rows, files in the order of their names."""
    files = sorted((out / "data").rglob("*.parquet"))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files])


def episodes(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "meta/episodes").rglob("*.parquet"))
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files]).to_pylist()


def values(out: Path, key: str) -> np.ndarray:
    """A numeric column as (rows, dimensions)."""
    column = table(out).column(key).to_pylist()
    return np.array(column).reshape(len(column), -1)


def video_files(out: Path, key: str) -> list[Path]:
    return sorted((out / "videos" / key).rglob("*.mp4"))


def samples(out: Path, key: str) -> list[bytes]:
    """Every frame's bytes, in the order of the rows."""
    found = []
    for file in video_files(out, key):
        index = read_index(file)
        data = file.read_bytes()
        found += [data[at : at + size] for at, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)]
    return found


def digests(out: Path) -> dict[str, str]:
    """Every file but penstock's own, which name the source and the time it took."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.relative_to(out).parts[0] != "penstock"
    }


def problems(out: Path, *, full: bool = False) -> list[str]:
    """What doctor finds."""
    from penstock._src.lerobot.check.dataset import check

    return [f"{problem.where}: {problem.message}" for problem in check(out, full=full).problems]
