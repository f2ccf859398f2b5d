"""A toy output, as a third party would write one: a JSON line per row, and the frames of a camera one after the other.

episode-000000.jsonl           rows
episode-000000.cam.frames      frames: 4 bytes of length, then the bytes
index.json                     written last: episodes, tasks, statistics
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from penstock.errors import DataSetError
from penstock.sinks import Description


@dataclass(frozen=True)
class Finished:
    place: Mapping[str, Any]
    size_bytes: int
    kept: None = None


class ToyVideo:
    def __init__(self, file: BinaryIO) -> None:
        self.frames = 0
        self._file = file
        self._last = b""

    def set_codec(self, stsd: bytes, info: Mapping[str, Any]) -> None:
        raise DataSetError(f"the toy output holds JPEG images, not {info['video.codec']}", hint="add video=copy")

    def append_encoded(self, samples: Sequence[Any], encoder: Any) -> None:
        self.set_codec(encoder.stsd, encoder.info)

    def append(
        self,
        pieces: Sequence[bytes | memoryview],
        keys: Sequence[bool] | None = None,
        *,
        shifts: Sequence[int] | None = None,
        checked: bool = False,
    ) -> None:
        for piece in pieces:
            self._last = bytes(piece)
            self._file.write(len(piece).to_bytes(4, "big") + self._last)
        self.frames += len(pieces)

    def repeat(self, count: int = 1) -> None:
        self.append([self._last] * count)


class ToyEpisode:
    def __init__(self, root: Path, episode_index: int, cameras: Sequence[str], names: Any) -> None:
        self._names = names
        self._rows = root / f"episode-{episode_index:06d}.jsonl"
        paths = {key: self._rows.with_suffix(f".{key.split('.')[-1]}.frames") for key in cameras}
        self._files = {path: path.open("wb") for path in (self._rows, *paths.values())}
        self._videos = {key: ToyVideo(self._files[path]) for key, path in paths.items()}

    def write_rows(self, columns: Mapping[str, Any]) -> None:
        kill_at = int(os.environ.get("TOY_KILLED_AT_ROW", "-1"))
        for row in range(len(columns["index"])):
            values = {key: _plain(column[row]) for key, column in columns.items()}
            self._files[self._rows].write(json.dumps(values).encode() + b"\n")
            if values["index"] == kill_at:
                os.kill(os.getpid(), 9)

    def video(self, key: str) -> ToyVideo:
        return self._videos[key]

    def finish(self) -> Finished:
        sizes = {}
        for path, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            sizes[path.name] = file.tell()
            file.close()
            self._names.add(path)
        return Finished({"files": sizes}, sum(sizes.values()))

    def discard(self) -> None:
        self.leave()
        for path in self._files:
            path.unlink()

    def leave(self) -> None:
        for file in self._files.values():
            file.close()


class ToySink:
    holds_statistics = False

    def __init__(self, root: Path, description: Description, names: Any) -> None:
        self._root = root
        self._cameras = [feature.key for feature in description.cameras]
        self._names = names
        self._known: set[str] = set()

    def begin_episode(self, episode_index: int, rows: int | None) -> ToyEpisode:
        return ToyEpisode(self._root, episode_index, self._cameras, self._names)

    def sync(self, *, closing: bool) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def settle(self) -> None: ...

    def close(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        tables: Mapping[str, Sequence[str]],
        stats: Mapping[str, Any],
        episodes: int,
        frames: int,
    ) -> None:
        kept = [{key: record[key] for key in ("tasks", "first_row", "rows", "files", "stats")} for record in records]
        index = {"rows": frames, "tasks": tables["tasks"], "stats": stats, "episodes": kept}
        (self._root / "index.json").write_text(json.dumps(index))

    def closed(self) -> None: ...

    def leave(self) -> None: ...

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        for record in records:
            for name, size_bytes in record["files"].items():
                if (self._root / name).stat().st_size != size_bytes:
                    raise DataSetError(f"{self._root / name}: not as it was committed")
                self._known.add(name)

    def reopen(self) -> None: ...

    def restore(self, state: Mapping[str, Any] | None) -> None:
        for path in (*self._root.glob("episode-*"), *self._root.glob("index.json")):
            if path.name not in self._known:
                path.unlink()

    def grows(self, last: Mapping[str, Any]) -> Iterable[str]:
        return ()

    def name_in_copy(self, relative: str) -> str | None:
        return None if relative == "index.json" else relative


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return base64.b64encode(value).decode()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
