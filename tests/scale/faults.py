"""Ray tasks that misbehave, at one moment each: they stand in for `run_group` and are loaded by the workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from penstock._src.conversion.shards import write
from penstock._src.conversion.shards.bucket import BucketAttempt
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.directory import DirectoryAttempt
from penstock._src.conversion.shards.ray_task import run_group

MIB = 2**20
BAD_INPUT = 3


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still here")


def beside(tree: Mapping[str, Any], name: str) -> Path:
    """A file beside the output, or where `beside_directory` says."""
    return Path(tree.get("beside") or Path(tree["request"]["out"]).parent) / name


def beside_directory(task: Callable[..., Any], directory: Path) -> Callable[..., Any]:
    """The same, with its markers in a directory: beside a bucket no task can write."""

    def with_directory(tree: Mapping[str, Any]) -> Any:
        return task({**tree, "beside": str(directory)})

    return with_directory


def wait_for(path: Path) -> None:
    """Until the test, or another task, has made a file."""
    while not path.exists():
        time.sleep(0.02)


def once(tree: Mapping[str, Any], name: str = "fault") -> bool:
    """Whether this is the first time, for all workers together; the marker lies beside the output."""
    marker = beside(tree, name)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def killed_before_publishing(tree: Mapping[str, Any]) -> dict[str, Any]:
    if tree["request"]["group"][0] == 2 and once(tree):
        kind = BucketAttempt if "beside" in tree else DirectoryAttempt
        kind.publish = lambda *_: die()  # type: ignore[method-assign]
    return run_group(tree)


def killed_after_publishing(tree: Mapping[str, Any]) -> dict[str, Any]:
    answer = run_group(tree)
    if tree["request"]["group"][0] == 2 and once(tree):
        die()
    return answer


def killed_in_the_middle(tree: Mapping[str, Any]) -> dict[str, Any]:
    if tree["request"]["group"][0] == 1 and once(tree):
        real = write._GroupWriter.take

        def take(self: Any, number: int, *words: Any) -> None:
            real(self, number, *words)
            die()

        write._GroupWriter.take = take  # type: ignore[method-assign]
    return run_group(tree)


def over_memory(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Holds twice what it asked for, the first time: its own watch ends it."""
    if tree["request"]["group"][0] == 1 and once(tree):
        real = write._GroupWriter.take

        def take(self: Any, *words: Any) -> None:
            real(self, *words)
            held = np.ones(2 * self.request.budget_bytes, np.uint8)
            time.sleep(60)
            assert held[0] == 0, "nobody ended this process"

        write._GroupWriter.take = take  # type: ignore[method-assign]
    return run_group(tree)


def needs_more(tree: Mapping[str, Any]) -> dict[str, Any]:
    """An input that plans with more memory than the first one."""
    if tree["request"]["group"][0] == 1 and tree["request"]["budget_bytes"] < 200 * MIB:
        error = {"kind": "BudgetExceeded", "message": "not within this budget", "hint": None}
        return {"error": error, "input": tree["request"]["group"][1], "needs_memory": True, "node": ""}
    return run_group(tree)


def stopped_by_another_machine(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Somebody else ends the work while the second group is under way."""
    request = tree["request"]
    if request["group"][0] == 1 and once(tree):
        shard_storage_of(Path(request["out"])).ask_to_stop(request["attempt"].rpartition("/")[0])
    return run_group(tree)


def sees_late_that_it_may_run(tree: Mapping[str, Any]) -> dict[str, Any]:
    """As on a node whose network file system remembers that the file was not there."""
    if tree["request"]["group"][0] == 1 and once(tree):
        return {"stopped": True}
    return run_group(tree)


def always_dies(tree: Mapping[str, Any]) -> dict[str, Any]:
    """One input ends every worker that reads it."""
    real = write._GroupWriter.take

    def take(self: Any, number: int, found: Any, on_moved: Any) -> None:
        on_moved(number, 0)
        if number == BAD_INPUT:
            storage = shard_storage_of(Path(self.request.out))
            while (storage.read_progress([self.request.attempt])[0] or {}).get("input") != number:
                time.sleep(0.05)  # until it has said where it is
            die()
        real(self, number, found, on_moved)

    write._GroupWriter.take = take  # type: ignore[method-assign]
    try:
        return run_group(tree)
    finally:
        write._GroupWriter.take = real  # type: ignore[method-assign]


def hangs_on_the_second_node(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Says where it is and waits for the end of that node. The first node does nothing before: it could do all."""
    import ray

    if ray.get_runtime_context().get_node_id() == beside(tree, "head").read_text():
        wait_for(beside(tree, "hangs"))
    elif once(tree):
        beside(tree, "hangs").touch()
        time.sleep(600)
    return run_group(tree)


def all_but_one_wait(tree: Mapping[str, Any]) -> dict[str, Any]:
    """One group is done, the others when the test says so."""
    if not once(tree):
        wait_for(beside(tree, "go"))
    return run_group(tree)
