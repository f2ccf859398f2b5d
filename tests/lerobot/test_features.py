from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.lerobot.features import Feature, check_features, key_problem, parse_feature, safe_key
from penstock.errors import DataSetCorrupt, DataSetError

HOSTILE = [
    "a/b",
    "../x",
    "a\x00b",
    "..",
    ".hidden",
    "x" * 300,
    "",
    "  ",
    "a\\b",
    "<script>",
    "a\nb",
    "é" * 120,
    "\ud800",
    "x.",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_names_are_refused_with_a_safe_proposal(key: str) -> None:
    with pytest.raises(DataSetError) as caught:
        check_features([Feature(key, "float32", (1,))])
    assert "feature name" in caught.value.message and len(caught.value.message) < 300
    assert caught.value.hint is not None and key_problem(safe_key(key)) is None


@pytest.mark.parametrize("key", ["observation.images.cam_h", "状态", "arm 🤖", "größe", "x" * 180])
def test_names_in_any_script_are_welcome(key: str) -> None:
    check_features([Feature(key, "float32", (1,))])


@pytest.mark.parametrize("key", ["timestamp", "index", "task_index", "task"])
def test_lerobots_own_columns_cannot_be_taken(key: str) -> None:
    with pytest.raises(DataSetError, match="LeRobot"):
        check_features([Feature(key, "float32", (1,))])


@pytest.mark.parametrize("keys", [("a", "a"), ("State", "state")])
def test_names_that_collide_are_refused(keys: tuple[str, str]) -> None:
    with pytest.raises(DataSetError, match="the same or differ only in case"):
        check_features([Feature(key, "float32", (1,)) for key in keys])


@given(st.text(max_size=400))
def test_safe_key_always_gives_a_name_that_is_accepted_and_is_stable(text: str) -> None:
    key = safe_key(text)
    assert key_problem(key) is None
    assert Path("/r", key).parent == Path("/r")
    if key_problem(text) is None and not text.startswith("_") and not text.endswith("_"):
        assert key == text


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float23", (1,)), ("float32", ()), ("float32", (0,)), ("video", (3, 4)), ("video", (3, 4, 2)), ("string", (2,))],
)
def test_impossible_features_are_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DataSetError):
        Feature("a", dtype, shape)


@pytest.mark.parametrize(
    "entry", [None, 3, {}, {"dtype": "float32"}, {"dtype": "float32", "shape": "x"}, {"dtype": "q", "shape": [1]}]
)
def test_broken_entries_of_info_json_are_named(entry: object) -> None:
    with pytest.raises(DataSetCorrupt, match=r"info\.json"):
        parse_feature("state", entry, "info.json")


def test_dimension_names_of_v21_are_unwrapped() -> None:
    feature = parse_feature("state", {"dtype": "float32", "shape": [2], "names": [["a", "b"]]}, "info.json")
    assert feature.dimension_names == ["a", "b"]
