"""What a user may ask of episodes: where they begin and end, and where their tasks are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as option
from typing import Any

from penstock.system import config, units

AUTO, NONE = "auto", "none"
_NEED_TOPIC = ("field", "start", "stop", "discard", "stop_topic", "stop_field")


def _words(value: Any) -> tuple[str, ...] | None:
    """One word or several, as `word_of` writes the values of messages."""
    if value is None:
        return None
    found = tuple(word_of(each) for each in (value if isinstance(value, (list, tuple)) else [value]))
    if not found or not all(found):
        raise ValueError(f"{value!r} is neither a word, a number, true or false, nor a list of them")
    return found


def word_of(value: Any) -> str:
    """A value as the word that a configuration would write for it: true, 1, start; nothing for other things."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() if isinstance(value, (str, int, float)) else ""


def _length_ns(value: Any) -> int | None:
    if value is None:
        return None
    if (duration_ns := units.parse_duration_ns(value)) <= 0:
        raise ValueError(f"{value!r} is no length: write for example 2s or 500ms")
    return duration_ns


def _sidecar(value: Any) -> str:
    if value is None or value is False:
        return NONE
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not auto, none or a file")
    return value


@dataclass(frozen=True)
class TextTopic:
    """A topic that says a text from time to time; it holds until the next one."""

    topic: str
    field: str | None = None


def _text_topic(value: Any) -> TextTopic | None:
    if value is None or isinstance(value, TextTopic):
        return value
    if isinstance(value, str):
        return TextTopic(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is neither a topic nor a mapping of topic and field")
    return config.build(TextTopic, value)


_LENGTH = {"parse": _length_ns, "dump": units.duration_text}
_TEXT = {"parse": _text_topic}
_WORD = {"parse": _words}


@dataclass(frozen=True)
class Episodes:
    """`episodes:` — a recording is one episode unless a topic, a sidecar file or a gap says otherwise."""

    topic: str | None = None
    field: str | None = None
    start: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    stop: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    discard: tuple[str, ...] | None = option(default=None, metadata=_WORD)
    stop_topic: str | None = None
    stop_field: str | None = None
    gap: int | None = option(default=None, metadata=_LENGTH)
    min_length: int | None = option(default=None, metadata=_LENGTH)
    max_length: int | None = option(default=None, metadata=_LENGTH)
    task: TextTopic | None = option(default=None, metadata=_TEXT)
    subtask: TextTopic | None = option(default=None, metadata=_TEXT)
    subtasks: bool | None = None  # whether rows have a subtask; null: where some are given
    language: bool = False  # subtasks also as LeRobot's language column
    sidecar: str = option(default=AUTO, metadata={"parse": _sidecar})

    def __post_init__(self) -> None:
        if self.topic is None:
            for name in _NEED_TOPIC:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} has no meaning without episodes.topic, the topic that marks episodes")
        if self.stop_field is not None and self.stop_topic is None:
            raise ValueError("stop_field has no meaning without episodes.stop_topic")
        if self.min_length and self.max_length and self.min_length > self.max_length:
            raise ValueError(
                f"min_length {units.duration_text(self.min_length)} is more than "
                f"max_length {units.duration_text(self.max_length)}: no episode could be both"
            )
        if self.subtask is not None and self.subtasks is False:
            raise ValueError("subtasks: false leaves out the subtasks that episodes.subtask asks for")
        if self.language and self.subtasks is False:
            raise ValueError("language: true needs the subtasks that subtasks: false leaves out")

    @property
    def topics(self) -> frozenset[str]:
        """The topics that speak of episodes, and are therefore no part of what the robot saw or did."""
        said = [each.topic for each in (self.task, self.subtask) if each is not None]
        return frozenset(name for name in (self.topic, self.stop_topic, *said) if name is not None)
