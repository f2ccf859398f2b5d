"""`@span` and `@gpu_span`: every call of a function is timed, and the function stays of the kind that it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Entered = AbstractContextManager[Any, None]
Awaited = Callable[[Awaitable[Any]], Awaitable[Any]]


def decorate(entered: Entered, awaited: Awaited, function: Any) -> Any:
    """Time every call; of a generator function every stretch between two yields; of a coroutine from call to end.

    A stretch of an async generator is timed as a coroutine is: from the asking for a value until it is there.
    `entered` is entered for each call, from any thread and again inside itself; `awaited` times what is waited for.
    """
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

    return timed


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
