"""What a loader is asked for, checked: words and numbers become orders, sizes, threads and devices."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from penstock._src.load.sampling.order import Local, Order, Sequential, Shuffled
from penstock._src.load.sampling.shard import Batches
from penstock._src.load.sampling.window import Sampling, Window
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget
from penstock._src.system.limits import read_cpu_limit, read_memory_limit
from penstock._src.system.units import format_bytes
from penstock.errors import UsageError

VIEWS = ("auto", "off", "ram", "disk")
OUTPUTS = ("auto", "numpy", "torch")
_FEW_CPUS = 4
HELD_SLOTS = 2
"""Batches that the training step may hold besides those that are prepared ahead."""


class Mix:
    """Several stores for one loader, each with its weight: `Mix({store: 0.7, other: 0.3})`.

    Of every block of samples exactly these shares come from each store, in an order that the seed decides. A small
    store is gone through more often than a large one. All stores must give the same outputs.
    """

    def __init__(
        self, stores: Mapping[Store, float] | Sequence[tuple[Store, float]], length: int | None = None
    ) -> None:
        pairs: list[Any] = list(stores.items() if isinstance(stores, Mapping) else stores)
        if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], Store)
                                for pair in pairs):  # fmt: skip
            raise UsageError("Mix takes stores with weights", hint="Mix({store: 0.7, other: 0.3})")
        self.stores: tuple[Store, ...] = tuple(pair[0] for pair in pairs)
        try:
            self.weights: tuple[float, ...] = tuple(float(pair[1]) for pair in pairs)
        except (TypeError, ValueError):
            raise UsageError(f"weights must be numbers: {[pair[1] for pair in pairs]}") from None
        if not all(0 <= weight < float("inf") for weight in self.weights) or not sum(self.weights):
            raise UsageError(f"weights must be finite, 0 or more, and not all of them 0: {list(self.weights)}")
        self.length = length

    def __repr__(self) -> str:
        pairs = zip(self.stores, self.weights, strict=True)
        return f"Mix({', '.join(f'{store!r}: {weight:g}' for store, weight in pairs)})"


def mix_for(store: Any) -> Mix:
    """What a loader was given, as a mix."""
    if isinstance(store, Mix):
        return store
    if isinstance(store, Store):
        return Mix([(store, 1.0)])
    if isinstance(store, (str, os.PathLike)):
        raise UsageError(f"{str(store)!r} is a path, and a store is needed", hint=f'penstock.open("{store}")')
    hint = "penstock.open(path), or penstock.Mix({store: 0.7, other: 0.3}) for several"
    raise UsageError(f"{type(store).__name__} is not a store", hint=hint)


def window_for(window: Any) -> Sampling:
    """The window asked for; the row itself where there is none."""
    if window is None:
        return Window()
    if hasattr(window, "bind"):
        sampling: Sampling = window
        return sampling
    hint = 'Window({"action": range(20)}), or Window.from_delta_timestamps({"action": [0.0, 0.1]})'
    raise UsageError(f"{window!r} is not a window", hint=hint)


def order_for(count: int, shuffle: bool | str, seed: int) -> Order:
    """The order of a store's samples."""
    if shuffle is True:
        return Shuffled(count, seed)
    if shuffle is False:
        return Sequential(count)
    if shuffle == "local":
        return Local(count, seed)
    raise UsageError(f"shuffle={shuffle!r}", hint='True, False or "local"')


def gives_tensors(output: str, device: Any = None) -> bool:
    """Whether batches are torch tensors. "auto": yes, where torch is imported already or a device is named."""
    return output == "torch" or (output == "auto" and (device is not None or sys.modules.get("torch") is not None))


def budget_for(memory_option: str | int | Budget) -> tuple[Budget, str | None]:
    """The budget asked for; where the machine, the container or the process grants less, that, and which one rules."""
    budget = Budget.parse(memory_option)
    memory = read_memory_limit()
    if isinstance(memory_option, Budget) or budget.limit_bytes <= memory.available_bytes:
        return budget, None
    ruled_by = (f"{format_bytes(memory.available_bytes)} are available of the {format_bytes(budget.limit_bytes)} "
                f"requested, by {memory.available_ruled_by}")  # fmt: skip
    return Budget(max(memory.available_bytes, 1), source=ruled_by), ruled_by


def threads_for(threads: int | str) -> int:
    """How many threads: "auto" is one per CPU granted (of many, four fifths: the training step needs some), "cpu*0.5" a
    part of them, or a number."""
    granted = read_cpu_limit().count
    if threads == "auto":
        return granted if granted <= _FEW_CPUS else granted * 4 // 5
    if isinstance(threads, str):
        from penstock._src.system.units import parse_workers

        return max(1, parse_workers(threads, granted, "threads"))
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise UsageError(f"threads={threads!r}", hint='must be 1 or more, "auto" or "cpu*0.5"')
    return threads


@dataclass(frozen=True)
class Shard:
    """Which part of every global batch this process takes."""

    rank: int = 0
    world: int = 1


def shard_for(shard: tuple[int, int] | None) -> Shard:
    if shard is None:
        return Shard()
    try:
        rank, world = (index(each) for each in shard)
    except (TypeError, ValueError):
        raise UsageError(f"shard={shard!r}", hint="shard=(rank, world), two whole numbers") from None
    return Shard(rank, world)


def batches_for(total: int, batch_size: int, drop_last: bool | None, shard: Shard) -> Batches:
    """The batches of an epoch; the last one may be short, unless processes would have different numbers of them."""
    drop = drop_last if drop_last is not None else shard.world > 1
    batches = Batches(total, batch_size, drop, shard.rank, shard.world)
    if not len(batches):
        hint = "a smaller batch_size, or drop_last=False"
        raise UsageError(f"{total:,} samples do not make a batch of {batch_size:,}", hint=hint)
    return batches


def rate_for(rate: float) -> float:
    """The share of samples that may be lost."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
        raise UsageError(f"max_skip_rate={rate!r}", hint="a part of all samples, from 0 to 1: 0.01")
    return float(rate)


def count_for(name: str, value: Any) -> int:
    """A number of things, from 1; also one such as 1e6."""
    try:
        count = int(value) if isinstance(value, float) and value.is_integer() else index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or count < 1:
        raise UsageError(f"{name}={value!r}: it must be a whole number, 1 or more")
    return count


def epoch_for(value: int) -> int:
    try:
        epoch = index(value)
    except TypeError:
        raise UsageError(f"epoch {value!r}: it must be a whole number") from None
    if epoch < 0:
        raise UsageError(f"epoch {epoch}: it must be 0 or more")
    return epoch


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{name}={value!r}", hint=f"one of {', '.join(known)}")
    return str(value)


def gpu_decode_for(gpu_decode: bool | str, view: object) -> bool | str:
    """Where a view was asked for, its images are decoded once, not in every epoch: not on the device by itself."""
    is_chosen = not isinstance(view, str) or view not in ("auto", "off")
    return False if gpu_decode == "auto" and is_chosen else gpu_decode


def slots_for(prefetch: int | str) -> int:
    """Slots for a number of batches that are prepared ahead: those, and what the training step may hold."""
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= 64:
        raise UsageError(f"prefetch={prefetch!r}", hint='a number of batches from 1 to 64, or "auto"')
    return prefetch + HELD_SLOTS


def check_planned(chosen: Mapping[str, Any], options: Mapping[str, Any], call: Callable[..., None]) -> None:
    """An option that a plan decides and that is given besides must agree with the plan."""
    parameters = inspect.signature(call).parameters
    for name, value in chosen.items():
        if options[name] not in (parameters[name].default, value):
            hint = f"give plan or {name}, not both"
            raise UsageError(f"{name}={options[name]!r}, but the plan says {value!r}", hint=hint)
