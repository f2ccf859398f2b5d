"""`@span` above what is no plain function: methods that need no object, classes, caches; else an error for people."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.profile import disable, enable, gpu_span, snapshot, span

BOTH = pytest.mark.parametrize("timed", [span, gpu_span])


def calls() -> dict[str, int]:
    return {told.name: told.count for told in snapshot().spans}


@BOTH
def test_methods_of_the_class_stay_such_above_and_below_their_own_decorator(timed: Callable[[str], Any]) -> None:
    class Codec:
        @timed("above")
        @staticmethod
        def above(x: int) -> int:
            return x + 1

        @staticmethod
        @timed("below")
        def below(x: int) -> int:
            return x + 1

        @timed("made")
        @classmethod
        def made(cls, x: int) -> tuple[str, int]:
            return cls.__name__, x

    class Other(Codec):
        pass

    assert Codec().above(1) == Codec.above(1) == Codec().below(1) == Codec.below(1) == 2
    assert Other().made(3) == Other.made(3) == ("Other", 3) and Codec.made(3) == ("Codec", 3)
    assert calls() == {"above": 2, "below": 2, "made": 3}


def test_their_names_are_those_of_the_functions() -> None:
    class Codec:
        @span
        @staticmethod
        def one() -> int:
            return 1

        @span
        @classmethod
        def two(cls) -> int:
            return 2

    assert (Codec().one(), Codec().two()) == (1, 2)
    assert {name.rsplit(".", 2)[-2:][0] + "." + name.rsplit(".", 1)[-1] for name in calls()} == {
        "Codec.one", "Codec.two",
    }  # fmt: skip


@pytest.mark.parametrize("above", [property, functools.cached_property])
def test_what_can_not_be_called_is_refused_and_not_made_another_thing(above: Any) -> None:
    for decorate in (span("area"), span):
        with pytest.raises(UsageError, match=above.__name__) as told:

            class Square:
                @decorate  # type: ignore[misc, arg-type]
                @above
                def area(self) -> int:
                    return 4

        assert "below" in str(told.value.hint)


def test_below_a_property_it_works() -> None:
    class Square:
        @property
        @span("area")
        def area(self) -> int:
            return 4

    assert Square().area == 4 and calls() == {"area": 1}


def test_off_everything_is_handed_back_as_it_was() -> None:
    disable()
    try:
        both = staticmethod(len), classmethod(len), int
        assert all(span("off")(each) is each for each in both)  # type: ignore[type-var]
    finally:
        enable()
