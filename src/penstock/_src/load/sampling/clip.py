"""What a sample is, for models of time: a run of rows, all columns, never padded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.load.sampling.bound import BoundWindow, Output, check_some, columns_of, lengths_of, named
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._src.stores.store import Store


@dataclass(frozen=True)
class Clip:
    """`frames` rows, `stride` rows apart, within one episode; every column as (frames, …), a sample every `step` rows.

    Texts are those of the first row. Nothing is padded: episodes shorter than a clip have no samples.
    """

    frames: int
    stride: int = 1
    step: int = 1
    columns: tuple[str, ...] | None = None

    def __init__(self, frames: int, stride: int = 1, step: int = 1, columns: Iterable[str] | None = None) -> None:
        values = {"frames": frames, "stride": stride, "step": step}
        for name, value in values.items():
            if not hasattr(value, "__index__") or index(value) < 1:
                raise UsageError(f"Clip: {name} must be a whole number, 1 or more, not {value!r}")
            values[name] = index(value)
        self.__dict__.update(values, columns=named(columns, "columns"))

    @property
    def span(self) -> int:
        """Rows from the first to the last of a clip."""
        return (self.frames - 1) * self.stride + 1

    def bind(self, store: Store) -> BoundWindow:
        """With the columns and episodes of a store."""
        offsets = range(0, self.span, self.stride)
        outputs = [
            (Output(name, name), (0,))
            if store.columns[name].kind == "text"
            else (Output(name, name, self.frames), tuple(offsets))
            for name in columns_of(store, self.columns)
        ]
        counts = np.maximum(lengths_of(store) - self.span + self.step, 0) // self.step
        check_some(store, counts, self.span, repr(self))
        return BoundWindow(store, outputs, first_rows=store.episode_starts[:-1], counts=counts, step=self.step)

    def describe(self) -> dict[str, Any]:
        """JSON-safe; equal descriptions give equal samples of one store."""
        columns = None if self.columns is None else list(self.columns)
        return {"kind": "clip", "frames": self.frames, "stride": self.stride, "step": self.step, "columns": columns}

    def __repr__(self) -> str:
        words = [f"frames={self.frames}"]
        words += [f"{name}={value}" for name, value in (("stride", self.stride), ("step", self.step)) if value != 1]
        words += [] if self.columns is None else [f"columns={list(self.columns)}"]
        return f"Clip({', '.join(words)})"
