"""Every spelling of a record gives its question, answer and images; what cannot be used says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.stores.vqa.record import MalformedRecord, VQARecord, keys_for, parse
from penstock.errors import UsageError


def _parsed(record: Any, annotation: Any = None) -> VQARecord:
    return parse(json.dumps(record).encode(), b"" if annotation is None else json.dumps(annotation).encode())


def test_plain_keys() -> None:
    found = _parsed({"question": "Q?", "answer": 3, "image": "a.jpg", "question_id": 7, "image_id": 9})
    assert found == VQARecord("Q?", "3", ("a.jpg",), (), (), 7, 9)


@pytest.mark.parametrize(
    ("record", "question", "answer", "images"),
    [
        ({"query": "Q?", "response": "R", "images": ["a.jpg", "b.jpg"]}, "Q?", "R", ("a.jpg", "b.jpg")),
        ({"file_name": "a.png", "text": "a cat"}, "", "a cat", ("a.png",)),
        ({"question": "Q?", "answers": ["no", "yes", "yes"]}, "Q?", "yes", ()),
        ({"question": "Q?", "answer": True}, "Q?", "true", ()),
        ({"question": "Q?", "answer": None, "image": None}, "Q?", "", ()),
    ],
)
def test_other_names_of_the_same(record: Any, question: str, answer: str, images: tuple[str, ...]) -> None:
    found = _parsed(record)
    assert (found.question, found.answer, found.images) == (question, answer, images)


def test_a_question_with_its_annotation() -> None:
    answers = [{"answer": "net", "answer_id": 1}, {"answer": "nets", "answer_id": 2}]
    found = _parsed(
        {"question": "Q?", "question_id": 4, "image_id": 2},
        {"question_id": 4, "multiple_choice_answer": "net", "answers": answers},
    )
    assert found == VQARecord("Q?", "net", (), ("net", "nets"), (), 4, 2)


def test_a_conversation_of_llava() -> None:
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "This."}]
    found = _parsed({"id": "000", "image": "a.jpg", "conversations": turns})
    assert found[:3] == ("What?", "This.", ("a.jpg",))
    assert found.turns == (("user", "<image>\nWhat?"), ("assistant", "This."))


def test_chat_messages_with_images_inside() -> None:
    content = [
        {"type": "image", "image": "a.jpg"},
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "b.jpg"}},
    ]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    found = _parsed({"messages": messages})
    assert found[:3] == ("What?", "", ("a.jpg", "b.jpg"))
    assert found.turns[1] == ("user", "<image>What?<image>")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"question": ', "not JSON"),
        (b'{"question": "\xff"}', "not UTF-8"),
        (b"[1, 2]", "this is a list"),
        (b"17", "this is a number"),
        (b'{"a": 1}', "neither a question nor an answer among 'a'"),
        (b'{"question": {"text": "Q?"}}', "'question' is a text, not an object"),
        (b'{"question": "Q?", "image": 7}', "the name of a file, not a number"),
        (b'{"conversations": "hello"}', "a list of turns, not a text"),
        (b'{"messages": [{"role": "tool", "content": "x"}]}', "of 'tool'"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "no turn of a user"),
        (b'{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', "neither a text nor an image"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_used_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedRecord, match=reason):
        parse(data)


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["question", "answer", "answers", "image", "images", "messages", "conversations", "role",
                         "from", "value", "content", "question_id"]), inner, max_size=4),
    max_leaves=10,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_a_record_or_malformed(data: bytes) -> None:
    try:
        found = parse(data)
    except MalformedRecord:
        return
    assert isinstance(found.question, str) and isinstance(found.answer, str)
    assert all(isinstance(name, str) for name in found.images)


def test_a_user_names_the_fields() -> None:
    keys = keys_for({"question": "q", "image": "img"})
    found = parse(b'{"q": "Q?", "question": "no", "answer": "A", "img": "a.jpg"}', b"", keys)
    assert found[:3] == ("Q?", "A", ("a.jpg",))
    with pytest.raises(UsageError, match="fields="):
        keys_for({"pixels": "img"})
