"""Whether a resumed run has the data that it began with: a path may change, what lies there may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import UsageError

from .data import Data

_NEAR = 1e-9  # of the largest value: sums may differ in their last digits on another machine
_MOST_TOLD = 3


def facts_of(data: Data) -> dict[str, Any]:
    """What a checkpoint keeps to know its data again: small, and the same wherever the data lie."""
    return {
        "columns": data.shapes,
        "episode_rows": data.episode_rows,
        "train": {name: each.to_dict() for name, each in data.stats.items()},
        "val": {name: each.to_dict() for name, each in data.val_stats.items()},
    }


def check_same(path: Path, saved: Mapping[str, Any], data: Data) -> None:
    """Refuse to go on from the checkpoint `saved` (of `path`) with other data, and tell in what they differ."""
    was = {"train": saved["stats"], **saved.get("data", {})}
    told = list(_differences(was, facts_of(data)))
    if not told:
        return
    more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    raise UsageError(
        f"{path} was trained on other data than {data.path}: {'; '.join(told[:_MOST_TOLD])}{more}",
        hint="--dataset with the data of that run (they may have moved), or another --ckpt_dir to train anew",
    )


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    columns = list(_of_columns(was["columns"], now["columns"])) if "columns" in was else []
    if columns:
        yield from columns
        return
    if "episode_rows" in was:
        yield from _of_episodes(was["episode_rows"], now["episode_rows"])
    for side, words in (("train", "training"), ("val", "validation")):
        for name, stats in was.get(side, {}).items():
            yield from _of_numbers(f"{name} of the {words} episodes", stats, now[side].get(name))


def _of_columns(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, shape in was.items():
        if name not in now:
            yield f"no column {name}"
        elif now[name] != shape:
            yield f"{name} is {now[name]}, was {shape}"
    yield from (f"column {name} is new" for name in now if name not in was)


def _of_episodes(was: list[int], now: list[int]) -> Iterator[str]:
    if len(was) != len(now):
        yield f"{len(now):,} episodes, were {len(was):,}"
        return
    others = [number for number, rows in enumerate(was) if now[number] != rows]
    if others:
        first = others[0]
        more = f" ({len(others):,} of {len(was):,} episodes differ)" if len(others) > 1 else ""
        yield f"episode {first} has {now[first]:,} rows, had {was[first]:,}{more}"


def _of_numbers(name: str, was: Mapping[str, Any], now: Mapping[str, Any] | None) -> Iterator[str]:
    if now is None or len(now["mean"]) != len(was["mean"]):
        yield f"no {name} in that shape"
        return
    near = _NEAR * np.maximum(np.abs(was["min"]), np.abs(was["max"]))
    for key, allowed in (("min", 0.0), ("max", 0.0), ("mean", near), ("std", near)):
        before, after = np.asarray(was[key]), np.asarray(now[key])
        with np.errstate(invalid="ignore"):
            same = (before == after) | (np.abs(before - after) <= allowed) | (np.isnan(before) & np.isnan(after))
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            yield f"{name}: {key} of number {at} is {after[at]:.6g}, was {before[at]:.6g}"
            return
