"""MemoryMonitor tells what is granted, not what the machine has; the sampler sees peaks of a whole tree."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from penstock._src.cli import main
from penstock._src.plan import monitor
from penstock._src.plan.memory import sampler, watch
from penstock._src.system import limits
from penstock._src.system.units import GIB, MIB
from penstock.errors import UsageError
from penstock.plan import MemoryMonitor, MemorySampler
from tests.system.machine import Machine

_HOLD = "import sys; block = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def small_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """64 GiB in the machine, 4 GiB for the pod, of which 1 GiB is used."""
    machine = Machine(tmp_path)
    machine.join_v2("/pod/me")
    machine.write("sys/fs/cgroup/pod/memory.max", f"{4 * GIB}")
    machine.write("sys/fs/cgroup/pod/memory.current", f"{GIB}")
    for module in (monitor, watch):
        monkeypatch.setattr(module, "read_memory_limit", machine.memory)
        monkeypatch.setattr(
            module, "read_gpus", lambda: (limits.Gpu(3, "NVIDIA H200", 140 * GIB, 139 * GIB, "5", True),)
        )
    return machine


def test_the_system_is_what_is_granted_and_the_limit_is_named(small_pod: Machine) -> None:
    info = MemoryMonitor.get_memory_info()
    assert (info["system_total_gb"], info["system_available_gb"], info["system_used_gb"]) == (4, 3, 1)
    assert info["system_percent"] == 25
    assert info["ruled_by"] == "cgroup v2 /pod memory.max"
    assert 0 < info["process_uss_gb"] <= info["process_pss_gb"] <= info["process_rss_gb"] < info["process_vms_gb"]


def test_gpus_come_from_the_driver_where_this_process_uses_none(small_pod: Machine) -> None:
    assert MemoryMonitor.get_memory_info()["gpus"] == [
        {"index": 0, "name": "NVIDIA H200", "allocated_gb": 0.0, "reserved_gb": 0.0, "total_gb": 140, "free_gb": 139}
    ]


def test_gpus_come_from_torch_where_this_process_uses_them(small_pod: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        mem_get_info=lambda index: (11 * GIB, 16 * GIB),
        get_device_name=lambda index: "NVIDIA T4",
        memory_allocated=lambda index: 4 * GIB,
        memory_reserved=lambda index: 5 * GIB,
        empty_cache=lambda: calls.append("emptied"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    (gpu,) = MemoryMonitor.get_memory_info()["gpus"]
    assert (gpu["allocated_gb"], gpu["reserved_gb"], gpu["total_gb"], gpu["free_gb"]) == (4, 5, 16, 11)
    MemoryMonitor.clear_memory()
    assert calls == ["emptied"]


def test_workers_are_listed_with_what_they_hold() -> None:
    child = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    try:
        info = MemoryMonitor.get_memory_info()
    finally:
        child.communicate()
    (worker,) = [each for each in info["workers"] if each["pid"] == child.pid]
    assert 60 * MIB / GIB < worker["uss_gb"] <= worker["pss_gb"] <= info["workers_pss_gb"] + 1e-9


def test_it_is_printed_in_the_documented_form(
    small_pod: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "descendants", lambda pid: [])
    MemoryMonitor.print_memory_info()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["=" * 60, "内存使用情况", "=" * 60]
    assert lines[3:7] == [
        "系统总内存: 4.00 GB",
        "系统可用内存: 3.00 GB",
        "系统已用内存: 1.00 GB (25.0%)",
        "限制来自: cgroup v2 /pod memory.max",
    ]
    assert lines[7].startswith("进程RSS内存: ") and lines[7].endswith(" GB")
    assert lines[8:] == ["-" * 60, "GPU 0:", "  已分配: 0.00 GB", "  已保留: 0.00 GB", "  总容量: 140.00 GB", "=" * 60]
    MemoryMonitor.print_memory_info(lang="en")
    assert "Available: 3.00 GB\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="one of zh, en"):
        MemoryMonitor.print_memory_info(lang="fr")


def test_too_little_memory_is_false_with_a_warning(small_pod: Machine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert MemoryMonitor.check_memory_available(2.9) is True
    message = r"10.00 GB are needed, 3.00 GB are available \(cgroup v2 /pod memory.max\)"
    with pytest.warns(UserWarning, match=message):
        assert MemoryMonitor.check_memory_available(required_gb=10.0) is False


def test_the_sampler_records_the_peaks_of_a_tree() -> None:
    with MemorySampler(every_s=60) as recorded:
        child = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        recorded.sample()
        child.communicate()
    peaks = recorded.peaks
    assert peaks.workers >= 1
    assert peaks.worker_bytes > 60 * MIB
    assert peaks.tree_bytes >= peaks.worker_bytes
    assert len(recorded.samples) == 3  # at the start, in between, at the end
    assert "peak " in recorded.describe() and "workers, the largest" in recorded.describe()
    again = recorded.start().stop()
    assert again.peaks.worker_bytes < 60 * MIB


def test_the_sampler_looks_by_itself_and_keeps_constant_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_MOST_SAMPLES", 16)
    sizes = iter(range(MIB, 10**12, MIB))
    monkeypatch.setattr(sampler, "pss_bytes", lambda pid: next(sizes))
    monkeypatch.setattr(sampler, "descendants", lambda pid: [])
    recorded = MemorySampler(pid=1, every_s=60)
    for _ in range(1000):
        recorded.sample()
    assert len(recorded.samples) < 16
    assert recorded.peaks.tree_bytes == 1000 * MIB  # also of those that were not kept
    own = [each.own_bytes // MIB for each in recorded.samples]
    assert {second - first for first, second in itertools.pairwise(own)} == {128}


def test_plots_need_no_library(tmp_path: Path) -> None:
    recorded = MemorySampler(pid=os.getpid(), every_s=60)
    assert recorded.plot() == "no samples"
    for _ in range(5):
        recorded.sample()
    lines = recorded.plot(width=20, height=4).splitlines()
    assert len(lines) == 6
    assert "█" in lines[0] and lines[-1].strip().startswith("0 … ")
    recorded.save_svg(tmp_path / "memory.svg")
    root = ElementTree.parse(tmp_path / "memory.svg").getroot()
    assert [each.tag.split("}")[1] for each in root].count("polyline") == 2
    with pytest.raises(UsageError, match="every_s=0"):
        MemorySampler(every_s=0)


def test_env_watches_a_process(small_pod: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--watch", str(os.getpid()), "--every", "0", "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].startswith("memory  ██████████░")
        and "25% · 3 GiB free of 4 GiB (cgroup v2 /pod memory.max)" in lines[0]
    )
    assert lines[1].startswith("process ")
    assert lines[2] == "GPU 3   1 GiB of 140 GiB · NVIDIA H200"
    assert lines[3].startswith("memory  ") and lines[-1].startswith("peak ")


def test_env_watches_as_json_lines_and_refuses_a_process_that_is_not_there(
    small_pod: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "--watch", "--json", "--count", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["memory"]["bytes"], found["tree"]) == (4 * GIB, None)
    assert main(["env", "--watch", str(2**30)]) == 2
    assert "there is no process" in capsys.readouterr().err


def test_a_terminal_is_drawn_over_and_no_line_wraps(small_pod: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "30")
    shown = Terminal()
    watch.MemoryWatch(None, every_s=0, count=2).run(shown)
    first, second = shown.getvalue().split("\x1b[2F\x1b[J")
    assert first == second
    assert max(map(len, first.splitlines())) == 29


def test_a_watch_ends_with_its_process(small_pod: Machine) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    shown = io.StringIO()
    look = watch.MemoryWatch(child.pid, every_s=0)
    look.read()
    child.communicate()
    look.run(shown)
    assert shown.getvalue().startswith(f"process {child.pid} has ended\n")
