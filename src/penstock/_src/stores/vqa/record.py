"""One record: what a line, an array element or a file beside an image says of a question, its answer and its images.

Four spellings are read, each record by itself: plain keys (`question`, `answer`, `image`), VQAv2 (a question with its
annotation), LLaVA (`conversations` of `from` and `value`) and chat messages (`messages` of `role` and `content`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.errors import UsageError

FIELDS = ("question", "answer", "image")
IMAGE_TOKEN = "<image>"
_KEYS: Mapping[str, tuple[str, ...]] = {
    "question": ("question", "query", "prompt", "instruction"),
    "answer": ("answer", "multiple_choice_answer", "response", "output", "label", "caption", "text"),
    "image": ("image", "images", "image_path", "file_name", "filename", "img"),
}
_CHATS = ("conversations", "messages")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_NO_NUMBER = -1
_MOST = 1 << 63
_decode = json.JSONDecoder().decode  # a third of the time of json.loads(bytes) goes into guessing the encoding


class MalformedRecord(ValueError):
    """A record that cannot be used; the reason is its text."""


class VQARecord(NamedTuple):
    """A question about images."""

    question: str
    """Of a conversation, what the user says first, without the image token."""
    answer: str
    """Of a conversation, the first reply; of several answers, the one that most people gave."""
    images: tuple[str, ...] = ()
    """Names of files, or data: URLs."""
    answers: tuple[str, ...] = ()
    """All of them, where there are several."""
    turns: tuple[tuple[str, str], ...] = ()
    """(role, text) of every turn of a conversation, as written."""
    question_id: int = _NO_NUMBER
    image_id: int = _NO_NUMBER


def keys_for(fields: Mapping[str, str] | None) -> Mapping[str, tuple[str, ...]]:
    """By question, answer and image: the keys that hold them; those that a user names instead of the usual ones."""
    if not fields:
        return _KEYS
    if not isinstance(fields, Mapping) or any(
        name not in FIELDS or not isinstance(key, str) for name, key in fields.items()
    ):
        raise UsageError(f"fields={fields!r}", hint=f'of {", ".join(FIELDS)}: fields={{"question": "query"}}')
    return {**_KEYS, **{name: (key,) for name, key in fields.items()}}


def parse(data: bytes, annotation: bytes = b"", keys: Mapping[str, tuple[str, ...]] = _KEYS) -> VQARecord:
    """The record that these bytes are. `annotation`: the other half of a VQAv2 question."""
    fields = _mapping(data)
    if annotation:
        fields = {**fields, **_mapping(annotation)}
    for chat in _CHATS:
        if chat in fields:
            return _conversation(fields, chat, keys)
    return _plain(fields, keys)


def _mapping(data: bytes) -> dict[str, Any]:
    try:
        record = _decode(str(data, "utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"not UTF-8: {error.reason} at byte {error.start:,} of the record") from None
    except json.JSONDecodeError as error:
        raise MalformedRecord(f"not JSON: {error.msg} at byte {error.pos:,} of the record") from None
    except RecursionError:
        raise MalformedRecord("not readable JSON: brackets are nested too deeply") from None
    if not isinstance(record, dict):
        raise MalformedRecord(f"a record is an object with keys, this is {_kind(record)}")
    return record


def _plain(record: dict[str, Any], keys: Mapping[str, tuple[str, ...]]) -> VQARecord:
    answers = _answers(record.get("answers"))
    question = _first(record, keys["question"])
    answer = _first(record, keys["answer"])
    images = _images(_first(record, keys["image"]))
    if answer is None and answers:
        answer = Counter(answers).most_common(1)[0][0]
    if question is None and answer is None:
        raise MalformedRecord(f"neither a question nor an answer among {_listed(record)}")
    return VQARecord(
        _text(question, "question"),
        _text(answer, "answer"),
        images,
        answers,
        (),
        _number(record, "question_id"),
        _number(record, "image_id"),
    )


def _conversation(record: dict[str, Any], chat: str, keys: Mapping[str, tuple[str, ...]]) -> VQARecord:
    if not isinstance(record[chat], list):
        raise MalformedRecord(f"{chat!r} is a list of turns, not {_kind(record[chat])}")
    inside: list[str] = []
    turns = tuple(_turn(turn, chat, inside) for turn in record[chat])
    question = next((place for place, (role, _) in enumerate(turns) if role == "user"), None)
    if question is None:
        raise MalformedRecord(f"{chat!r} has no turn of a user among {len(turns)}")
    answer = next((text for role, text in turns[question:] if role == "assistant"), "")
    return VQARecord(
        turns[question][1].replace(IMAGE_TOKEN, "").strip(),
        answer,
        _images(_first(record, keys["image"])) or tuple(inside),
        (),
        turns,
        _number(record, "question_id"),
        _number(record, "image_id"),
    )


def _turn(turn: Any, chat: str, images: list[str]) -> tuple[str, str]:
    """Role and text of one turn; images that are a part of it go to `images`."""
    if not isinstance(turn, dict):
        raise MalformedRecord(f"a turn of {chat!r} is an object, not {_kind(turn)}")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    if role not in _ROLES:
        raise MalformedRecord(f"a turn of {chat!r} is of {role!r}, not of {', '.join(_ROLES)}")
    if isinstance(content, list):
        content = "".join(_part(part, images) for part in content)
    if not isinstance(content, str):
        raise MalformedRecord(f"a turn of {chat!r} has {_kind(content)} for a text")
    return _ROLES[role], content


def _part(part: Any, images: list[str]) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    image = part.get("image", part.get("image_url")) if isinstance(part, dict) else None
    if isinstance(image, dict):
        image = image.get("url")
    if not isinstance(image, str):
        raise MalformedRecord("a part of a turn is neither a text nor an image")
    images.append(image)
    return IMAGE_TOKEN


def _answers(answers: Any) -> tuple[str, ...]:
    if answers is None:
        return ()
    listed = answers if isinstance(answers, list) else [answers]
    return tuple(_text(each.get("answer") if isinstance(each, dict) else each, "answers") for each in listed)


def _images(images: Any) -> tuple[str, ...]:
    if images is None or images == "":
        return ()
    listed = images if isinstance(images, list) else [images]
    if wrong := [each for each in listed if not isinstance(each, str) or not each]:
        raise MalformedRecord(f"an image is the name of a file, not {_kind(wrong[0])}")
    return tuple(listed)


def _first(record: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        if (value := record.get(key)) is not None:
            return value
    return None


def _text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value) if isinstance(value, bool) else str(value)
    raise MalformedRecord(f"{what!r} is a text, not {_kind(value)}")


def _number(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    return value if type(value) is int and -_MOST <= value < _MOST else _NO_NUMBER


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _listed(record: dict[str, Any]) -> str:
    return ", ".join(map(repr, list(record)[:8])) or "no keys"
