"""What a run knows of itself, in a file of its local directory: what it read in the bucket, the chunks that it took."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock._src.conversion.bucket.place import BucketSet, describe_run, numbers_in
from penstock._src.lerobot import layout
from penstock._src.system.cache_directory import cache_directory

_RUN_NAME, _DONE_NAME, _ROOT_NAME = "run.json", "uploaded.jsonl", "set"


def directory_of(url: object) -> Path:
    """Where the conversion to a URL is built on this machine."""
    name = str(url).rstrip("/").rpartition("/")[2]
    return cache_directory() / "outputs" / f"{name}-{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"


@dataclass(eq=False)
class Run:
    """One conversion into a bucket, from its start to the version that it makes."""

    directory: Path
    base: str | None = None  # the ETag of meta/info.json that it replaces; None where there was none
    appends: bool = False
    episodes_before: int = 0  # of the version that it appends to
    chunks: list[int] = field(default_factory=list)  # that it took
    asked: int | None = None  # the chunk that it asked for last
    is_converted: bool = False  # all that is left is to bring files to the bucket
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def root(self) -> Path:
        """The data set that is built."""
        return self.directory / _ROOT_NAME

    @property
    def done_path(self) -> Path:
        return self.directory / _DONE_NAME

    @property
    def number(self) -> int:
        """Of the version that it makes."""
        return self.chunks[0]

    @staticmethod
    def load(directory: Path) -> Run | None:
        """The run that was begun here; None where there is none."""
        try:
            tree = json.loads((directory / _RUN_NAME).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return Run(directory, **tree)

    def save(self) -> None:
        tree = asdict(self)
        del tree["directory"]
        layout.write_text_durably(self.directory / _RUN_NAME, json.dumps(tree), fsync=True)

    def numbering(self, place: BucketSet) -> layout.Chunks:
        """The chunks of this run; the first one, and each that is needed, is taken for it."""
        if not self.chunks:
            self._take(place)
        return layout.Chunks(self.number, lambda chunk: self._after(place, chunk))

    def _after(self, place: BucketSet, chunk: int) -> int:
        if chunk == self.chunks[-1]:
            self._take(place)
        return self.chunks[self.chunks.index(chunk) + 1]

    def _take(self, place: BucketSet) -> None:
        """Take a chunk behind all others. Killed in between, the same one is asked for again."""
        described = describe_run(self.run_id, self.base)
        if self.asked is None or self.asked in self.chunks:
            self.asked = max(numbers_in(place.list_files()), default=-1) + 1
            self.save()
        while not place.take_chunk(self.asked, described):
            self.asked += 1
            self.save()
        self.chunks.append(self.asked)
        self.save()
