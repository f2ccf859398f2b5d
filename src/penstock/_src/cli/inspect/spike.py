"""penstock inspect SPIKES: the layout of spike files and how it was found; the columns of a spike data set."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock._src.cli.display import print_text, row
from penstock._src.cli.inspect.stores import load_lines, refuse_fields, show_each, store_facts
from penstock._src.media.spike.layout import SpikeSettings
from penstock._src.system import config, units
from penstock.errors import UsageError


@dataclass(frozen=True)
class _SetWords(SpikeSettings):
    """What may be declared of a spike data set: `height=360 width=640`, and what `penstock.open` takes besides."""

    split: str | None = None
    num_bins: int = 5
    spike_dir: str = "spike"
    voxel_dir: str | None = None
    on_missing: Literal["raise", "skip"] = "raise"


def inspect_spike_files(paths: Sequence[Path], args: argparse.Namespace) -> int:
    """Single `.dat` files."""
    words = _words(SpikeSettings, paths[0], args)

    def describe(path: Path) -> dict[str, Any]:
        from penstock._src.media.spike.detect import find_layout
        from penstock._src.media.spike.files import image_beside, read_rows
        from penstock._src.stores.spike.check import odd_spikes

        layout, why = find_layout(path, SpikeSettings(**words), path.absolute().parent.parent.name, image_beside(path))
        data = read_rows(path, layout)
        return {
            "path": str(path),
            "bytes": layout.n_bytes,
            "kind": "spike file",
            **asdict(layout),
            "why": why,
            "odd": odd_spikes(data, layout),
        }

    return show_each(paths, describe, _show_file, args)


def _show_file(description: Mapping[str, Any]) -> None:
    turned = ", upside down" if description["flip"] else ""
    shape = f"{description['frames']}×{description['height']}×{description['width']}"
    print_text(f"{description['path']}: {units.format_size(description['bytes'])} · spike file")
    print_text(row("layout", f"{shape} {description['packing']}{turned}"))
    print_text(row("why", description["why"]))
    if description["odd"]:
        print_text(row("note", description["odd"]))


def inspect_spike_sets(paths: Sequence[Path], args: argparse.Namespace) -> int:
    """Spike data sets."""
    words = _words(_SetWords, paths[0], args)

    def describe(path: Path) -> dict[str, Any]:
        from penstock._src.stores.opening import open_store

        with open_store(path, episodes=args.episodes, **words) as store:
            load = store_facts(store)
        return {"path": str(path), "bytes": load["stored_bytes"], "kind": "spike", "load": load}

    def show(description: Mapping[str, Any]) -> None:
        print_text(f"{description['path']}: {units.format_size(description['bytes'])} · spike data set")
        print_text("\n".join(load_lines(description["load"])))

    return show_each(paths, describe, show, args)


def _words(cls: type[SpikeSettings], path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """`height=360` and its like, checked."""
    refuse_fields(path, args)
    if args.suggest_config or args.config:
        raise UsageError(
            f"{path} holds spikes: there is no conversion to configure",
            hint=f"penstock inspect {path} height=360 width=640",
        )
    return asdict(config.build(cls, config.apply_overrides({}, args.words)))
