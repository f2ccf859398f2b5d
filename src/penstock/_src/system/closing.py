"""What `with` does for everything that holds something until it is closed, and for what fails before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing:
    """A context manager that gives itself, and is closed at the end."""

    def close(self) -> None:
        """Give back what is held; more than once is fine."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` when the block fails, whatever ended it; the error goes on."""
    try:
        yield
    except BaseException:
        undo()
        raise
