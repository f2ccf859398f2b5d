"""`gpu_span`: the host's clock where CUDA is not in use; CUDA events, read late and never waited for, where it is."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from penstock import profile
from penstock._src.profile.record import gpu, machine
from penstock.profile import gpu_span, reset, snapshot

_LONG_CYCLES = 1 << 31  # of the device's clock: about a second


def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.zeros(1, device="cuda")
    return torch


def busy(torch: Any, rounds: int = 20) -> None:
    """Work for the device that takes it far longer than the host needs to ask for it."""
    found = torch.ones(4096, 4096, device="cuda")
    for _ in range(rounds):
        found = found @ found


# Without CUDA


def without_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")


def test_without_cuda_a_stage_is_a_span_and_that_is_said() -> None:
    without_cuda()

    @gpu_span("decorated")
    def work(value: int) -> int:
        return value + 1

    for _ in range(3):
        with profile.span("outer"), gpu_span("20_train_forward_pass"):
            assert work(1) == 2
    told = snapshot()
    assert told.by_name()["20_train_forward_pass"].count == told.by_name()["decorated"].count == 3
    assert {each.path for each in told.spans if each.name == "decorated"} == {("outer", "20_train_forward_pass")}
    assert told.gpu == ()


def test_a_stage_that_fails_counts_and_one_that_is_off_does_not() -> None:
    without_cuda()
    with pytest.raises(ValueError), gpu_span("fails"):
        raise ValueError
    profile.disable()
    with gpu_span("off"):
        pass
    profile.enable()
    assert snapshot().by_name()["fails"].count == 1 and "off" not in snapshot().by_name()


def test_it_neither_imports_torch_nor_wakes_a_device() -> None:
    code = """
import sys
from penstock import profile
with profile.gpu_span("a"):
    pass
profile.snapshot()
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# With CUDA


def test_stages_are_timed_by_the_device_and_counted_exactly() -> None:
    torch = cuda()
    busy(torch)
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(50):
        with gpu_span("stage"):
            busy(torch)
    after.record()
    torch.cuda.synchronize()
    (stage,) = snapshot().gpu
    assert (stage.name, stage.count) == ("stage", 50) and "stage" not in snapshot().by_name()
    assert 0.7 < stage.total_ns / 1e6 / before.elapsed_time(after) < 1.1


def test_a_reset_forgets_what_is_over_and_keeps_what_is_under_way() -> None:
    torch = cuda()
    with gpu_span("over"):
        busy(torch, 1)
    torch.cuda.synchronize()
    torch.cuda._sleep(_LONG_CYCLES)
    with gpu_span("under way"):
        busy(torch, 1)
    reset()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert [(each.name, each.count) for each in snapshot().gpu] == [("under way", 1)]


def test_autocast_around_a_stage_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = cuda()
    monkeypatch.delitem(machine._machine, "autocast", raising=False)
    with gpu_span("plain"):
        pass
    assert "autocast" not in snapshot().machine
    with torch.autocast("cuda", torch.bfloat16), gpu_span("mixed"):
        pass
    assert snapshot().machine["autocast"]


def test_a_stage_is_not_waited_for() -> None:
    torch = cuda()
    torch.cuda.synchronize()
    torch.cuda._sleep(_LONG_CYCLES)
    with gpu_span("late"):
        busy(torch, 1)
    began = time.perf_counter()
    found = snapshot().gpu
    assert not torch.cuda.current_stream().query() and not found and time.perf_counter() - began < 5
    torch.cuda.synchronize()
    assert [each.name for each in snapshot().gpu] == ["late"]


def test_more_stages_than_may_be_under_way_are_left_out_and_counted() -> None:
    torch = cuda()
    torch.cuda.synchronize()
    torch.cuda._sleep(_LONG_CYCLES)
    for _ in range(gpu.MOST_WAITING + 7):
        with gpu_span("many"):
            pass
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert snapshot().gpu[0].count == gpu.MOST_WAITING and snapshot().lost["gpu_spans"] == 7


def test_a_graph_that_is_captured_is_left_alone_and_streams_have_times_of_their_own() -> None:
    torch = cuda()
    busy(torch)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), gpu_span("aside"):
        busy(torch)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    held = torch.zeros(8, device="cuda")
    with torch.cuda.graph(graph), gpu_span("captured"):
        held += 1
    graph.replay()
    torch.cuda.synchronize()
    assert [each.name for each in snapshot().gpu] == ["aside"]
    assert held.tolist() == [1.0] * 8
