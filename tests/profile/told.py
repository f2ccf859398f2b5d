"""A loader whose passes tell of themselves as penstock's and attached ones do, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.profile.record.loader_pass import LoaderPass


class Batches:
    """`count` batches a pass, each after `wait_ns`."""

    def __init__(self, clock: list[int], count: int, wait_ns: int = 10) -> None:
        self.clock, self.count, self.wait_ns = clock, count, wait_ns

    def __iter__(self) -> Iterator[int]:
        return Told(self)


class Told:
    """One pass."""

    def __init__(self, loader: Batches) -> None:
        self.loader, self.left, self.feeding = loader, loader.count, LoaderPass(loader)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        start_ns = self.feeding.ask()
        self.left -= 1
        if self.left < 0:
            self.feeding.take(start_ns, False)
            raise StopIteration
        self.loader.clock[0] += self.loader.wait_ns
        self.feeding.take(start_ns, True)
        return self.left
