"""A verdict after a loader has ended: what it said of itself is known until the next reset."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock._src.load.loader import Loader
from penstock._src.profile.record.registry import loader_infos
from penstock._src.profile.verdict.verdict import verdict
from tests.load.image_store import ArrayStore
from tests.profile.runs import Measured, loader_told, run

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),
]


class Slow(TorchDataset[Any]):
    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.tensor(index)


def evaluate() -> None:
    validation = profile.attach(DataLoader(Slow(40, 0.02), batch_size=4))
    with torch.no_grad():
        for _ in validation:
            pass


def gone_through(loader: Any) -> float:
    """How many milliseconds a pass took, however slow the machine is: what its batches took lies inside."""
    began = time.perf_counter()
    for _ in loader:
        pass
    return (time.perf_counter() - began) * 1e3


def test_steps_of_several_batches_are_told_by_all_of_them() -> None:
    began = time.perf_counter()
    for number, _ in enumerate(profile.attach(DataLoader(Slow(96, 0.002), batch_size=2))):
        if number % 4 == 3:
            profile.mark_step()
    spent_ms = (time.perf_counter() - began) * 1e3
    assert 12 < profile.verdict().now.service_ms <= spent_ms / 12  # four batches of 4 ms, less what counts as the step


def train(workers: int) -> float:
    loader = profile.attach(DataLoader(Slow(96, 0.004), batch_size=4, num_workers=workers, timeout=120))
    return gone_through(loader)


def test_a_run_can_be_judged_after_its_loader_is_gone(tmp_path: Path) -> None:
    validation = profile.attach(DataLoader(Slow(40, 0.0), batch_size=4))
    spent_ms = train(2)
    with torch.no_grad():
        for _ in validation:
            pass
    for found in (profile.verdict(), verdict(profile.load(profile.save(tmp_path / "run.json")))):
        assert found.now.threads == 2 and found.bound == "input"
        assert 12 < found.now.service_ms <= 2 * spent_ms / 24  # two workers, 24 batches
        assert not [fix for fix in found.fixes if fix.name == "threads"]
    tried = profile.verdict(check=True, seconds=0.01)
    assert tried.trial is None and "not at hand" in "".join(tried.notes)


def test_of_loaders_made_anew_the_one_that_lives_is_judged() -> None:
    for _ in range(3):
        loader = profile.attach(DataLoader(Slow(24, 0.004), batch_size=4))
        for _ in loader:
            pass
    told = profile.snapshot().loaders  # before the last one may stand loaders that other tests hold
    assert sum(bool(each.ended) for each in told) == 2 and not told[-1].ended
    assert profile.verdict(check=True, seconds=0.01, loader=loader).now.threads == 0


def test_what_ended_is_forgotten_at_a_reset_and_not_without_end() -> None:
    for _ in range(40):
        for _ in profile.attach(DataLoader(Slow(2, 0.0))):
            pass
    assert len([each for each in loader_infos() if each.ended]) == 32
    profile.reset()
    assert not [each for each in loader_infos() if each.ended]


def test_a_loader_of_penstock_that_is_closed_can_be_judged() -> None:
    before = len(loader_infos())
    with Loader(ArrayStore((9,)), batch_size=4, image_size=(24, 32), memory="512MiB", threads=1) as loader:
        steps = sum(1 for _ in loader)
        unused = Loader(ArrayStore((9,)), batch_size=4, image_size=(24, 32), memory="512MiB", threads=1)
        unused.close()
    told = loader_infos()
    assert len(told) == before + 1 and told[0].ended
    assert told[0].batches_handed == told[0].step_batches == steps
    assert profile.verdict().now.threads == 1


def test_nothing_is_advised_for_a_loader_that_nobody_knows() -> None:
    known = run(20.0, 12.0, {"03b_image_decode": 38.0}, loader=loader_told(threads=1, images=[]))
    assert [fix.name for fix in verdict(known, calibrate=False, loader=Measured(known.loaders[0].to_json())).fixes]
    unknown = replace(known, loaders=(), process=known.process + 1)
    assert verdict(unknown).fixes == ()
