"""Images that the engine decodes on the GPU: the memory of slots there, and when a batch is complete."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock import Loader
from penstock._src.load.engine.job import BatchJob
from penstock._src.load.engine.thread_pool import BatchMemory
from penstock._src.load.process import child
from penstock._src.load.process.channel import Channel, ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.process.packing import unpack
from penstock._src.load.process.passes import ProcessPass
from penstock._src.load.process.row_marks import RowMarks
from penstock._src.load.process.slots import SharedSlots
from penstock._src.load.process.spec import EngineSpec, EngineStart
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
        own._answers.clear()
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


class Device:
    """Stands in for the GPU of the engine: a batch is there when somebody has waited for it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.there: list[int] = []
        self.may_begin = threading.Event()
        self.may_begin.set()
        self.fds: list[int] = []  # of the memory of slots

    def add_slot(self, number: int) -> bytes:
        return b"memory %d" % number

    def area(self, number: int) -> BatchMemory:
        return BatchMemory(np.empty(0, np.uint8))

    def begin(self, job: BatchJob, number: int) -> Any:
        self.may_begin.wait()
        if number == 2:
            raise RuntimeError("no room there")
        self.begun.append(number)
        return SimpleNamespace(synchronize=lambda: self.there.append(number))


@pytest.fixture
def served(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Device]]:
    """An engine with three slots whose images a device decodes, in threads of this process."""
    next(iter(loader))
    assert isinstance(loader._engine, ProcessEngine) and isinstance(loader._engine._spec, EngineSpec)
    device, spec, marks = Device(), loader._engine._spec, RowMarks()
    monkeypatch.setattr(child, "_device_images", lambda spec: device)
    monkeypatch.setattr(child.sys, "setswitchinterval", lambda seconds: None)
    own, other = Channel.pair()
    engine = child.EngineProcessLoop(spec, EngineStart(spec), marks, Channel(other))

    def serve() -> None:
        with contextlib.suppress(ChannelClosed):
            engine.serve(lambda: False)

    thread = threading.Thread(target=serve)
    thread.start()
    slots = SharedSlots(spec.layout, 3)
    for number in range(3):
        own.send(Kind.SLOT, number, spec.layout.n_bytes, fd=slots.fds[number])
    device.fds = slots.fds
    yield own, device
    own.close()
    thread.join()
    engine._pool.close()
    slots.close()
    marks.close()


def _received(channel: Channel) -> tuple[int, int]:
    message = channel.receive(120)
    assert message is not None
    return message.kind, message.numbers[0]


def test_a_batch_is_complete_when_its_images_are_on_the_device(served: tuple[Channel, Device]) -> None:
    channel, device = served
    assert [_received(channel) for _ in range(3)] == [(Kind.DEVICE, number) for number in range(3)]
    for number in (1, 2):
        channel.send(Kind.MAKE, number, 0, 4 * number, 4 * number + 4, number - 1)
    assert sorted(_received(channel) for _ in range(2)) == [(Kind.DONE, 1), (Kind.DONE, 2)]
    assert sorted(device.begun) == sorted(device.there) == [0, 1]
    channel.send(Kind.MAKE, 3, 0, 12, 16, 2)
    message = channel.receive()
    assert message is not None and (message.kind, message.numbers[0]) == (Kind.ERROR, 3)
    assert str(unpack(message.payload)) == "no room there"
    channel.send(Kind.CANCEL, 9)
    assert _received(channel) == (Kind.CANCELLED, 9)


def test_to_wake_who_waits_gives_no_batch_up(served: tuple[Channel, Device], loader: Loader) -> None:
    channel, device = served
    assert [_received(channel) for _ in range(3)] == [(Kind.DEVICE, number) for number in range(3)]
    device.may_begin.clear()
    channel.send(Kind.MAKE, 1, 0, 0, 4, 0)
    channel.send(Kind.CANCEL, 0)
    channel.send(Kind.SLOT, 3, loader._layout.n_bytes, fd=device.fds[0])
    found = {_received(channel)}
    while (Kind.DEVICE, 3) not in found:  # it has read what was sent before
        found.add(_received(channel))
    device.may_begin.set()
    while len(found) < 3:
        found.add(_received(channel))
    assert found == {(Kind.DEVICE, 3), (Kind.CANCELLED, 0), (Kind.DONE, 1)}
