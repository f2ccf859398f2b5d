"""A device that copies slower than batches are asked for: slots are waited for, and no memory is added."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from tests.load.image_store import ArrayStore

torch = pytest.importorskip("torch")


class _Event:
    """Of a copy that ends only when it is waited for."""

    is_over = False

    def record(self, stream: Any) -> None:
        self.is_over = False

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        self.is_over = True


class _Stream:
    def __init__(self, device: Any = None) -> None:
        pass

    def wait_event(self, event: _Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a CUDA device is asked for, in the memory of this process."""
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    shaping = SimpleNamespace(dtype="uint8")
    return SimpleNamespace(device=torch.device("cpu"), user_shaping=shaping, batch_decoder=lambda: None)


@pytest.mark.parametrize("prefetch", ["auto", 1])
def test_copies_that_lag_behind_are_waited_for_before_they_hold_all_slots(
    no_device: Any, prefetch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock._src.load.device.inline import InlineCudaBatches

    options: dict[str, Any] = {"engine": "thread", "output": "numpy", "view": "off", "shuffle": False}
    with Loader(ArrayStore([60]), Window(columns=["raw"]), 4, prefetch=prefetch, **options) as loader:
        monkeypatch.setattr(loader._target, "begin", lambda own: InlineCudaBatches(own, no_device))
        for number, batch in enumerate(loader):
            assert batch["index"].tolist() == [*range(4 * number, 4 * number + 4)]
        assert number == 14
        assert loader._engine is not None and len(loader._engine.slots) == loader.memory_split.slots
