"""`@span` and `@gpu_span`: every call of a function is timed, and the function stays of the kind that it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from penstock.errors import UsageError

Entered = AbstractContextManager[Any, None]
Awaited = Callable[[Awaitable[Any]], Awaitable[Any]]
_OF_CACHES = ("cache_info", "cache_clear", "cache_parameters")  # functools.lru_cache: no part of what `wraps` copies


def decorate(entered: Entered, awaited: Awaited, function: Any) -> Any:
    """Time every call; of a generator function every stretch between two yields; of a coroutine from call to end.

    A stretch of an async generator is timed as a coroutine is: from the asking for a value until it is there.
    `entered` is entered for each call, from any thread and again inside itself; `awaited` times what is waited for.
    Of a class its making is timed; a staticmethod or classmethod stays one.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(entered, awaited, function.__func__))
    if isinstance(function, type):
        return _made(entered, awaited, function)
    check_callable(function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **named: Any) -> Any:
            return await awaited(function(*args, **named))

        return waiting
    if inspect.isasyncgenfunction(function):
        return _async_stretches(awaited, function)
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generating(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
            return (yield from _Stretches(entered, function(*args, **named)))

        return generating

    @functools.wraps(function)
    def timed(*args: Any, **named: Any) -> Any:
        with entered:
            return function(*args, **named)

    for name in _OF_CACHES:
        if hasattr(function, name):
            setattr(timed, name, getattr(function, name))
    return timed


def check_callable(function: Any) -> None:
    """Refuse what a wrapper would silently make another thing of: a property, say."""
    if not callable(function):
        kind = type(function).__name__
        raise UsageError(f"@span above a {kind}: it cannot be called", hint=f"put @span below the {kind}")


def _made(entered: Entered, awaited: Awaited, made: type) -> type:
    """The class itself, with a timed `__init__`: whatever is derived from it or asks for it still finds a class."""
    known: Any = made
    if known.__init__ is object.__init__:
        raise UsageError(
            f"@span above a class: {made.__name__} has no __init__ of its own that could be timed",
            hint="put @span on the methods that take time",
        )
    known.__init__ = decorate(entered, awaited, known.__init__)
    return made


class _Stretches(Generator[Any, Any, Any]):
    """A generator whose every stretch of work is inside a span."""

    def __init__(self, entered: Entered, inner: Generator[Any, Any, Any]) -> None:
        self._entered = entered
        self._inner = inner

    def send(self, value: Any) -> Any:
        with self._entered:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._entered:
            return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()


def _async_stretches(awaited: Awaited, function: Callable[..., AsyncGenerator[Any, Any]]) -> Any:
    """An async generator function whose every stretch of work is timed."""

    @functools.wraps(function)
    async def asking(*args: Any, **named: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **named)
        try:
            value = await awaited(inner.asend(None))
            while True:
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    value = await awaited(inner.athrow(error))
                else:
                    value = await awaited(inner.asend(sent))
        except StopAsyncIteration:
            return
        finally:
            await inner.aclose()

    return asking
