"""Stretches of time that are episodes: what start and stop words, or a file beside the recording, say of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.conversion.episodes.events import Said, is_switch, read_said
from penstock.conversion.episodes.settings import Episodes
from penstock.conversion.settings import Clock
from penstock.errors import AlignError
from penstock.recordings.recording import Recording

EARLIEST_NS, LATEST_NS = -(2**62), 2**62
_STOP, _START, _DISCARD = 0, 1, 2
_START_WORDS, _STOP_WORDS = ("start", "begin", "record"), ("stop", "end", "finish", "done", "pause")


@dataclass(frozen=True)
class Subtask:
    """A text that holds from a time on, until the next one."""

    start_ns: int
    text: str


@dataclass(frozen=True)
class Window:
    """One episode in time: from `begin_ns` up to, not including, `end_ns`."""

    begin_ns: int = EARLIEST_NS
    end_ns: int = LATEST_NS
    task: str | None = None
    subtasks: tuple[Subtask, ...] | None = None
    discarded: bool = False

    @property
    def is_whole(self) -> bool:
        return self.begin_ns == EARLIEST_NS and self.end_ns == LATEST_NS


WHOLE = Window()


@dataclass(frozen=True)
class Marked:
    """The windows that a topic marks, and what is to be said of its messages."""

    windows: tuple[Window, ...]
    notes: tuple[str, ...]
    unreadable: tuple[Said, ...]


def read_windows(recording: Recording, asked: Episodes, clock: Clock) -> Marked:
    """The episodes that the messages of `episodes.topic` (and `stop_topic`) mark."""
    assert asked.topic is not None
    start, stop = asked.start, asked.stop
    if start is None and stop is None and asked.stop_topic is None and is_switch(recording, asked.topic, asked.field):
        start, stop = ("true",), ("false",)
    own_stop = stop if asked.stop_topic is None else None
    words = (start, own_stop, asked.discard)
    said = read_said(recording, asked.topic, asked.field, clock, need_text=any(words))
    notes = _advice(said) if not any(words) and asked.stop_topic is None else []
    marks = _marks(said, start, own_stop, asked.discard)
    heard = [said]
    if asked.stop_topic is not None:
        ending = read_said(recording, asked.stop_topic, asked.stop_field, clock, need_text=stop is not None)
        chosen = np.ones(len(ending), np.bool_) if stop is None else ending.matching(stop)
        marks += [(time_ns, _STOP) for time_ns in ending.times_ns[chosen].tolist()]
        heard.append(ending)
    has_stop = stop is not None or asked.stop_topic is not None or asked.discard is not None
    windows, unchanged = _between(sorted(marks), has_stop)
    if unchanged:
        notes.append(f"{asked.topic}: {unchanged:,} messages say what was so already, and change nothing")
    if not windows:
        raise AlignError(
            f"{recording.path}: no episode begins: {asked.topic} has {len(said):,} messages{_listed(said)}",
            hint="check episodes.start and episodes.field, or leave out episodes.topic",
        )
    return Marked(tuple(windows), tuple(notes), tuple(each for each in heard if each.unreadable))


def _marks(
    said: Said, start: tuple[str, ...] | None, stop: tuple[str, ...] | None, discard: tuple[str, ...] | None
) -> list[tuple[int, int]]:
    """(time, what it does) of the messages that do something."""
    kinds = np.full(len(said), _START if start is None else -1, np.int8)
    for words, kind in ((start, _START), (stop, _STOP), (discard, _DISCARD)):
        if words:
            kinds[said.matching(words)] = kind
    chosen = np.flatnonzero(kinds >= 0)
    return list(zip(said.times_ns[chosen].tolist(), kinds[chosen].tolist(), strict=True))


def _between(marks: Iterable[tuple[int, int]], has_stop: bool) -> tuple[list[Window], int]:
    """Windows from marks in order of time; where something ends them, a second start changes nothing."""
    windows: list[Window] = []
    begun_ns: int | None = None
    unchanged = 0
    for time_ns, kind in marks:
        if kind == _START:
            if begun_ns is not None and has_stop:
                unchanged += 1
                continue
            if begun_ns is not None:
                windows.append(Window(begun_ns, time_ns))
            begun_ns = time_ns
        elif begun_ns is None:
            unchanged += 1
        else:
            windows.append(Window(begun_ns, time_ns, discarded=kind == _DISCARD))
            begun_ns = None
    if begun_ns is not None:
        windows.append(Window(begun_ns))
    return windows, unchanged


def overlapping(windows: Iterable[Window]) -> Iterator[tuple[Window, Window]]:
    """Neighbours of which the second begins before the first has ended."""
    return ((first, second) for first, second in pairwise(windows) if second.begin_ns < first.end_ns)


def _advice(said: Said) -> list[str]:
    """Words that look like start and stop, while every message begins an episode."""
    words = {text.strip().casefold() for text in said.texts}
    if words & set(_START_WORDS) and words & set(_STOP_WORDS):
        return [f"every message of {said.topic} begins an episode{_listed(said)}: set episodes.start and episodes.stop"]
    return []


def _listed(said: Said) -> str:
    shown = [repr(text) for text in said.texts[:6] if text]
    return f" ({', '.join(shown)}{', …' if len(said.texts) > 6 else ''})" if shown else ""
