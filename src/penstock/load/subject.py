"""A loader as the subject of a verdict: what it says of itself, and a loader made again from what one said."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, UsageError
from penstock.load.cache import cache_directory
from penstock.load.source import PictureColumn, Source
from penstock.load.window import Clip, Sampling, Transition, Window
from penstock.profile.marks import marks
from penstock.system.limits import read_cpu_limit, read_memory_limit

if TYPE_CHECKING:
    from penstock.load.loader import Loader
    from penstock.stores.store import Store

KIND = "penstock.Loader"
_MOST_EPISODES = 20_000  # by number in a description; beyond, it would be larger than the rest of a run's file


def describe(loader: Loader) -> dict[str, Any]:
    """JSON-safe: how a loader is set up, what a batch of it needs, and what it takes to make it again."""
    sources, shares = loader._sources, loader.shares
    own = loader._batches.batch_size // loader._shard.world
    pictures = [_picture(loader, source, column) for source in sources for column in source.pictures]
    weights = loader._mix.weights
    part = [weight / sum(weights) for weight in weights]
    per_batch = own * sum(
        share * sum(output.steps or 1 for column in source.pictures for output in column.outputs)
        for source, share in zip(sources, part, strict=True)
    )
    stored = own * sum(
        share * (output.steps or 1) * column.column.stored_bytes / max(source.store.rows, 1)
        for source, share in zip(sources, part, strict=True) for column in source.pictures for output in column.outputs
    )  # fmt: skip
    return {
        "kind": KIND,
        "text": repr(loader),
        "options": _options(loader._asked),
        "stores": [_reopening(source.store, weight) for source, weight in zip(sources, weights, strict=True)],
        "length": loader._mix.length,
        "window": loader.window.describe(),
        "rows": sum(source.store.rows for source in sources),
        "samples": loader.samples,
        **_happened(loader._counts),
        "step_batches": marks().fed_by(id(loader)),
        "batches": len(loader),
        "batch_size": own,
        "threads": shares.threads,
        "slots": shares.slots,
        "cores": read_cpu_limit().count,
        "device": str(loader._asked["device"] or "cpu"),
        "cuda": _cuda(),
        "exact": bool(loader._asked["exact"]),
        "resize": loader._asked["resize"],
        "pictures": pictures,
        "pictures_per_batch": per_batch,
        "stored_bytes_per_batch": stored,
        "batch_bytes": loader._layout.n_bytes,
        "memory_bytes": shares.limit_bytes,
        "memory_left_bytes": max(shares.left_bytes, 0),
        "memory_available_bytes": read_memory_limit().available_bytes,
        "cache_free_bytes": _cache_free(),
    }


def _happened(counts: Mapping[str, int]) -> dict[str, Any]:
    """What was handed out so far, and of which pictures it was made."""
    batches, pictures = counts["batches"], counts["view_hits"] + counts["pictures_made"]
    return {
        "batches_handed": batches,
        "made_per_batch": pictures / batches if batches else None,
        "hit_share": counts["view_hits"] / pictures if pictures else None,
    }


def _cache_free() -> int | None:
    """Bytes that the disk of the cache directory has left for a view; None where there is no such place."""
    try:
        place = cache_directory()
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free
    except (OSError, PenstockError):
        return None


def _picture(loader: Loader, source: Source, column: PictureColumn) -> dict[str, Any]:
    fit, view = column.fit, source.views.get(column.name)
    rows = source.store.rows
    told: dict[str, Any] = {
        "column": column.name,
        "encoding": column.column.encoding,
        "way": column.column.way,
        "stored": list(fit.stored),
        "size": list(fit.size),
        "steps": sum(output.steps or 1 for output in column.outputs),
        "rows": rows,
        "stored_bytes": column.column.stored_bytes / max(rows, 1),
        "view_row_bytes": column.view_row_bytes,
        "on_device": loader._encoded(column),
        "is_jpeg": column.is_jpeg,
        "can_scale": column.is_jpeg and fit.exact and _not_exact(column).reduction > 1,
        "view": None,
    }
    if view is not None:
        where = "ram" if view.path is None else "disk"
        told["view"] = {"where": where, "capacity": view.capacity, "filled": view.n_filled, "bytes": view.n_bytes}
    return told


def _not_exact(column: PictureColumn) -> Any:
    from dataclasses import replace

    return replace(column.fit, exact=False)


def _cuda() -> bool:
    torch = sys.modules.get("torch")  # not imported for a question: who has a GPU has it imported
    return bool(torch is not None and torch.cuda.is_available())


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the loader was asked for, as JSON can hold it."""
    told = {name: value for name, value in asked.items() if name not in ("store", "window")}
    told["view"] = asked["view"] if isinstance(asked["view"], str) else "given"
    told["memory"] = asked["memory"] if isinstance(asked["memory"], str | int) else asked["memory"].limit_bytes
    told["device"] = None if asked["device"] is None else str(asked["device"])
    told["shard"] = None if asked["shard"] is None else list(asked["shard"])
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else _plain(value.tolist())


def _reopening(store: Store, weight: float) -> dict[str, Any]:
    """The words that open a store again; `words` is None where that is only possible in this process."""
    told: dict[str, Any] = {"path": str(store.path), "kind": store.kind, "rows": store.rows, "weight": weight}
    again = store.reopening()
    if again is None or len(again[1].get("episodes") or ()) > _MOST_EPISODES:
        return {**told, "words": None}
    return {**told, "path": str(again[0]), "words": again[1]}


def from_description(told: Mapping[str, Any], **changed: Any) -> Loader:
    """A loader as `describe` told of one, in this process; raises UsageError where that cannot be."""
    from penstock.load.loader import Loader
    from penstock.load.settings import Mix
    from penstock.stores.opening import open_store

    if told.get("kind") != KIND:
        raise UsageError(f"{told.get('kind', 'this')} cannot be made again here", hint="call profile.verdict() there")
    for each in told["stores"]:
        if each["words"] is None:
            raise UsageError(f"{each['path']} ({each['kind']}) can only be opened by the program that made it",
                             hint="call profile.verdict(check=True) there")  # fmt: skip
    stores = [(open_store(each["path"], **each["words"]), each["weight"]) for each in told["stores"]]
    options = {**told["options"], **changed}
    if options["view"] == "given":
        options["view"] = "auto"
    for name in ("image_size", "shard"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    if isinstance(options.get("image_size"), dict):
        options["image_size"] = {name: each and tuple(each) for name, each in options["image_size"].items()}
    store = stores[0][0] if len(stores) == 1 and not told.get("length") else Mix(stores, told.get("length"))
    return Loader(store, window_from(told["window"]), **options)


def window_from(told: Mapping[str, Any]) -> Sampling:
    """The window of which `describe()` told."""
    columns = told.get("columns")
    if told["kind"] == "clip":
        return Clip(told["frames"], told["stride"], told["step"], columns)
    if told["kind"] == "transition":
        return Transition(columns, told["next_columns"])
    if told["kind"] != "window":
        raise UsageError(f"a window of kind {told['kind']!r} cannot be made again here")
    if "delta_timestamps" in told:
        return Window.from_delta_timestamps(
            told["delta_timestamps"], columns, pad=told["pad"], tolerance_s=told["tolerance_s"]
        )
    return Window(told["offsets"], pad=told["pad"], columns=columns)
