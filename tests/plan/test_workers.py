"""Workers per GPU from the CPUs granted: the shares, the split, what is left for validation, and the warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.plan.workers import split_workers
from penstock._src.system.limits import read_cpu_limit
from penstock.errors import ConfigError, UsageError


@pytest.mark.parametrize(
    ("asked", "cpus", "gpus", "total", "per_gpu", "in_all"),
    [
        ("auto", 40, 3, 32, 10, 30),
        ("cpu*0.9", 40, 3, 36, 12, 36),
        (32, 40, 3, 32, 10, 30),
        (24, 40, 3, 24, 8, 24),
        ("auto", 4, 1, 3, 3, 3),
        ("auto", 1, 1, 1, 1, 1),
        ("cpu", 8, 2, 8, 4, 8),
        (0, 8, 2, 0, 0, 0),
    ],
)
def test_a_share_of_the_cpus_is_split_over_the_gpus(
    asked: str | int, cpus: float, gpus: int, total: int, per_gpu: int, in_all: int
) -> None:
    plan = split_workers(asked, cpus=cpus, gpus=gpus)
    assert (plan.total, plan.train, plan.train_total) == (total, per_gpu, in_all)
    assert plan.warnings == ()


def test_a_cpu_quota_of_four_gives_three_workers(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/online": "0-63",
        "proc/self/cgroup": "0::/job",
        "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "sys/fs/cgroup/job/cpu.max": "400000 100000",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    granted = read_cpu_limit(tmp_path)
    assert granted.granted == 4 and "cpu.max" in granted.ruled_by
    assert split_workers("auto", cpus=granted.granted).train == 3


@given(
    st.one_of(st.sampled_from(["auto", "cpu*0.9", "cpu*0.25", "cpu"]), st.integers(0, 200)),
    st.floats(0.5, 256),
    st.integers(1, 16),
)
def test_every_gpu_gets_the_same_and_no_more_than_was_asked_for(asked: str | int, cpus: float, gpus: int) -> None:
    plan = split_workers(asked, cpus=cpus, gpus=gpus)
    assert plan.train_total <= max(plan.total, gpus)  # at least one each
    assert plan.train_total > plan.total - gpus
    assert plan.val <= plan.train
    assert (plan.val >= 1) == (plan.train >= 1)
    assert bool(plan.warnings) == (plan.train_total > cpus or plan.val_total > cpus)


def test_something_is_left_for_validation() -> None:
    assert split_workers("auto", cpus=40, gpus=3).val == 2  # 40 - 30 - 3 = 7, over 3 GPUs
    assert split_workers("cpu*0.9", cpus=40, gpus=3).val == 1


def test_a_number_is_per_gpu_and_a_share_is_of_the_machine() -> None:
    plan = split_workers("auto", cpus=40, gpus=2, train=6, val="cpu*0.1")
    assert (plan.train, plan.val) == (6, 2)
    assert split_workers("auto", cpus=40, gpus=2, train="6", val=0).val == 0


def test_more_workers_than_granted_cpus_is_a_warning_with_the_number_that_fits() -> None:
    (warning,) = split_workers(64, cpus=40, gpus=4).warnings
    assert "64 train workers" in warning and "40 granted CPUs" in warning and "TRAIN_WORKERS: 10" in warning


def test_contradictory_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="36 workers on 3 GPUs"):
        split_workers(32, cpus=40, gpus=3, train=12)
    assert split_workers("auto", cpus=40, gpus=3, train=12).train == 12  # auto is no number of the user's


@pytest.mark.parametrize("asked", ["all", "cpu*0", -1, "cpu*x", True])
def test_what_is_no_number_of_workers_is_named(asked: str | int) -> None:
    with pytest.raises(UsageError, match="TOTAL_WORKERS"):
        split_workers(asked, cpus=8)
