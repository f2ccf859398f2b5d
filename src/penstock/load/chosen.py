"""Which samples make a batch: from positions of an epoch to parts of sources; and a batch without what was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.load.job import Part
from penstock.load.mixture import Mixture, seed_of
from penstock.load.order import Local
from penstock.load.settings import Mix, order_for
from penstock.load.source import PictureColumn, Source

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


class Chosen:
    """Positions of an epoch → samples of sources, and their places in the batch."""

    def __init__(self, order: Any, sources: list[Source]) -> None:
        self._order, self._sources = order, sources

    def __call__(self, epoch: int, positions: NDArray[np.int64]) -> list[Part]:
        if not isinstance(self._order, Mixture):
            samples = self._order.at(epoch, positions)
            return [Part(self._sources[0], np.arange(len(samples), dtype=np.int64), samples)]
        numbers, samples = self._order.at(epoch, positions)
        parts = []
        for number, source in enumerate(self._sources):
            places = np.flatnonzero(numbers == number)
            if len(places):
                parts.append(Part(source, places, samples[places]))
        # The slice of one rank of a short batch may be empty; it has outputs all the same.
        return parts or [Part(self._sources[0], samples, samples)]


def selected(batch: Batch, kept: NDArray[np.int64]) -> Batch:
    chosen: Batch = {}
    for name, value in batch.items():
        if isinstance(value, list):
            chosen[name] = [value[place] for place in kept.tolist()]
        else:  # numpy and torch both take a list of places
            chosen[name] = value[kept.tolist()]
    return chosen


def _outputs(source: Source) -> dict[str, Any]:
    return {**source.shapes(1), **{output.name: ((1,), "text") for output in source.text_outputs}}


def encoded_by_all(
    sources: list[Source], keeps_encoded: Callable[[PictureColumn], bool]
) -> Callable[[PictureColumn], bool]:
    """The columns that stay encoded: those that every source has as JPEGs, and of one size. The device decodes all
    pictures of an output together, into memory for that size."""

    def told(column: PictureColumn) -> tuple[object, ...]:
        return (*(output.name for output in column.outputs), column.fit.stored)

    alike = [{told(column) for column in source.pictures if keeps_encoded(column)} for source in sources]
    common = set.intersection(*alike)
    return lambda column: told(column) in common


def check_alike(sources: list[Source]) -> None:
    first = _outputs(sources[0])
    for source in sources[1:]:
        other = _outputs(source)
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                hint = "name those they share: Window(columns=[…])"
                if any(column.name == name for column in sources[0].pictures) and name in first and name in other:
                    hint = "image_size=(224, 224) makes pictures of one size; " + hint
                one, two = _told_apart(first.get(name), other.get(name))
                raise UsageError(
                    f"{name!r} is {one} in {sources[0].store.path}, and {two} in {source.store.path}: stores of a mix "
                    "must give the same outputs",
                    hint=hint,
                )


_Found = tuple[tuple[int, ...], str] | None


def _told_apart(one: _Found, two: _Found) -> tuple[str, str]:
    said = (_shape_text(one), _shape_text(two))
    if said[0] != said[1] or one is None or two is None:
        return said
    return f"{one[0][1:]} {one[1]}", f"{two[0][1:]} {two[1]}"  # a number, and a list of one


def _shape_text(found: _Found) -> str:
    """Of one sample."""
    return "absent" if found is None else f"{'×'.join(map(str, found[0][1:])) or '1'} {found[1]}"
