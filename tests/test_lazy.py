"""The quick `dataclass` makes classes that behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import penstock.lazy


def make(decorator: Any, name: str) -> Any:
    class Value:
        """A value."""

        first: int
        second: str = "two"
        third: list[int] = dataclasses.field(default_factory=list)
        hidden: int = dataclasses.field(default=0, repr=False, compare=False)

    Value.__name__ = Value.__qualname__ = name
    return decorator(frozen=True)(Value)


QUICK, STANDARD = make(penstock.lazy.dataclass, "Value"), make(dataclasses.dataclass, "Value")


@penstock.lazy.dataclass(frozen=True)
class Checked:
    """Refuses what is negative."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


@penstock.lazy.dataclass
class Counter:
    """Not frozen."""

    count: int = 0


@penstock.lazy.dataclass(frozen=True)
class Deeper(Checked):
    """Inherits a field."""

    depth: int = 1


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, "x"), {}), ((), {"first": 3, "third": [1]}), ((1, "x", [2], 4), {}), ((1,), {"hidden": 9})],
)
def test_instances_show_and_compare_alike(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    quick, standard = QUICK(*values, **named), STANDARD(*values, **named)
    assert repr(quick) == repr(standard)
    assert dataclasses.asdict(quick) == dataclasses.asdict(standard)
    assert quick == QUICK(*values, **named)
    assert (quick == QUICK(99)) == (standard == STANDARD(99))
    assert dataclasses.replace(quick, first=7).first == 7
    assert [each.name for each in dataclasses.fields(quick)] == [each.name for each in dataclasses.fields(standard)]


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"first": 2}), ((1,), {"no": 1})]
)
def test_wrong_calls_are_refused_alike(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (QUICK, STANDARD):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_a_default_that_is_made_is_made_anew_each_time() -> None:
    assert QUICK(1).third is not QUICK(1).third


def test_frozen_is_frozen_and_hashes() -> None:
    value = Checked(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.size = 4  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.size  # type: ignore[misc]
    assert hash(value) == hash(Checked(3))
    assert {Checked(3): "a"}[Checked(3)] == "a"
    assert copy.copy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_what_is_not_frozen_changes_and_does_not_hash() -> None:
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError):
        hash(counter)


def test_post_init_runs_and_fields_are_inherited() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    with pytest.raises(ValueError, match="negative"):
        Deeper(-1)
    assert Deeper(1, 2) == Deeper(size=1, depth=2) != Deeper(1)
    assert Checked(1) != Deeper(1)
