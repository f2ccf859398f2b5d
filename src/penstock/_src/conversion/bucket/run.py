"""What a run knows of itself, in a file of its local directory: what it read in the bucket, the chunks that it took."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock._src.conversion.bucket.place import BucketSet, describe_run
from penstock._src.lerobot import layout
from penstock._src.system.cache_directory import cache_directory

_RUN_NAME, _DONE_NAME, _ROOT_NAME = "run.json", "uploaded.jsonl", "set"


def directory_of(url: object) -> Path:
    """Where the conversion to a URL is built on this machine."""
    name = str(url).rstrip("/").rpartition("/")[2]
    return cache_directory() / "outputs" / f"{name}-{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Shared:
    """What the machines that write a run together agree on; whoever commits it is a run of its own for the rest."""

    work: str  # where their results lie
    base: str | None  # as that of the run
    appends: bool
    first: int  # of the chunks for its files: each group of inputs has its own for videos
    last: int
    first_group: int

    @property
    def group_shift(self) -> int:
        """From the number of a group to its chunk."""
        return self.first - self.first_group


@dataclass(eq=False)
class BucketRun:
    """One conversion into a bucket, from its start to the version that it makes."""

    directory: Path
    base: str | None = None  # the ETag of meta/info.json that it replaces; None where there was none
    appends: bool = False
    episodes_before: int = 0  # of the version that it appends to
    chunks: list[int] = field(default_factory=list)  # that it took
    asked: int | None = None  # the chunk that it asked for last
    is_converted: bool = False  # all that is left is to bring files to the bucket
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared: Shared | None = None

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
    def load(directory: Path) -> BucketRun | None:
        """The run that was begun here; None where there is none."""
        try:
            tree = json.loads((directory / _RUN_NAME).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        shared = tree.pop("shared", None)
        return BucketRun(directory, **tree, shared=None if shared is None else Shared(**shared))

    def save(self) -> None:
        tree = asdict(self)
        del tree["directory"]
        layout.write_text_durably(self.directory / _RUN_NAME, json.dumps(tree), fsync=True)

    @property
    def _order(self) -> list[int]:
        """All of its chunks, in the order in which files are numbered in them."""
        shared = [] if self.shared is None else range(self.shared.first, self.shared.last + 1)
        return [*shared, *self.chunks]

    def numbering(self, place: BucketSet) -> layout.FileChunks:
        """The chunks of this run; the first one, and each that is needed, is taken for it."""
        if not self.chunks:
            self._take(place)
        return layout.FileChunks(self._order[0], lambda chunk: self._after(place, chunk))

    def _after(self, place: BucketSet, chunk: int) -> int:
        if chunk == self._order[-1]:
            self._take(place)
        return self._order[self._order.index(chunk) + 1]

    def _take(self, place: BucketSet) -> None:
        """Take a chunk behind all others. Killed in between, the same one is asked for again."""
        described = describe_run(self.run_id, self.base)
        if self.asked is None or self.asked in self.chunks:
            self.asked = place.next_chunk(place.list_files())
            self.save()
        self.chunks.append(place.take_chunks(described, self.asked))
        self.save()
