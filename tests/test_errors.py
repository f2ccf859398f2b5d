"""The exception tree is the one drawn at the top of errors.py."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from penstock import errors


def _classes() -> dict[str, type[errors.PenstockError]]:
    return {
        name: item
        for name, item in vars(errors).items()
        if inspect.isclass(item) and issubclass(item, errors.PenstockError)
    }


def _drawn() -> dict[str, str | None]:
    """class → parent, read from the drawing."""
    parents: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s|$)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        if depth == 0 and name != "PenstockError":
            continue
        while stack and stack[-1][0] >= depth:
            stack.pop()
        parents[name] = stack[-1][1] if stack else None
        stack.append((depth, name))
    return parents


def test_the_drawing_and_the_classes_agree() -> None:
    real = {name: item.__bases__[0].__name__ for name, item in _classes().items()}
    assert _drawn() == {**real, "PenstockError": None}


def test_every_error_has_a_docstring_and_a_known_exit_code() -> None:
    for item in _classes().values():
        assert item.__doc__
        assert item.exit_code in (1, 2, 130)


def test_the_hint_is_shown_below_the_message() -> None:
    assert str(errors.UsageError("no such verb", hint="try penstock --help")) == "no such verb\n  → try penstock --help"
    assert str(errors.UsageError("no such verb")) == "no such verb"


def test_limits_carry_both_numbers() -> None:
    error = errors.BudgetExceeded("too much", size=10, limit=5)
    assert (error.size, error.limit, error.exit_code) == (10, 5, 1)


def test_a_missing_extra_names_the_pip_command() -> None:
    assert "pip install 'penstock[gpu]'" in str(errors.MissingExtra("pynvml", "gpu", "reading GPU memory"))


def test_a_corrupt_recording_names_file_and_byte() -> None:
    error = errors.RecordingCorrupt("chunk is cut", path="run.bag", offset=1234567)
    assert str(error) == "run.bag: byte 1,234,567: chunk is cut"
    assert str(errors.RecordingCorrupt("chunk is cut", path="run.bag")) == "run.bag: chunk is cut"


@pytest.mark.parametrize("kind", ["PenstockError", "UsageError", "ConfigError", "AlignError", "OutputExists"])
def test_plain_errors_cross_process_borders(kind: str) -> None:
    error = _classes()[kind]("what happened", hint="what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.PenstockError("what", hint="do"),
        errors.LimitExceeded("too big", size=5, limit=4, hint="less"),
        errors.RecordingCorrupt("cut", path="run.bag", offset=17),
        errors.MissingExtra("ray", "ray", "distributing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_border_whole(error: errors.PenstockError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again), again.args) == (str(error), vars(error), error.args)
