"""What an engine process works with: all that decides what a batch holds, small enough to be sent at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from penstock._src.load.engine.slots import SlotLayout, lay_out
from penstock._src.load.engine.source import ImageColumn, Shaping
from penstock._src.load.epoch import BatchRecipe
from penstock._src.load.process.row_marks import RowRef
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.views.view import View
from penstock._src.stores.store import Store

ViewCounts = dict[tuple[int, str], tuple[int, int, tuple[str, ...]]]
"""(number of the store, column) → rows that its view has refused, rows that it found damaged, notes."""


def outputs_of(column: ImageColumn) -> tuple[str, ...]:
    """The names of the outputs of an image column: how both processes know it."""
    return tuple(output.name for output in column.outputs)


class Spec(Protocol):
    """What an engine process is started with; it is pickled."""

    engine: ClassVar[str]
    """The class that lives in the engine process, as `module:name`; called with spec, start, marks and channel."""


@dataclass(frozen=True)
class EngineSpec:
    """Stores, window and order; views and numbers by where they lie. It is pickled, so stores travel as their paths."""

    engine: ClassVar[str] = "penstock._src.load.process.child:EngineProcessLoop"

    stores: tuple[Store, ...]
    window: Sampling
    shaping: Shaping
    tables_bytes: int
    is_mix: bool
    order: Any
    views: tuple[Mapping[str, View], ...]
    """Of every store, by column."""
    layout: SlotLayout
    threads: int
    encoded: frozenset[tuple[str, ...]]
    """The outputs of columns whose images are decoded on the device."""
    device: str
    device_layout: SlotLayout
    """Where their images lie in the memory of a slot on the device."""
    encoded_bytes: int
    """What the encoded images of a batch take, about."""
    ahead_bytes: int = 0
    """What ranges of remote files that are asked for ahead may take."""


@dataclass(frozen=True)
class EngineStart:
    """The first message to an engine: the spec, and what an engine before it died of."""

    spec: Spec
    refused: frozenset[RowRef] = frozenset()
    """Rows that are not touched any more."""
    one_by_one: int = 0
    """How many batches a single thread makes, row by row: if the engine dies again, one row is to blame."""


def spec_for(
    recipe: BatchRecipe,
    window: Sampling,
    layout: SlotLayout,
    tables_bytes: int,
    threads: int,
    batch_size: int,
    device: str,
) -> EngineSpec:
    """What makes the batches of a loader, as an engine process gets it."""
    sources = recipe.sources
    encoded = {outputs_of(column) for source in sources for column in source.images if recipe.encoded(column)}
    names = {name for outputs in encoded for name in outputs}
    shapes = sources[0].shapes(batch_size)
    return EngineSpec(
        stores=tuple(source.store for source in sources),
        window=window,
        shaping=sources[0].shaping,
        tables_bytes=tables_bytes,
        is_mix=sources[0].number is not None,
        order=recipe.order,
        views=tuple(dict(source.views) for source in sources),
        layout=layout,
        threads=threads,
        encoded=frozenset(encoded),
        device=device,
        encoded_bytes=max(source.encoded_bytes(batch_size, recipe.encoded) for source in sources),
        device_layout=lay_out({name: shape for name, shape in shapes.items() if name in names}),
    )
