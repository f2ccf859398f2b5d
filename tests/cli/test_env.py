"""penstock env shows what the machine grants and which limit rules."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from penstock._src.cli import env, main
from penstock._src.system import limits
from penstock._src.system.units import GIB


@pytest.fixture
def small_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 GiB in the machine, 4 GiB and a CPU and a half for us, one visible and one hidden GPU."""
    memory = limits.MemoryLimit(
        4 * GIB,
        3 * GIB,
        "cgroup v2 /pod memory.max",
        "cgroup v2 /pod memory.max",
        (
            limits.MemoryCandidate("physical memory", 64 * GIB, 60 * GIB),
            limits.MemoryCandidate("cgroup v2 /pod memory.max", 4 * GIB, 3 * GIB),
        ),
    )
    cpus = limits.CpuLimit(1, 1.5, "cgroup v2 /pod cpu.max", (limits.CpuCandidate("cgroup v2 /pod cpu.max", 1.5),))
    gpus = (
        limits.Gpu(0, "NVIDIA H200", 140 * GIB, 139 * GIB, "580.1", True),
        limits.Gpu(1, "NVIDIA GB10", None, None, "580.1", False),
    )
    found = limits.Limits(memory, cpus, None, None, "/data", 10**12, gpus)
    monkeypatch.setattr(limits, "read_limits", lambda *, gpus: found)


@pytest.mark.usefixtures("small_container")
def test_the_table_names_the_ruling_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "memory         4 GiB · ruled by cgroup v2 /pod memory.max\n",
        "                 physical memory: 64 GiB, 60 GiB available\n",
        "CPUs           1.5 · ruled by cgroup v2 /pod cpu.max\n",
        "/dev/shm       none\n",
        "disk           1 TB free at /data\n",
        "GPU            0: NVIDIA H200 · 139 GiB free of 140 GiB · driver 580.1\n",
        "1: NVIDIA GB10 · memory shared with the CPU · driver 580.1 · hidden by CUDA_VISIBLE_DEVICES\n",
    ):
        assert line in shown


@pytest.mark.usefixtures("small_container")
def test_json_is_one_object_with_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["bytes"] == 4 * GIB
    assert found["memory"]["candidates"][0]["name"] == "physical memory"
    assert found["cpus"] == {
        "count": 1,
        "granted": 1.5,
        "ruled_by": "cgroup v2 /pod cpu.max",
        "candidates": [{"name": "cgroup v2 /pod cpu.max", "cpus": 1.5}],
    }
    assert [gpu["visible"] for gpu in found["gpus"]] == [True, False]
    assert found["python"] == platform.python_version()
    assert found["auto_workers"] == 1


def test_versions_are_reported_without_importing_the_libraries() -> None:
    code = (
        "import sys; from penstock._src.cli.env import library_versions; found = library_versions()\n"
        "assert found['numpy'] and found['pyarrow'], found\n"
        "assert 'pyarrow' not in sys.modules and 'av' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(env.library_versions()) == {"penstock", *env.LIBRARIES, *env.NEIGHBOURS}
