"""A loader whose passes tell of themselves as penstock's and attached ones do, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

from penstock._src.profile.record.steps import LoaderPass


class Batches:
    """`count` batches a pass, each after `wait_ns`; of a data set of their own unless one is given."""

    def __init__(self, clock: list[int], count: int, wait_ns: int = 10, dataset: object = None) -> None:
        self.clock, self.count, self.wait_ns = clock, count, wait_ns
        if dataset is not None:
            self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return BatchesPass(self)


class BatchesPass:
    """One pass."""

    def __init__(self, loader: Batches) -> None:
        self.loader, self.left, self.loader_pass = loader, loader.count, LoaderPass(loader)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        start_ns = self.loader_pass.ask()
        self.left -= 1
        if self.left < 0:
            self.loader_pass.take(start_ns, False)
            raise StopIteration
        self.loader.clock[0] += self.loader.wait_ns
        self.loader_pass.take(start_ns, True)
        return self.left
