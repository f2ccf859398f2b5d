"""Messages between two processes: whole, in order, of any size; an end that is gone is told as such."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.process.channel import Channel, ChannelClosed, Kind

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)


def _pair() -> tuple[Channel, Channel]:
    one, other = Channel.pair()
    return one, Channel(other)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(Kind), NUMBERS, st.integers(0, 200_000)), min_size=1, max_size=5))
def test_messages_come_whole_and_in_order(messages: list[tuple[Kind, list[int], int]]) -> None:
    one, other = _pair()
    for kind, numbers, size in messages:
        one.send(kind, *numbers, payload=bytes([size % 251]) * size)
    for kind, numbers, size in messages:
        found = other.receive()
        assert found is not None
        assert found.kind == kind and list(found.numbers) == numbers + [0] * (6 - len(numbers))
        assert found.payload == bytes([size % 251]) * size
    assert other.receive(0) is None
    one.close()
    other.close()


def test_a_descriptor_is_passed_on() -> None:
    one, other = _pair()
    read, write = os.pipe()
    one.send(Kind.SLOT, 3, fd=write)
    os.close(write)
    found = other.receive()
    assert found is not None and found.fd >= 0
    os.write(found.fd, b"here")
    os.close(found.fd)
    assert os.read(read, 10) == b"here"
    os.close(read)
    one.close()
    other.close()


def test_an_end_that_is_gone_is_reported() -> None:
    one, other = _pair()
    other.close()
    with pytest.raises(ChannelClosed):
        one.receive()
    with pytest.raises(ChannelClosed):
        one.send(Kind.EPOCH, 1)
    one.close()
    with pytest.raises(ChannelClosed):
        one.send(Kind.EPOCH, 1)
    with pytest.raises(ChannelClosed):
        one.receive()


def test_what_was_sent_before_the_end_still_comes() -> None:
    one, other = _pair()
    one.send(Kind.EPOCH, 7)
    one.close()
    found = other.receive()
    assert found is not None and found.numbers[0] == 7
    with pytest.raises(ChannelClosed):
        other.receive()
    other.close()


def test_a_pair_keeps_messages_whole() -> None:
    one, other = Channel.pair()
    assert other.type == socket.SOCK_SEQPACKET
    one.close()
    other.close()
