"""What topics say from time to time (texts, start and stop words), and the episodes that they mark."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.settings import Clock, EpisodeSettings, word_of
from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.messages.definitions import EVENT_INFO_TYPE, HEADER_TYPE, FieldType, MessageDef
from penstock._src.recordings.messages.paths import parse_path
from penstock._src.recordings.recording import Recording, Topic
from penstock.errors import AlignError, ConfigError, LimitExceeded, MessageError

MAX_TEXT_CHARACTERS = 10_000
MAX_TEXTS_BYTES = 16 << 20  # of all distinct texts of a topic together
# Fields that hold what a message is about, where it has several.
_TELLING = ("data", "text", "task", "instruction", "event", "command", "state", "status", "name", "value", "success")
_SAME_WORDS = {"1": "true", "0": "false"}


@dataclass(frozen=True, eq=False)
class TopicTexts:
    """The messages of a topic in order of time: when, and which of `texts`."""

    topic: str
    times_ns: NDArray[np.int64]
    which: NDArray[np.int32]
    texts: tuple[str, ...]
    unreadable: int = 0
    reason: str = ""

    def __len__(self) -> int:
        return int(self.times_ns.size)

    def matching(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """Which messages say one of the words; 1 and true, 0 and false are the same word."""
        wanted = {_folded(word) for word in words}
        hits = np.array([_folded(text) in wanted for text in self.texts], dtype=np.bool_)
        return hits[self.which] if hits.size else np.zeros(len(self), np.bool_)

    def at(self, time_ns: int, until_ns: int) -> str | None:
        """The text of the last message at or before a time; where that says nothing, the first one until `until_ns`."""
        stop = int(np.searchsorted(self.times_ns, time_ns, side="right"))
        end = int(np.searchsorted(self.times_ns, until_ns, side="right"))
        texts = (self.texts[int(self.which[number])].strip() for number in range(max(stop - 1, 0), end))
        return next((text for text in texts if text), None)


def read_texts(
    recording: Recording, name: str, field: str | None, clock: Clock, *, need_text: bool = True
) -> TopicTexts:
    """All messages of a topic as texts; without `need_text` a type that holds none says ''."""
    topic = recording.topic(name)
    decoder = recording.decoder(topic)
    path = field or _only_word(decoder.message)
    if path is None and need_text:
        raise ConfigError(
            f"{recording.path}: {name} ({topic.type}) has no obvious field with a word or a text",
            hint="name it: episodes.field for the topic that marks episodes, {topic: …, field: …} for texts",
        )
    if path is None:
        collected = _Collected(array("q", range(topic.count)), array("i", bytes(4 * topic.count)), {"": 0})
    else:
        collected = _collect(recording, topic, decoder, path)
    # By the clock of the rows where the messages have it: a std_msgs/String has no stamp.
    by_header = clock == "header" and decoder.has_header
    times_ns = recording.header_times_ns(topic) if by_header else recording.times_ns(topic)
    own_ns = times_ns[np.array(collected.numbers, np.int64)]
    order = np.argsort(own_ns, kind="stable")
    which = np.array(collected.which, np.int32)[order]
    return TopicTexts(topic.name, own_ns[order], which, tuple(collected.texts), collected.unreadable, collected.reason)


def is_switch(recording: Recording, name: str, field: str | None) -> bool:
    """Whether the word of a topic is a bool: true starts, false stops."""
    decoder = recording.decoder(recording.topic(name))
    path = field or _only_word(decoder.message)
    kind = None if path is None else decoder.field_at(parse_path(path))
    return kind is not None and kind.type.kind == "primitive" and kind.type.name == "bool"


def _folded(text: str) -> str:
    word = text.strip().casefold()
    return _SAME_WORDS.get(word, word)


def _is_word(kind: FieldType) -> bool:
    if kind.array is not None or kind.name == HEADER_TYPE:
        return False
    return kind.kind in ("string", "wstring") or (kind.kind == "primitive" and kind.name not in ("time", "duration"))


class _Collected(NamedTuple):
    """Messages by number, and which of the texts each says; equal texts are kept once."""

    numbers: array[int]
    which: array[int]
    texts: dict[str, int]
    unreadable: int = 0
    reason: str = ""


def _collect(recording: Recording, topic: Topic, decoder: MessageDecoder, path: str) -> _Collected:
    parsed = parse_path(path)
    kind, last = decoder.field_at(parsed), parsed.parts[-1] if parsed.parts else None
    if kind is None or not (_is_word(kind.type) or isinstance(last and last.selector, int)):
        raise ConfigError(f"field {path!r} of {topic.name} ({topic.type}) is neither a text, a number nor a bool")
    numbers, which, texts = array("q"), array("i"), dict[str, int]()
    characters = unreadable = 0
    reason = ""
    read = decoder.reader([path])
    for number, payload in recording.payloads(topic):
        if payload is None:
            continue  # what lies in a damaged chunk is counted by the recording itself
        try:
            value = read(payload)[0]
            text = _text_of(bool(value) if kind.type.name == "bool" else value)
            if len(text) > MAX_TEXT_CHARACTERS:
                raise MessageError(f"a text of {len(text):,} characters; {MAX_TEXT_CHARACTERS:,} are read")
        except MessageError as error:
            unreadable, reason = unreadable + 1, reason or error.message
            continue
        if text not in texts:
            characters += len(text)
        if characters > MAX_TEXTS_BYTES:
            raise LimitExceeded(
                f"the texts of a topic are longer than {MAX_TEXTS_BYTES:,} characters together",
                size=characters,
                limit=MAX_TEXTS_BYTES,
                hint="it does not look like a topic of tasks or words; choose another field",
            )
        numbers.append(number)
        which.append(texts.setdefault(text, len(texts)))
    return _Collected(numbers, which, texts, unreadable, reason)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else word_of(value.item() if hasattr(value, "item") else value)


def _only_word(message: MessageDef) -> str | None:
    names = [field.name for field in message.fields if _is_word(field.type)]
    return names[0] if len(names) == 1 else next((name for name in _TELLING if name in names), None)


EARLIEST_NS, LATEST_NS = -(2**62), 2**62
_STOP, _START, _DISCARD = 0, 1, 2


class Subtask(NamedTuple):
    """A text that holds from a time on, until the next one."""

    start_ns: int
    text: str


class EpisodeWindow(NamedTuple):
    """One episode in time: from `begin_ns` up to, not including, `end_ns`."""

    begin_ns: int = EARLIEST_NS
    end_ns: int = LATEST_NS
    task: str | None = None
    subtasks: tuple[Subtask, ...] | None = None
    discarded: bool = False


WHOLE = EpisodeWindow()


class Sidecar(NamedTuple):
    """What the files beside one recording say of it; nothing, where there are none."""

    task: str | None = None
    windows: tuple[EpisodeWindow, ...] = ()
    subtasks: tuple[Subtask, ...] | None = None
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def read_windows(
    recording: Recording, settings: EpisodeSettings, clock: Clock
) -> tuple[tuple[EpisodeWindow, ...], list[TopicTexts]]:
    """The episodes that the messages of `episodes.topic` (and `stop_topic`) mark, and what was read of both."""
    assert settings.topic is not None
    for name in (settings.topic, settings.stop_topic):
        if name is not None:
            _refuse_service_calls(recording, name)
    start, stop = settings.start, settings.stop
    if (
        start is None
        and stop is None
        and settings.stop_topic is None
        and is_switch(recording, settings.topic, settings.field)
    ):
        start, stop = ("true",), ("false",)
    own_stop = stop if settings.stop_topic is None else None
    words = (start, own_stop, settings.discard)
    texts = read_texts(recording, settings.topic, settings.field, clock, need_text=any(words))
    marks = _marks(texts, start, own_stop, settings.discard)
    topics = [texts]
    if settings.stop_topic is not None:
        ending = read_texts(recording, settings.stop_topic, settings.stop_field, clock, need_text=stop is not None)
        chosen = np.ones(len(ending), np.bool_) if stop is None else ending.matching(stop)
        marks += [(time_ns, _STOP) for time_ns in ending.times_ns[chosen].tolist()]
        topics.append(ending)
    has_stop = stop is not None or settings.stop_topic is not None or settings.discard is not None
    windows = _between(sorted(marks), has_stop)
    if not windows:
        raise AlignError(
            f"{recording.path}: no episode begins: {settings.topic} has {len(texts):,} messages{_listed(texts)}",
            hint="check episodes.start and episodes.field, or leave out episodes.topic",
        )
    return tuple(windows), topics


def _refuse_service_calls(recording: Recording, name: str) -> None:
    """Service introspection records a call up to four times, whether or not it was granted."""
    topic = recording.topic(name)
    info = recording.decoder(topic).message.field("info")
    if info is not None and info.type.name == EVENT_INFO_TYPE:
        raise ConfigError(
            f"{recording.path}: {name} ({topic.type}) holds service calls: they mark no episodes",
            hint="name a topic that says what the call did, or write the episodes into a file beside the recording: "
            f"{recording.path.stem}.yaml, with episodes: [{{start: 0s, end: 12s}}]",
        )


def _marks(
    texts: TopicTexts, start: tuple[str, ...] | None, stop: tuple[str, ...] | None, discard: tuple[str, ...] | None
) -> list[tuple[int, int]]:
    """(time, what it does) of the messages that do something."""
    kinds = np.full(len(texts), _START if start is None else -1, np.int8)
    for words, kind in ((start, _START), (stop, _STOP), (discard, _DISCARD)):
        if words:
            kinds[texts.matching(words)] = kind
    chosen = np.flatnonzero(kinds >= 0)
    return list(zip(texts.times_ns[chosen].tolist(), kinds[chosen].tolist(), strict=True))


def _between(marks: Iterable[tuple[int, int]], has_stop: bool) -> list[EpisodeWindow]:
    """Windows from marks in order of time; where something ends them, a second start changes nothing."""
    windows: list[EpisodeWindow] = []
    start_ns: int | None = None
    for time_ns, kind in marks:
        if kind == _START:
            if start_ns is not None and has_stop:
                continue
            if start_ns is not None:
                windows.append(EpisodeWindow(start_ns, time_ns))
            start_ns = time_ns
        elif start_ns is not None:
            windows.append(EpisodeWindow(start_ns, time_ns, discarded=kind == _DISCARD))
            start_ns = None
    if start_ns is not None:
        windows.append(EpisodeWindow(start_ns))
    return windows


def overlapping(windows: Iterable[EpisodeWindow]) -> Iterator[tuple[EpisodeWindow, EpisodeWindow]]:
    """Neighbours of which the second begins before the first has ended."""
    return ((first, second) for first, second in pairwise(windows) if second.begin_ns < first.end_ns)


def _listed(texts: TopicTexts) -> str:
    shown = [repr(text) for text in texts.texts[:6] if text]
    return f" ({', '.join(shown)}{', …' if len(texts.texts) > 6 else ''})" if shown else ""
