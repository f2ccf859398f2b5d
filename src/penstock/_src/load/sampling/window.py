"""What a sample is: a row and its neighbours in time, by offsets per column; padded or held within the episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.load.sampling.bound import (
    BoundWindow,
    Output,
    RowRequests,
    Sampling,
    check_some,
    columns_of,
    lengths_of,
    mapping_repr,
    named,
    offsets_text,
)
from penstock._src.load.sampling.clip import Clip
from penstock._src.load.sampling.transition import Transition
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._src.stores.store import Store

__all__ = ["BoundWindow", "Clip", "Output", "RowRequests", "Sampling", "Transition", "Window"]

_FARTHEST = 1 << 40  # rows; an offset beyond is a mistake, and sums with row numbers must not overflow


@dataclass(frozen=True)
class Window:
    """One row, and by column those at offsets from it: `Window(action=range(20))`, `Window({"obs.state": [-1, 0]})`.

    A sequence of offsets gives (steps, …) and a mask `<column>_is_pad`: True where the offset leads beyond the episode
    and the nearest row stands in. A whole number gives that one row without a time dimension; having no mask it is
    never padded, so samples for which it leads outside do not exist. Columns without offsets come from the row itself.
    With `pad=False` nothing is padded: samples that would need it do not exist. `columns` limits what is loaded.
    """

    by_column: tuple[tuple[str, int | tuple[int, ...]], ...]
    pad: bool
    columns: tuple[str, ...] | None
    seconds: tuple[tuple[str, tuple[float, ...]], ...] | None
    """LeRobot's delta_timestamps; they become offsets with the frame rate of the store."""
    tolerance_s: float

    def __init__(
        self,
        offsets: Mapping[str, int | Iterable[int]] | None = None,
        *,
        pad: bool = True,
        columns: Iterable[str] | None = None,
        **by_column: int | Iterable[int],
    ) -> None:
        if offsets is not None and not isinstance(offsets, Mapping):
            raise UsageError(
                f"Window({offsets!r}): offsets are given by column",
                hint='Window(action=range(20)) or Window({"action": range(20)}); Clip(frames=20) is all columns',
            )
        twice = sorted(set(offsets or ()) & set(by_column))
        if twice:
            raise UsageError(f"{twice[0]!r} has offsets twice: in the mapping and by name")
        whole = {name: _offsets(name, value) for name, value in {**(offsets or {}), **by_column}.items()}
        self._validate(tuple(whole.items()), bool(pad), named(columns, "columns"), None, 0.0)

    @classmethod
    def from_delta_timestamps(
        cls,
        delta_timestamps: Mapping[str, Iterable[float]],
        columns: Iterable[str] | None = None,
        *,
        pad: bool = True,
        tolerance_s: float = 1e-4,
    ) -> Window:
        """As LeRobot's `delta_timestamps`: seconds by column, whole rows of the store within `tolerance_s`."""
        if not isinstance(delta_timestamps, Mapping):
            hint = 'Window.from_delta_timestamps({"action": [0.0, 0.1]})'
            raise UsageError(f"delta_timestamps are seconds by column, not {delta_timestamps!r}", hint=hint)
        seconds = {name: _seconds(name, values) for name, values in delta_timestamps.items()}
        made = cls.__new__(cls)
        made._validate((), bool(pad), named(columns, "columns"), tuple(seconds.items()), float(tolerance_s))
        return made

    def _validate(self, *values: Any) -> None:
        self.__dict__.update(zip(("by_column", "pad", "columns", "seconds", "tolerance_s"), values, strict=True))
        names = [name for name, _ in self.seconds or self.by_column]
        stray = [name for name in names if self.columns is not None and name not in self.columns]
        if stray:
            raise UsageError(
                f"{stray[0]!r} has offsets but is not among columns={list(self.columns or ())}",
                hint=f"add {stray[0]!r} to columns, or leave its offsets out",
            )

    def bind(self, store: Store) -> BoundWindow:
        """With the columns and episodes of a store."""
        by_column = self.offsets_for(store)
        for name in by_column:
            store.column(name)
        outputs = [_output(store, name, by_column.get(name, 0)) for name in columns_of(store, self.columns)]
        # Rows that may not be padded: all without `pad`; else those that have no mask to say so.
        strict = [0] + [each for output, offsets in outputs if not (self.pad and output.mask) for each in offsets]
        before, behind = -min(strict), max(strict)
        counts = np.maximum(lengths_of(store) - (before + behind), 0)
        check_some(store, counts, before + behind + 1, repr(self))
        return BoundWindow(store, outputs, first_rows=store.episode_starts[:-1] + before, counts=counts)

    def offsets_for(self, store: Store) -> dict[str, int | tuple[int, ...]]:
        """Offsets by column; seconds are turned into rows of this store."""
        if self.seconds is None:
            return dict(self.by_column)
        if not store.fps:
            raise UsageError(
                f"{store.path} has no frame rate: delta_timestamps cannot be turned into rows",
                hint="give offsets in rows: Window(action=range(20))",
            )
        return {name: _rows(store, name, values, self.tolerance_s) for name, values in self.seconds}

    def describe(self) -> dict[str, Any]:
        """JSON-safe; equal descriptions give equal samples of one store."""
        described: dict[str, Any] = {"kind": "window", "pad": self.pad}
        if self.seconds is None:
            described["offsets"] = {
                name: each if isinstance(each, int) else list(each) for name, each in self.by_column
            }
        else:
            described["delta_timestamps"] = {name: list(values) for name, values in self.seconds}
            described["tolerance_s"] = self.tolerance_s
        described["columns"] = None if self.columns is None else list(self.columns)
        return described

    def __repr__(self) -> str:
        words: list[str] = []
        if self.seconds is not None:
            words.append("{" + ", ".join(f"{name!r}: {_seconds_text(values)}" for name, values in self.seconds) + "}")
        elif self.by_column:
            texts = {name: str(each) if isinstance(each, int) else offsets_text(each) for name, each in self.by_column}
            words.append(mapping_repr(texts))
        words += [] if self.pad else ["pad=False"]
        words += [] if self.columns is None else [f"columns={list(self.columns)}"]
        return f"Window{'' if self.seconds is None else '.from_delta_timestamps'}({', '.join(words)})"


def _output(store: Store, name: str, offsets: int | tuple[int, ...]) -> tuple[Output, Sequence[int]]:
    if store.column(name).kind == "text" and offsets != 0:
        raise UsageError(
            f"{store.path}: {name!r} is text, which comes from the row itself: it has no offsets but 0",
            hint=f"leave {name!r} out of the window's offsets",
        )
    if isinstance(offsets, int):
        return Output(name, name), (offsets,)
    return Output(name, name, len(offsets), f"{name}_is_pad"), offsets


def _offsets(name: str, value: int | Iterable[int]) -> int | tuple[int, ...]:
    try:
        whole = tuple(index(each) for each in value) if isinstance(value, Iterable) else index(value)
    except TypeError:
        raise UsageError(
            f"offsets of {name!r} must be a whole number or a sequence of them, not {value!r}",
            hint="seconds go into Window.from_delta_timestamps",
        ) from None
    if whole == ():
        hint = f"leave {name!r} out of the offsets; columns=[…] limits what is loaded"
        raise UsageError(f"offsets of {name!r} are empty", hint=hint)
    far = [each for each in (whole if isinstance(whole, tuple) else (whole,)) if abs(each) > _FARTHEST]
    if far:
        raise UsageError(f"offset {far[0]:,} of {name!r} is beyond any episode")
    return whole


def _seconds(name: str, values: Iterable[float]) -> tuple[float, ...]:
    try:
        seconds = tuple(float(each) for each in values)
    except (TypeError, ValueError):
        raise UsageError(f"delta_timestamps of {name!r} must be a sequence of seconds, not {values!r}") from None
    if not seconds:
        raise UsageError(f"delta_timestamps of {name!r} are empty", hint=f"leave {name!r} out")
    if not np.isfinite(seconds).all():
        raise UsageError(f"delta_timestamps of {name!r} are not all finite: {list(seconds)}")
    return seconds


def _seconds_text(values: Sequence[float]) -> str:
    """All of them where they are few, else the first two and the last."""
    if len(values) <= 4:
        return repr(list(values))
    return f"[{values[0]:g}, {values[1]:g}, … {len(values)} in all …, {values[-1]:g}]"


def _rows(store: Store, name: str, seconds: tuple[float, ...], tolerance_s: float) -> tuple[int, ...]:
    fps = float(store.fps or 0.0)
    times = np.array(seconds)
    rows = np.rint(times * fps)
    off_s = np.abs(times - rows / fps)
    worst = int(off_s.argmax())
    if off_s[worst] > tolerance_s:
        raise UsageError(
            f"{store.path}: {seconds[worst]:g} s in the delta_timestamps of {name!r} is no whole number of rows: at "
            f"{fps:g} fps the nearest is row {int(rows[worst]):+d} at {rows[worst] / fps:.6g} s, "
            f"{off_s[worst]:.2g} s away; {tolerance_s:g} s are allowed",
            hint=f"use multiples of 1/{fps:g} s, or offsets in rows: Window(action=range(20))",
        )
    whole = _offsets(name, [int(each) for each in rows])
    return (whole,) if isinstance(whole, int) else whole
