"""The rate of a topic: right whether its messages come steadily, with jitter, in bursts, late, twice or with holes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._src.align import FixedTimeline, TopicStream, TopicTimeline, align, measure_rate, rate_throughout

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND


def steady(hz: float, count: int) -> NDArray[np.float64]:
    return np.arange(count) / hz


def as_ns(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return START_NS + np.round(np.sort(seconds) * SECOND).astype(np.int64)


def bursts(hz: float, size: int, count: int, *, inside_s: float = 6e-6) -> NDArray[np.float64]:
    """`count` bursts of `size` messages each; so many that `hz` come in a second."""
    begins = np.arange(count) * size / hz
    return (begins[:, np.newaxis] + np.arange(size) * inside_s).ravel()


def with_holes(seconds: NDArray[np.float64], at: list[float], length_s: float) -> NDArray[np.float64]:
    """The recorder stops at these shares of the messages."""
    moved = seconds.copy()
    for share in at:
        moved[round(share * seconds.size) :] += length_s
    return moved


def hz_of(seconds: NDArray[np.float64]) -> float:
    rate = measure_rate(as_ns(seconds))
    assert rate is not None
    return rate.hz


def test_a_status_topic_that_arrives_in_bursts_has_the_rate_of_its_messages() -> None:
    assert hz_of(bursts(392, 16, 230)) == pytest.approx(392, rel=0.01)


def test_a_bursty_topic_as_timeline_lasts_as_long_as_the_recording() -> None:
    times_ns = as_ns(bursts(392, 16, 230))
    alignment = align([TopicStream("/status", times_ns)], TopicTimeline("/status"))
    assert abs(alignment.fps - 392) <= 2
    assert len(alignment.row_times_ns) / alignment.fps == pytest.approx((times_ns[-1] - times_ns[0]) / SECOND, rel=0.01)
    assert alignment.report.notes == ()


def test_a_topic_that_is_silent_most_of_the_time_has_no_rate_to_show() -> None:
    log = np.concatenate([begin + np.arange(5) * 5e-4 for begin in (0.0, 21.7)])
    assert hz_of(log) > 1000
    assert rate_throughout(as_ns(log)) is None
    for seconds in (steady(30, 90), bursts(392, 16, 230), with_holes(steady(30, 90), [0.5], 20.0)):
        assert rate_throughout(as_ns(seconds)) == measure_rate(as_ns(seconds))


def test_rows_between_two_bursts_find_a_message() -> None:
    streams = [TopicStream("/status", as_ns(bursts(400, 16, 100)))]
    assert align(streams, FixedTimeline(fps=400)).report.lost == 0


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 50, 200])
@pytest.mark.parametrize("inside_s", [0.0, 5e-6, 3e-4])
def test_bursts_of_any_size(size: int, inside_s: float) -> None:
    assert hz_of(bursts(300, size, 60, inside_s=inside_s)) == pytest.approx(300, rel=0.03)


def test_messages_that_arrive_in_pairs_still_have_their_true_rate() -> None:
    assert hz_of(bursts(30, 2, 50, inside_s=2e-3)) == pytest.approx(30, rel=0.02)


def test_times_without_any_rhythm_count_by_their_number() -> None:
    seconds = np.cumsum(np.random.default_rng(1).exponential(1 / 50, 4000))
    assert hz_of(seconds) == pytest.approx(50, rel=0.05)


def test_a_few_lost_frames_do_not_bend_the_rate_and_many_do() -> None:
    seconds = steady(30, 600)
    assert hz_of(np.delete(seconds, range(10, 600, 50))) == pytest.approx(30, rel=1e-3)
    assert hz_of(np.delete(seconds, range(10, 600, 5))) == pytest.approx(24, rel=0.01)


def test_one_message_or_one_time_has_no_rate() -> None:
    assert measure_rate(as_ns(np.zeros(1))) is None
    assert measure_rate(as_ns(np.zeros(5))) is None
    assert measure_rate(np.zeros(0, np.int64)) is None


@given(
    hz=st.floats(0.5, 2000),
    count=st.integers(40, 400),
    jitter=st.floats(0, 0.3),
    twice=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_jitter_and_repeated_stamps(hz: float, count: int, jitter: float, twice: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    seconds = np.sort(steady(hz, count) + random.uniform(-jitter, jitter, count) / hz)
    again = random.random(count) < twice
    repeated = np.concatenate((seconds, seconds[again]))
    expected = hz * repeated.size / count
    assert hz_of(repeated) == pytest.approx(expected, rel=0.08)
    if jitter < 0.1 and not again.any():
        # The first and the last stamp are off by the jitter, whatever happens in between.
        assert hz_of(repeated) == pytest.approx(hz, rel=0.01 + 2 * jitter / count)


@given(
    hz=st.floats(5, 1000),
    count=st.integers(100, 400),
    jitter=st.floats(0, 0.2),
    holes=st.lists(st.floats(0.05, 0.95), max_size=4),
    length_s=st.floats(0.5, 1e4),
    late_s=st.floats(0, 1e6),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_holes_and_a_late_start_do_not_bend_the_rate(
    hz: float, count: int, jitter: float, holes: list[float], length_s: float, late_s: float, seed: int
) -> None:
    noise = np.random.default_rng(seed).uniform(-jitter, jitter, count) / hz
    length_s = max(length_s, 2.5, 10 / hz)
    assert hz_of(late_s + with_holes(steady(hz, count), holes, length_s) + noise) == pytest.approx(hz, rel=0.03)


@given(
    hz=st.floats(20, 2000),
    size=st.integers(2, 64),
    count=st.integers(20, 100),
    holes=st.lists(st.floats(0.1, 0.9), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_bursts_with_holes(hz: float, size: int, count: int, holes: list[float]) -> None:
    seconds = bursts(hz, size, count)
    paused = with_holes(seconds, [round(share * count) / count for share in holes], 100 * size / hz)
    # Each hole, and the end, takes the pause after one burst with it.
    assert hz_of(paused) == pytest.approx(hz, rel=0.02 + 1.5 * (1 + len(holes)) / count)


@given(st.lists(st.integers(-(2**62) + 1, 2**62 - 1), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_times_have_a_rate_or_none(times_ns: list[int]) -> None:
    times = np.array(times_ns, np.int64)
    rate = measure_rate(times)
    assert (rate is None) == (len(set(times_ns)) < 2)
    if rate is not None:
        assert 1 <= rate.period_ns <= rate.arrival_ns and rate.hz > 0
        shuffled = measure_rate(times[::-1].copy())
        assert shuffled == rate
