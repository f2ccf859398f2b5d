"""What the machines of one conversion share until its results are part of the data set, by name.

    plan.json                      what is converted, for all machines (plan.py)
    <work>/open                    tasks go on while it is there
    <work>/000012.<uuid>           one attempt at group 12, which writes nowhere else
    <work>/000012.<uuid>.progress  how far it is
    <work>/000012/result.json      the attempt that was whole first, published in one step

They lie in OUT.penstock-shards beside a directory (directory.py), and below penstock/shards in a bucket (bucket.py).
<work> is made of the settings and the inputs: what an attempt of another call still writes is nobody's result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import DataSetError, RemoteError

if TYPE_CHECKING:
    from penstock._src.conversion.bucket.run import Shared
    from penstock._src.conversion.commit.journal import Journal
    from penstock._src.conversion.commit.writer import DataSetWriter
    from penstock._src.conversion.job import Job
    from penstock._src.conversion.report import Report
    from penstock._src.conversion.shards.plan import ShardPlan

PLAN = "plan.json"


class Attempt:
    """Where one task writes, on its own machine or where all of them see it."""

    root: Path
    upload_bytes = 0  # of memory that bringing files elsewhere takes

    def follow(self, writer: DataSetWriter, is_stopped: Callable[[], bool]) -> None:
        """Take what a writer finishes; `is_stopped`: nobody waits for it any more."""

    def check(self) -> None:
        """Raise what went wrong meanwhile; RemoteTaken where another attempt wrote other bytes under our names."""

    def publish(self, result: Mapping[str, Any], check_stop: Callable[[], None]) -> bool:
        """Make it the result of its group; False where another one was first."""
        raise NotImplementedError


class Published(NamedTuple):
    """The result of a group."""

    result: Mapping[str, Any]
    root: Path  # the worker output, on this machine
    elsewhere: Mapping[str, int] = {}  # videos that lie where the data set has them, with sizes; `root` has their names


class ShardStorage(ABC):
    """The shared names of one output."""

    where: str  # for people
    look_every_s: float  # how often machines look what others say

    # Small values

    @abstractmethod
    def read(self, names: Sequence[str]) -> list[dict[str, Any] | None]: ...

    @abstractmethod
    def put(self, name: str, tree: Mapping[str, Any], *, once: bool = False) -> None:
        """Write it, whole or not at all; `once`: of several writers the first wins."""

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def remove(self, name: str) -> None: ...

    # Groups

    @abstractmethod
    def attempt(self, name: str) -> AbstractContextManager[Attempt]:
        """Begin an attempt; one that is not published is gone when the block ends."""

    @abstractmethod
    def discard(self, attempt: str) -> None:
        """An attempt on another machine was lost: remove what is left of it."""

    @abstractmethod
    def published(self, work: str) -> set[int]: ...

    @abstractmethod
    def fetch(self, work: str, group: int, following: Sequence[int] = ()) -> Published:
        """The result of a group; `following` are asked for next."""

    def taken(self, published: Published) -> None:
        """It is in the data set: its copy on this machine goes."""
        shutil.rmtree(published.root, ignore_errors=True)  # what cannot be removed is in nobody's way

    # The conversion

    @abstractmethod
    def check_output(self, job: Job, *, append: bool, overwrite: bool) -> AbstractContextManager[Journal | None]:
        """Refuse an output that must not be written, before a plan is made; the journal of what is appended to."""

    def new_run(self) -> Mapping[str, Any] | None:
        """What a new plan knows of the output."""
        return None

    def shared(self, plan: ShardPlan) -> Shared | None:
        """What the files of a plan are called, where that is agreed on."""
        return None

    def is_begun(self) -> bool:
        """Whether a commit that did not end has taken results away."""
        return False

    @abstractmethod
    def committed(self, plan: ShardPlan | None) -> Report | None:
        """The report of the data set if it holds what was planned; None for a plan asks for any that is ours.

        RemoteTaken where another version came before the planned one.
        """

    @abstractmethod
    def remove_all(self, plan: ShardPlan | None) -> None:
        """Nothing is shared any more; tasks that still run stop."""

    def begin(self, work: str) -> None:
        """Let tasks run."""
        self.put(f"{work}/open", {})

    def ask_to_stop(self, work: str) -> None:
        self.remove(f"{work}/open")

    def is_asked_to_stop(self, work: str) -> bool:
        return not self.has(f"{work}/open")

    def is_published(self, work: str, group: int) -> bool:
        return self.has(result_name(work, group))

    def read_results(self, work: str, groups: Sequence[int]) -> list[dict[str, Any] | None]:
        found = self.read([result_name(work, group) for group in groups])
        return [None if tree is None else dict(tree["result"]) for tree in found]

    def write_progress(self, attempt: str, progress: Mapping[str, Any]) -> None:
        """How far an attempt is; nothing depends on it."""
        with contextlib.suppress(OSError, DataSetError, RemoteError):
            self.put(f"{attempt}.progress", progress)

    def end_progress(self, attempt: str) -> None:
        with contextlib.suppress(OSError, DataSetError, RemoteError):
            self.remove(f"{attempt}.progress")

    def read_progress(self, attempts: Sequence[str]) -> list[dict[str, Any] | None]:
        """What attempts wrote last; None where one wrote nothing, or is published or gone."""
        try:
            return self.read([f"{attempt}.progress" for attempt in attempts])
        except (OSError, DataSetError, RemoteError):
            return [None] * len(attempts)


def work_name(
    identity: Mapping[str, Any],
    batches: Sequence[Sequence[Mapping[str, Any]]],
    task: str,
    run: Mapping[str, Any] | None = None,
) -> str:
    """The name under which the groups of one conversion lie: other settings or inputs have another one."""
    known = {name: identity[name] for name in ("penstock", "settings", "strict")}
    tree = {**known, "batches": [list(batch) for batch in batches], "task": task, **({} if run is None else run)}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def new_attempt(work: str, group: int) -> str:
    """A name that no other attempt has."""
    return f"{work}/{group:06d}.{uuid.uuid4().hex}"


def result_name(work: str, group: int) -> str:
    return f"{work}/{group:06d}/result.json"
