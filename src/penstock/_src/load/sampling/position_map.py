"""Which samples make a batch: from positions of an epoch to parts of sources; and a batch without what was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.job import BatchPart
from penstock._src.load.engine.source import ImageColumn, SampleSource
from penstock._src.load.sampling.mixture import Mixture, seed_of
from penstock._src.load.sampling.order import Local
from penstock._src.load.settings import Mix, order_for
from penstock.errors import UsageError

Batch = dict[str, Any]


def order_of(mix: Mix, counts: Sequence[int], shuffle: bool | str, seed: int) -> Any:
    """The order of samples: of one store its own, of several a mixture in which each has a seed of its own."""
    orders = [order_for(count, shuffle, seed_of(seed, number)) for number, count in enumerate(counts)]
    if len(orders) == 1 and mix.length is None:
        return orders[0]
    return Mixture(orders, mix.weights, seed, mix.length)


def notes_of_order(order: Any) -> tuple[str, ...]:
    """For people: what an order that is not fully shuffled costs in randomness."""
    orders = order.orders if isinstance(order, Mixture) else [order]
    return tuple(f"order: {each.randomness()[1]}" for each in orders if isinstance(each, Local))


_MIXED_AT_A_TIME = 2048  # positions of a mixture: to compute a few takes nearly as long


class _Mixed(NamedTuple):
    """Some positions of an epoch of a mixture: of each its source and sample."""

    epoch: int
    positions: range
    samples: NDArray[np.int64]


class PositionMap:
    """Positions of an epoch → samples of sources, and their places in the batch."""

    def __init__(self, order: Any, sources: list[SampleSource]) -> None:
        self._order, self._sources = order, sources
        self._mixed = _Mixed(-1, range(0), np.zeros((2, 0), np.int64))

    def __call__(self, epoch: int, positions: NDArray[np.int64]) -> list[BatchPart]:
        if not isinstance(self._order, Mixture):
            samples = self._order.at(epoch, positions)
            return [BatchPart(self._sources[0], np.arange(len(samples), dtype=np.int64), samples)]
        numbers, samples = self._mixed_at(self._order, epoch, positions)
        parts = []
        for number, source in enumerate(self._sources):
            places = np.flatnonzero(numbers == number)
            if len(places):
                parts.append(BatchPart(source, places, samples[places]))
        # The slice of one rank of a short batch may be empty; it has outputs all the same.
        return parts or [BatchPart(self._sources[0], samples, samples)]

    def _mixed_at(self, order: Mixture, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Source and sample of each position. The positions of a batch follow one another, and batches do as well."""
        if not len(positions):
            return np.zeros((2, 0), np.int64)
        first, stop = int(positions[0]), int(positions[-1]) + 1
        held = self._mixed  # another thread that plans a batch may put others in its place
        if held.epoch != epoch or first < held.positions.start or stop > held.positions.stop:
            positions = np.arange(first, max(stop, min(first + _MIXED_AT_A_TIME, order.count)), dtype=np.int64)
            samples = np.stack(order.at(epoch, positions))
            self._mixed = held = _Mixed(epoch, range(first, first + len(positions)), samples)
        begin = first - held.positions.start
        return held.samples[:, begin : begin + stop - first]


def selected(batch: Batch, kept: NDArray[np.int64]) -> Batch:
    selection: Batch = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selection[name] = [value[place] for place in kept.tolist()]
        else:  # numpy and torch both take a list of places
            selection[name] = value[kept.tolist()]
    return selection


def _outputs(source: SampleSource) -> dict[str, Any]:
    return {**source.shapes(1), **{output.name: ((1,), "text") for output in source.text_outputs}}


def encoded_by_all(
    sources: list[SampleSource], keeps_encoded: Callable[[ImageColumn], bool]
) -> Callable[[ImageColumn], bool]:
    """The columns that stay encoded: those that every source has as JPEGs, and of one size. The device decodes all
    images of an output together, into memory for that size."""

    def signature(column: ImageColumn) -> tuple[object, ...]:
        return (*(output.name for output in column.outputs), column.fit.stored)

    alike = [{signature(column) for column in source.images if keeps_encoded(column)} for source in sources]
    common = set.intersection(*alike)
    return lambda column: signature(column) in common


def check_alike(sources: list[SampleSource]) -> None:
    first = _outputs(sources[0])
    for source in sources[1:]:
        other = _outputs(source)
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                hint = "name those they share: Window(columns=[…])"
                if any(column.name == name for column in sources[0].images) and name in first and name in other:
                    hint = "image_size=(224, 224) makes images of one size; " + hint
                one, two = _distinct_texts(first.get(name), other.get(name))
                raise UsageError(
                    f"{name!r} is {one} in {sources[0].store.path}, and {two} in {source.store.path}: stores of a mix "
                    "must give the same outputs",
                    hint=hint,
                )


_Output = tuple[tuple[int, ...], str] | None


def _distinct_texts(one: _Output, two: _Output) -> tuple[str, str]:
    texts = (_shape_text(one), _shape_text(two))
    if texts[0] != texts[1] or one is None or two is None:
        return texts
    return f"{one[0][1:]} {one[1]}", f"{two[0][1:]} {two[1]}"  # a number, and a list of one


def _shape_text(output: _Output) -> str:
    """Of one sample."""
    return "absent" if output is None else f"{'×'.join(map(str, output[0][1:])) or '1'} {output[1]}"
