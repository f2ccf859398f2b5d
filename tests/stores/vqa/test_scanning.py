"""Where records lie is found without parsing them, whatever strings hold and wherever blocks end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._src.stores.vqa import scanning
from penstock._src.system.files import open_source
from penstock.errors import StoreCorrupt

_TEXT = st.text(alphabet='ab"\\[]{},: \n\té…', max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)
_RECORDS = st.lists(st.dictionaries(_TEXT, _VALUES, max_size=4) | _VALUES, max_size=12)
_per_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _pieces(path: Path, keys: tuple[str, ...] | None) -> list[bytes]:
    with open_source(path) as source:
        spans = scanning.line_spans(source) if keys is None else scanning.element_spans(source, keys)
        return [source.read(start, stop - start) for block in spans for start, stop in block.tolist()]


@_per_test
@given(records=_RECORDS, indent=st.sampled_from([None, 0, 2]), block=st.integers(1, 40), escaped=st.booleans())
def test_the_elements_of_an_array_are_its_records(
    tmp_path: Path, records: list[Any], indent: int | None, block: int, escaped: bool
) -> None:
    path = tmp_path / "records.json"
    path.write_text(json.dumps(records, indent=indent, ensure_ascii=escaped), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "BLOCK_BYTES", block)
        assert [json.loads(piece) for piece in _pieces(path, ())] == records


@_per_test
@given(records=_RECORDS, before=_VALUES, behind=_VALUES, block=st.integers(1, 64))
def test_the_array_of_an_object_is_found_by_its_key(
    tmp_path: Path, records: list[Any], before: Any, behind: Any, block: int
) -> None:
    path = tmp_path / "records.json"
    whole = {"info": before, "other": [{"questions": [1]}], "questions": records, "license": behind}
    path.write_text(json.dumps(whole), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "BLOCK_BYTES", block)
        assert [json.loads(piece) for piece in _pieces(path, ("questions",))] == records


@_per_test
@given(
    lines=st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b" "))),
    block=st.integers(1, 50),
    is_ended=st.booleans(),
)
def test_lines_are_those_that_hold_something(tmp_path: Path, lines: list[bytes], block: int, is_ended: bool) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if is_ended else b""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "BLOCK_BYTES", block)
        found = _pieces(path, None)
    # A line of white space that is longer than any record could be short stays, and is named as malformed.
    assert [line for line in found if line.strip()] == [line for line in lines if line.strip()]
    assert all(len(line) >= 16 for line in found if not line.strip())


def test_an_array_that_was_cut_ends_with_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(b'[{"a": 1}, {"a": 2}, {"a":')
    assert [piece.strip() for piece in _pieces(path, ())] == [b'{"a": 1}', b'{"a": 2}', b'{"a":']


def test_an_object_without_such_an_array_says_what_was_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"layers": [1, 2]}')
    with pytest.raises(StoreCorrupt, match="an array at 'questions' was not found"):
        _pieces(path, ("questions",))


def test_the_number_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\n\nthree\nfour")
    monkeypatch.setattr(scanning, "BLOCK_BYTES", 4)
    with open_source(path) as source:
        assert [scanning.line_number(source, place) for place in (0, 3, 4, 5, 10, 11)] == [1, 1, 2, 3, 3, 4]
