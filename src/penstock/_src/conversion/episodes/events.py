"""What topics say from time to time (texts, start and stop words, service calls), and the episodes that they mark."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_REQUESTS, _RESPONSES = (0, 1), (2, 3)  # service_msgs/ServiceEventInfo: sent, received
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

    def __repr__(self) -> str:
        return f"TopicTexts({self.topic!r}, {len(self):,} messages, {len(self.texts)} texts)"

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
    collected = _TextCollector()
    if _is_service_event(decoder):
        _collect_calls(recording, topic, decoder, field, collected, need_text)
    else:
        path = field or _only_word(decoder.message)
        if path is None and need_text:
            raise ConfigError(
                f"{recording.path}: {name} ({topic.type}) has no obvious field with a word or a text",
                hint="name it: episodes.field for the topic that marks episodes, {topic: …, field: …} for texts",
            )
        _collect_texts(recording, topic, decoder, path, collected)
    return collected.attribute(topic, _times_ns(recording, topic, decoder, clock))


def is_switch(recording: Recording, name: str, field: str | None) -> bool:
    """Whether the word of a topic is a bool: true starts, false stops."""
    decoder = recording.decoder(recording.topic(name))
    if _is_service_event(decoder):
        request = _part(decoder, "request")
        path = field or (None if request is None else _only_word(request))
        kind = None if request is None or path is None else request.field(path)
    else:
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


def _times_ns(recording: Recording, topic: Topic, decoder: MessageDecoder, clock: Clock) -> NDArray[np.int64]:
    """By the clock of the rows where the messages have it: a std_msgs/String has no stamp."""
    return recording.header_times_ns(topic) if clock == "header" and decoder.has_header else recording.times_ns(topic)


class _TextCollector:
    """Message numbers and texts as they are read; equal texts are kept once."""

    def __init__(self) -> None:
        self._numbers, self._which = array("q"), array("i")
        self._texts: dict[str, int] = {}
        self._bytes = 0
        self._unreadable = 0
        self._reason = ""

    def add(self, number: int, text: str) -> None:
        if len(text) > MAX_TEXT_CHARACTERS:
            raise MessageError(f"a text of {len(text):,} characters; {MAX_TEXT_CHARACTERS:,} are read")
        place = self._texts.get(text)
        if place is None:
            self._bytes += len(text)
            if self._bytes > MAX_TEXTS_BYTES:
                raise LimitExceeded(
                    f"the texts of a topic are longer than {MAX_TEXTS_BYTES:,} characters together",
                    size=self._bytes,
                    limit=MAX_TEXTS_BYTES,
                    hint="it does not look like a topic of tasks or words; choose another field",
                )
            place = self._texts[text] = len(self._texts)
        self._numbers.append(number)
        self._which.append(place)

    def add_unreadable(self, error: MessageError) -> None:
        self._unreadable += 1
        self._reason = self._reason or error.message

    def attribute(self, topic: Topic, times_ns: NDArray[np.int64]) -> TopicTexts:
        numbers = np.array(self._numbers, np.int64)
        which = np.array(self._which, np.int32)
        own_ns = times_ns[numbers]
        order = np.argsort(own_ns, kind="stable")
        return TopicTexts(topic.name, own_ns[order], which[order], tuple(self._texts), self._unreadable, self._reason)


def _collect_texts(
    recording: Recording, topic: Topic, decoder: MessageDecoder, path: str | None, collected: _TextCollector
) -> None:
    if path is None:
        for number in range(topic.count):
            collected.add(number, "")
        return
    kind = decoder.field_at(parse_path(path))
    last = parse_path(path).parts[-1] if parse_path(path).parts else None
    if kind is None or not (_is_word(kind.type) or isinstance(last and last.selector, int)):
        raise ConfigError(f"field {path!r} of {topic.name} ({topic.type}) is neither a text, a number nor a bool")
    is_bool = kind.type.name == "bool"
    read = decoder.reader([path])
    for number, payload in recording.payloads(topic):
        if payload is None:
            continue  # what lies in a damaged chunk is counted by the recording itself
        try:
            value = read(payload)[0]
            collected.add(number, _text_of(bool(value) if is_bool else value))
        except MessageError as error:
            collected.add_unreadable(error)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else word_of(value.item() if hasattr(value, "item") else value)


# ── service calls: introspection records up to four messages for each ────────────────────────────────────────────────


def _is_service_event(decoder: MessageDecoder) -> bool:
    info = decoder.message.field("info")
    return info is not None and info.type.name == EVENT_INFO_TYPE


def _part(decoder: MessageDecoder, name: str) -> MessageDef | None:
    field = decoder.message.field(name)
    return None if field is None or field.type.kind != "message" else decoder.definition(field.type.name)


def _only_word(message: MessageDef) -> str | None:
    names = [field.name for field in message.fields if _is_word(field.type)]
    return names[0] if len(names) == 1 else next((name for name in _TELLING if name in names), None)


def _collect_calls(
    recording: Recording,
    topic: Topic,
    decoder: MessageDecoder,
    field: str | None,
    collected: _TextCollector,
    need_text: bool,
) -> None:
    """Each call once, at its first message; calls that were answered with `success: false` did nothing."""
    request = _part(decoder, "request")
    word = field or (None if request is None else _only_word(request))
    if field is not None and (request is None or request.field(field) is None):
        raise ConfigError(f"the request of {topic.name} ({topic.type}) has no field {field!r}")
    if word is None and need_text:
        raise ConfigError(
            f"{topic.name} ({topic.type}): its requests hold no word",
            hint="leave out start and stop: every call then begins an episode, and stop_topic names what ends it",
        )
    calls: dict[tuple[Any, ...], list[Any]] = {}  # first message, word, refused
    decode: Callable[[memoryview], dict[str, Any]] = decoder.decode
    for number, payload in recording.payloads(topic):
        if payload is None:
            continue
        try:
            message = decode(payload)
        except MessageError as error:
            collected.add_unreadable(error)
            continue
        info = message["info"]
        key = (*np.asarray(info["client_gid"]).ravel().tolist(), int(info["sequence_number"]))
        call = calls.setdefault(key, [number, "", False])
        if int(info["event_type"]) in _REQUESTS and word is not None and message["request"]:
            call[1] = call[1] or _text_of(message["request"][0][word])
        if int(info["event_type"]) in _RESPONSES and message["response"]:
            answer = message["response"][0]
            call[2] = call[2] or ("success" in answer and not answer["success"])
    for number, text, refused in calls.values():
        if not refused:
            collected.add(number, text)


EARLIEST_NS, LATEST_NS = -(2**62), 2**62
_STOP, _START, _DISCARD = 0, 1, 2
_START_WORDS, _STOP_WORDS = ("start", "begin", "record"), ("stop", "end", "finish", "done", "pause")


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
) -> tuple[tuple[EpisodeWindow, ...], list[str], list[TopicTexts]]:
    """The episodes that the messages of `episodes.topic` (and `stop_topic`) mark, notes, and what was read of both."""
    assert settings.topic is not None
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
    notes = _advice(texts) if not any(words) and settings.stop_topic is None else []
    marks = _marks(texts, start, own_stop, settings.discard)
    topics = [texts]
    if settings.stop_topic is not None:
        ending = read_texts(recording, settings.stop_topic, settings.stop_field, clock, need_text=stop is not None)
        chosen = np.ones(len(ending), np.bool_) if stop is None else ending.matching(stop)
        marks += [(time_ns, _STOP) for time_ns in ending.times_ns[chosen].tolist()]
        topics.append(ending)
    has_stop = stop is not None or settings.stop_topic is not None or settings.discard is not None
    windows, unchanged = _between(sorted(marks), has_stop)
    if unchanged:
        notes.append(f"{settings.topic}: {unchanged:,} messages repeat the current state and change nothing")
    if not windows:
        raise AlignError(
            f"{recording.path}: no episode begins: {settings.topic} has {len(texts):,} messages{_listed(texts)}",
            hint="check episodes.start and episodes.field, or leave out episodes.topic",
        )
    return tuple(windows), notes, topics


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


def _between(marks: Iterable[tuple[int, int]], has_stop: bool) -> tuple[list[EpisodeWindow], int]:
    """Windows from marks in order of time; where something ends them, a second start changes nothing."""
    windows: list[EpisodeWindow] = []
    start_ns: int | None = None
    unchanged = 0
    for time_ns, kind in marks:
        if kind == _START:
            if start_ns is not None and has_stop:
                unchanged += 1
                continue
            if start_ns is not None:
                windows.append(EpisodeWindow(start_ns, time_ns))
            start_ns = time_ns
        elif start_ns is None:
            unchanged += 1
        else:
            windows.append(EpisodeWindow(start_ns, time_ns, discarded=kind == _DISCARD))
            start_ns = None
    if start_ns is not None:
        windows.append(EpisodeWindow(start_ns))
    return windows, unchanged


def overlapping(windows: Iterable[EpisodeWindow]) -> Iterator[tuple[EpisodeWindow, EpisodeWindow]]:
    """Neighbours of which the second begins before the first has ended."""
    return ((first, second) for first, second in pairwise(windows) if second.begin_ns < first.end_ns)


def _advice(texts: TopicTexts) -> list[str]:
    """Words that look like start and stop, while every message begins an episode."""
    words = {text.strip().casefold() for text in texts.texts}
    if words & set(_START_WORDS) and words & set(_STOP_WORDS):
        return [
            f"every message of {texts.topic} begins an episode{_listed(texts)}: set episodes.start and episodes.stop"
        ]
    return []


def _listed(texts: TopicTexts) -> str:
    shown = [repr(text) for text in texts.texts[:6] if text]
    return f" ({', '.join(shown)}{', …' if len(texts.texts) > 6 else ''})" if shown else ""
