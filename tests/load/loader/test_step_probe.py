"""The step alone against the step with the loader: measured while the loader rests, which nobody waits for."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Loader, Window, profile
from penstock._src.load import step_probe
from penstock._src.load.step_probe import StepProbe
from penstock._src.profile.record.steps import STEP_ALONE, STEP_BESIDE
from tests.load.image_store import ArrayStore


class _Pass:
    """A pass that is some batches ahead, and makes one per step unless it is held back."""

    def __init__(self, ahead: int) -> None:
        self.ahead, self.most, self.held = ahead, ahead, False
        self.holds: list[bool] = []

    @property
    def n_complete(self) -> int:
        return self.ahead

    @property
    def is_resting(self) -> bool:
        return self.held

    def hold(self, is_held: bool) -> None:
        self.held = is_held
        self.holds.append(is_held)

    def step(self) -> None:
        self.ahead -= 1
        if not self.held:
            self.ahead = self.most


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    found: dict[str, float] = {}
    monkeypatch.setattr(step_probe, "gauge", lambda name, value: found.__setitem__(name, value))
    monkeypatch.setattr(step_probe, "is_enabled", lambda: True)
    return found


def _train(own: _Pass, steps: int, monkeypatch: pytest.MonkeyPatch, alone_ns: int, beside_ns: int) -> None:
    now = [1]
    monkeypatch.setattr(step_probe, "perf_counter_ns", lambda: now[0])
    probe = StepProbe(own)
    for _ in range(steps):
        probe.before_step(now[0])
        own.step()
        probe.begin_step()
        now[0] += alone_ns if own.held else beside_ns


def test_steps_of_a_resting_loader_are_distinguished(
    recorded: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _Pass(ahead=4)
    _train(own, 1020, monkeypatch, alone_ns=40_000_000, beside_ns=52_000_000)
    assert recorded == {STEP_ALONE: 40.0, STEP_BESIDE: 52.0}
    assert own.ahead >= 1 and own.holds.count(True) >= 15 and not own.held


def test_a_loader_that_is_not_ahead_is_never_held_back(
    recorded: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _Pass(ahead=1)
    _train(own, 1000, monkeypatch, alone_ns=1, beside_ns=1)
    assert own.holds == [] and recorded == {}


@pytest.mark.parametrize("engine", ["thread", "process"])
def test_no_batch_is_missing_or_late_for_it(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_probe, "_EVERY", 3)
    words: dict[str, Any] = {"batch_size": 4, "memory": "512MiB", "output": "numpy", "shuffle": False}
    was_enabled = profile.is_enabled()
    profile.enable()
    try:
        with Loader(ArrayStore([200]), Window(columns=["state"]), engine=engine, **words) as loader:
            for _ in range(2):
                assert [batch["index"].tolist() for batch in loader] == [
                    list(range(start, start + 4)) for start in range(0, 200, 4)
                ]
    finally:
        if not was_enabled:
            profile.disable()
