"""find_max_batch_size: real steps on the CPU, a CUDA device made of numbers, and everything left as it was."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

from penstock._src.plan import batch_size
from penstock._src.plan.probe.device_memory import CudaMemory, DeviceMemory, Peak
from penstock._src.plan.probe.host_plan import HostPlan, pinned_bytes
from penstock._src.system.memory import rss_bytes
from penstock._src.system.units import GIB, MIB
from penstock.errors import LimitExceeded, UsageError
from penstock.plan import find_max_batch_size
from tests.plan.fake_cuda import FakeCuda, FakeTraining

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _network() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )


def _images(count: int) -> Any:
    return torch.randn(count, 8)


class LineMemory(DeviceMemory):
    """A device whose peak is a line, whatever the steps do."""

    name, is_host = "GPU 0", False

    def __init__(self, fixed: int, sample: int, limit: int) -> None:
        self.fixed, self.sample, self.limit = fixed, sample, limit
        self.sizes: list[int] = []

    def limit_bytes(self) -> int:
        return self.limit

    def held_bytes(self) -> int:
        return 0

    def give_back(self) -> None:
        pass

    def measure(self, steps: Any, batch_size: int) -> Peak:
        self.sizes.append(batch_size)
        steps()
        peak = self.fixed + self.sample * batch_size
        return Peak(peak, peak)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> LineMemory:
    memory = LineMemory(fixed=100 * MIB, sample=3 * MIB, limit=1000 * MIB)
    monkeypatch.setattr(batch_size, "memory_of", lambda device: memory)
    return memory


def _probe(model: Any = None, **options: Any) -> batch_size.BatchSizeReport:
    model = model or _network()
    return find_max_batch_size(model, _images, torch.optim.AdamW(model.parameters()), **options)


def test_the_batch_is_solved_less_the_margin_and_confirmed(line: LineMemory) -> None:
    report = _probe(margin=0.1)
    assert report.batch_size == int(report) == (900 - 100) // 3
    assert line.sizes[-1] == report.batch_size
    assert report.confirmed is not None
    assert report.confirmed.reserved_bytes == report.predicted_bytes
    assert (report.ruled_by, report.method, report.out_of_memory) == ("GPU 0", "reserved", 0)
    assert "batch size 266 on GPU 0, limited by GPU 0" in report.describe()


def test_rounding_is_an_option(line: LineMemory) -> None:
    assert _probe(margin=0.0).batch_size == 300
    assert _probe(margin=0.0, multiple_of=8).batch_size == 296


def test_a_limit_below_that_of_the_device_is_kept(line: LineMemory) -> None:
    assert _probe(memory="400MiB", margin=0.0).batch_size == 100


def test_host_memory_rules_where_the_batches_of_a_loader_do_not_fit(line: LineMemory) -> None:
    # 8 float32 a sample: five pinned batches of the next power of two have to fit 5 × 4 KiB
    report = _probe(margin=0.0, host_memory=5 * 4096)
    assert (report.batch_size, report.ruled_by) == (128, "host memory")
    assert report.host_bytes == 5 * 4096
    assert _probe(margin=0.0, host_memory=5 * 4096, host_batches=2).batch_size == 256
    assert _probe(margin=0.0, host_memory=5 * 4096 + 100, pinned=False, host_batches=5).batch_size == 128


def test_max_batch_size_rules_where_it_is_less(line: LineMemory) -> None:
    report = _probe(max_batch_size=20)
    assert (report.batch_size, report.ruled_by) == (20, "max_batch_size")
    assert max(line.sizes) == 20


def test_nothing_fits_is_an_error_with_the_numbers(line: LineMemory) -> None:
    with pytest.raises(LimitExceeded, match="on the host"):
        _probe(host_memory=100)
    line.limit = 101 * MIB
    with pytest.raises(LimitExceeded, match="over the limit of 101 MiB"):
        _probe()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 1.0}, "margin=1.0"),
        ({"start": 0}, "start=0"),
        ({"max_batch_size": 1}, "max_batch_size=1: a whole number, 2 or more"),
        ({"multiple_of": 1.5}, "multiple_of=1.5"),
    ],
)
def test_wrong_words_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _probe(**options)


def test_everything_is_left_as_it_was(line: LineMemory) -> None:
    model = _network()
    model[2].eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(_images(4)).mean().backward()
    optimizer.step()  # a training under way: state and gradients are there
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = [each.grad.clone() for each in model.parameters()]
    held = [slots["exp_avg"] for slots in optimizer.state.values()]
    wanted = (random.random(), np.random.random(), torch.rand(1))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)

    def drawing(count: int) -> Any:
        random.random()
        np.random.random()
        return _images(count)

    find_max_batch_size(model, drawing, optimizer)

    assert (random.random(), np.random.random(), torch.rand(1)) == wanted
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)
    assert optimizer.state_dict()["param_groups"] == state["param_groups"]
    assert all(a is b["exp_avg"] for a, b in zip(held, optimizer.state.values(), strict=True))
    torch.testing.assert_close([each.grad for each in model.parameters()], gradients, rtol=0, atol=0)
    assert [module.training for module in model] == [True, True, False, True]


def test_a_training_that_has_not_started_has_neither_state_nor_gradients_afterwards(line: LineMemory) -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters())

    def failing(count: int) -> Any:
        if count > 4:
            raise RuntimeError("no such batch")
        return _images(count)

    with pytest.raises(RuntimeError, match="no such batch"):
        find_max_batch_size(model, failing, optimizer)
    assert len(optimizer.state) == 0
    assert all(each.grad is None for each in model.parameters())


def test_the_loss_is_what_the_model_gives_or_what_the_caller_says(line: LineMemory) -> None:
    class WithLoss(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 1)

        def forward(self, images: Any) -> Any:
            return {"loss": self.inner(images).square().mean()}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert find_max_batch_size(model, lambda count: {"images": _images(count)}, optimizer).batch_size > 200
    calls: list[int] = []

    def own(model: Any, batch: Any) -> Any:
        calls.append(len(batch))
        return model(batch)["loss"]

    find_max_batch_size(model, _images, optimizer, loss=own)
    assert len(calls) >= 9
    steps: list[int] = []
    report = find_max_batch_size(
        model, _images, optimizer, step=lambda model, batch, optimizer: steps.append(len(batch))
    )
    assert steps[-3:] == [report.batch_size] * 3


def test_on_the_cpu_resident_memory_is_measured() -> None:
    # Tensors of 32 MiB and more go back to the system when they are freed; the heap keeps smaller ones.
    width = 1 << 20
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = find_max_batch_size(
        model, _images, optimizer, memory=rss_bytes() + 400 * MIB, start=8, max_batch_size=24, host_batches=0
    )
    # Two or three tensors of 4 MiB a sample are alive at a time.
    assert 6 * MIB < report.reserved.sample_bytes < 14 * MIB
    assert (report.device, report.method) == ("host memory", "reserved")
    assert 8 <= report.batch_size <= 24
    assert report.confirmed is not None
    assert report.confirmed.reserved_bytes == pytest.approx(report.predicted_bytes, rel=0.2)


WEIGHTS = [(3 + place % 5) * 5 * MIB for place in range(16)]
ACTIVATIONS = [(40 + 17 * place % 90) * 7_000 for place in range(96)]


def _runs(size: int, limit: int) -> bool:
    """From an empty device on."""
    cuda = FakeCuda(torch, limit, 140 * GIB)
    training = FakeTraining(cuda, WEIGHTS, ACTIVATIONS)
    try:
        for _ in range(6):
            training.step(size)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("limit", [6 * GIB, 24 * GIB])
def test_on_cuda_the_allocator_is_replayed_and_nothing_runs_out(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    cuda = FakeCuda(torch, limit, 140 * GIB)
    training = FakeTraining(cuda, WEIGHTS, ACTIVATIONS)
    cuda.install(monkeypatch)
    monkeypatch.setattr(batch_size, "memory_of", lambda device: CudaMemory("cuda:0"))
    kept = batch_size.TrainingState.start_over

    def start_over(self: Any) -> None:
        kept(self)
        training.start_over()

    monkeypatch.setattr(batch_size.TrainingState, "start_over", start_over)
    report = _probe(step=lambda model, batch, optimizer: training.step(len(batch)))
    true = max(size for size in range(report.batch_size, int(report.batch_size * 1.2)) if _runs(size, limit))
    assert report.method == "replay"
    assert report.replay_error < 0.01
    assert report.batch_size >= 0.95 * true
    assert (cuda.raised, report.out_of_memory) == (0, 0)
    assert report.limit_bytes == limit
    assert cuda.allocator.reserved_bytes < 1.2 * sum(WEIGHTS)  # nothing of the probe stays
    # the two lines alone lie on both sides
    usable = int(limit * (1 - report.margin))
    assert report.reserved.largest(usable) <= report.batch_size <= report.allocated.largest(usable)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_batch_that_runs_out_after_all_is_counted_and_made_smaller(
    line: LineMemory, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    measure = line.measure

    def full(steps: Any, size: int) -> Peak:
        if size > 280:
            raise error
        return measure(steps, size)

    monkeypatch.setattr(line, "measure", full)
    report = _probe(margin=0.0)
    assert (report.batch_size, report.out_of_memory) == (270, 2)


def test_pinned_memory_is_rounded_to_a_power_of_two() -> None:
    assert [pinned_bytes(size) for size in (0, 1, 4096, 4097)] == [0, 1, 4096, 8192]
    plan = HostPlan((100.0, 28.0), batches=3, pinned=True, limit_bytes=10**6)
    assert plan.bytes(10) == 3 * (1024 + 512)
