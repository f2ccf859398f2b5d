"""What the engine says of slots on the GPU is said once: it is kept, whoever reads it, also when a pass ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock import Loader
from penstock._src.load.process.channel import ChannelMessage, Kind
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.process.passes import ProcessPass
from penstock._src.load.process.spec import EngineSpec
from tests.load.image_store import ArrayStore


@pytest.fixture
def loader() -> Iterator[Loader]:
    words: dict[str, Any] = {"image_size": (24, 32), "memory": "512MiB", "engine": "process", "output": "numpy"}
    with Loader(ArrayStore((64,)), batch_size=4, **words) as made:
        yield made


@pytest.mark.parametrize("reader", ["the gauge", "a thread that waits", "the end of the pass"])
def test_a_slot_on_the_gpu_is_mapped_whoever_reads_of_it(
    loader: Loader, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = iter(loader)
    next(batches)
    engine = loader._engine
    assert isinstance(engine, ProcessEngine) and engine.channel is not None and loader._pass is not None
    own = loader._pass._own
    assert isinstance(own, ProcessPass)
    unread = [ChannelMessage(Kind.DEVICE, (4, 0, 0, 0, 0, 0), b"its memory")]
    receive, mapped = engine.channel.receive, dict[int, bytes]()

    def received(timeout_s: float | None = None) -> ChannelMessage | None:
        return unread.pop() if unread else receive(timeout_s)

    monkeypatch.setattr(engine.channel, "receive", received)
    monkeypatch.setattr(engine, "map_device_slot", mapped.__setitem__)
    if reader == "the gauge":
        assert own.n_complete >= 0
    elif reader == "a thread that waits":
        monkeypatch.setattr(own, "_over", True)  # as another thread has ended the pass meanwhile
        assert own._await(own._requests[0], wait=True) is None
    own.close()
    del batches
    assert not unread and mapped == {4: b"its memory"}


def test_a_slot_that_is_not_there_is_no_batch_without_images(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    next(iter(loader))
    engine = loader._engine
    assert isinstance(engine, ProcessEngine) and isinstance(engine._spec, EngineSpec)
    assert engine.device_images(0, 4) == {}  # nothing is decoded on the GPU
    monkeypatch.setattr(engine, "_spec", replace(engine._spec, encoded=frozenset({("cam",)})))
    with pytest.raises(KeyError):
        engine.device_images(0, 4)
