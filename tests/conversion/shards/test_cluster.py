"""What is known of a Ray cluster before a task is given to it: targets, nodes, and what none of them can hold."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from penstock._src.cli import main
from penstock._src.conversion.shards import cluster
from penstock._src.conversion.shards.cluster import (
    ClusterNode,
    MissingNodes,
    check_target,
    connected,
    fitting,
    nodes_of,
    share_bytes,
)
from penstock.errors import BudgetExceeded, MissingExtra, UsageError

GIB = 2**30
HEAD, SMALL, LARGE = (
    ClusterNode("head", 0, 4 * GIB),
    ClusterNode("small", 2, 2 * GIB),
    ClusterNode("large", 16, 8 * GIB),
)


@pytest.mark.parametrize("word", ["spark", "ray:", "ray://", "http://head:1"])
def test_only_ray_is_a_target(word: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="not known"):
        check_target(word)
    (tmp_path / "run.bag").write_bytes(b"#ROSBAG V2.0\n")
    assert main(["convert", str(tmp_path / "run.bag"), str(tmp_path / "out"), "--on", word]) == 2
    assert "ray://HOST:10001" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *words: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return real(name, *words, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[ray\]'"), connected("ray"):
        pass


def test_a_node_runs_as_many_tasks_as_cpus_and_memory_allow() -> None:
    assert [node.slots(1, GIB) for node in (HEAD, SMALL, LARGE)] == [0, 2, 8]
    assert [node.slots(4, GIB) for node in (HEAD, SMALL, LARGE)] == [0, 0, 4]
    assert fitting([HEAD, SMALL, LARGE], 1, 3 * GIB) == [LARGE]
    assert share_bytes([HEAD, SMALL, LARGE], 1) == GIB and share_bytes([HEAD, SMALL, LARGE], 8) == 4 * GIB


def test_a_task_that_no_node_holds_is_refused_with_the_numbers() -> None:
    with pytest.raises(BudgetExceeded, match=r"needs 2 CPUs and 9 GiB, .*large: 16 CPUs, 8 GiB") as refused:
        fitting([HEAD, SMALL, LARGE], 2, 9 * GIB)
    assert (refused.value.size, refused.value.limit) == (9 * GIB, 8 * GIB)
    with pytest.raises(BudgetExceeded, match="no node is alive"):
        fitting([], 1, GIB)


def test_a_task_whose_only_node_was_lost_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = MissingNodes()
    assert missing.look([SMALL, LARGE], 1, [GIB, 3 * GIB]) is None
    assert missing.look([SMALL], 1, [GIB, 3 * GIB]) == (
        "no node of the cluster can hold a task of 3 GiB any more: waiting for one"
    )
    assert missing.look([SMALL], 1, [GIB, 3 * GIB]) is None
    assert missing.look([SMALL, LARGE], 1, [3 * GIB]) is None
    monkeypatch.setattr(cluster, "NODE_WAIT_S", 0.0)
    assert missing.look([], 1, [GIB]) is not None
    with pytest.raises(BudgetExceeded, match="no node is alive"):
        missing.look([], 1, [GIB])


def test_nodes_that_are_dead_do_not_count() -> None:
    class Ray:
        def nodes(self) -> list[dict[str, Any]]:
            alive = {"Alive": True, "NodeManagerHostname": "a", "NodeID": "0123456789", "Resources": {"CPU": 4.0}}
            return [alive, {**alive, "Alive": False}]

    assert nodes_of(Ray()) == [ClusterNode("a/012345", 4.0, 0)]
