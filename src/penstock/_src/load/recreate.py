"""A loader recreated from its description: `penstock profile` tries changes on the data of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Clip, Sampling, Transition, Window
from penstock._src.load.settings import Mix
from penstock._src.profile.stats import PENSTOCK_LOADER, LoaderInfo
from penstock._src.stores.opening import open_store
from penstock.errors import UsageError


def from_description(described: LoaderInfo) -> Loader:
    """The loader that `Loader.describe` described, in this process; UsageError where that cannot be."""
    if described.kind != PENSTOCK_LOADER:
        raise UsageError(f"{described.kind or 'this'} cannot be recreated here", hint="call profile.verdict() there")
    if not described.stores or described.options is None or described.window is None:
        raise UsageError(
            "the run does not record how its loader was made", hint="call profile.verdict(check=True) there"
        )
    stores = []
    for each in described.stores:
        if each.open_options is None:
            raise UsageError(f"{each.path} ({each.kind}) can only be opened by the program that made it",
                             hint="call profile.verdict(check=True) there")  # fmt: skip
        stores.append((open_store(each.path, **each.open_options), each.weight))
    options: dict[str, Any] = dict(described.options)
    if options["view"] == "given":
        options["view"] = "auto"
    for name in ("image_size", "shard"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    if isinstance(options.get("image_size"), dict):
        options["image_size"] = {name: each and tuple(each) for name, each in options["image_size"].items()}
    store = stores[0][0] if len(stores) == 1 and not described.length else Mix(stores, described.length)
    return Loader(store, window_from(described.window), **options)


def window_from(described: Mapping[str, Any]) -> Sampling:
    """The window that `describe()` described."""
    columns = described.get("columns")
    if described["kind"] == "clip":
        return Clip(described["frames"], described["stride"], described["step"], columns)
    if described["kind"] == "transition":
        return Transition(columns, described["next_columns"])
    if described["kind"] != "window":
        raise UsageError(f"a window of kind {described['kind']!r} cannot be recreated here")
    if "delta_timestamps" in described:
        return Window.from_delta_timestamps(
            described["delta_timestamps"], columns, pad=described["pad"], tolerance_s=described["tolerance_s"]
        )
    return Window(described["offsets"], pad=described["pad"], columns=columns)
