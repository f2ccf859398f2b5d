"""penstock inspect: what loading a store gives: rows, episodes, columns, the way rows are read and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.display import count, row
from penstock.errors import PenstockError, UsageError
from penstock.system import units

if TYPE_CHECKING:
    from penstock.stores.store import Store

_MOST_COLUMNS = 200
_MOST_EPISODES = 10_000_000
_SIZE = 4  # the cell of bytes on disk


def parse_episodes(text: str) -> list[int] | str:
    """`0-9,12` as numbers, in the order given; `whole` as it is."""
    if text.strip() == "whole":
        return "whole"
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"--episodes: {part.strip()!r} is no number and no range", hint="--episodes 0-9,12")
        stop = int(last) if dash else int(first)
        if stop - int(first) >= _MOST_EPISODES:
            raise UsageError(f"--episodes: {part.strip()!r} are more than {_MOST_EPISODES:,}")
        found += range(int(first), stop + 1)
    return found


def describe_store(path: Path, **options: Any) -> dict[str, Any]:
    """What `penstock.open` makes of a path, as plain data; or why it cannot be loaded. Reads metadata alone."""
    from penstock.stores.opening import open_store

    try:
        with open_store(path, **options) as store:
            return store_facts(store)
    except PenstockError as error:
        return {"possible": False, "reason": error.message, "hint": error.hint}


def hdf5_files(directory: Path) -> list[Path]:
    """The HDF5 files right in a directory."""
    from penstock.stores.opening import HDF5_SUFFIXES

    return [each for each in sorted(directory.iterdir()) if each.suffix.lower() in HDF5_SUFFIXES and each.is_file()]


def episode_directory(path: Path, **options: Any) -> dict[str, Any] | None:
    """The store that the HDF5 files right in a directory are together, described; None where they are not several."""
    if len(hdf5_files(path)) < 2:
        return None
    found = describe_store(path, **options)
    return found if found["possible"] else None


def store_facts(store: Store) -> dict[str, Any]:
    """An open store as plain data."""
    known = {role: store.columns_for(role) for role in (*store.roles, *store.joined_roles)}
    roles = {name: role for role, names in known.items() for name in names}
    return {
        "possible": True,
        "kind": store.kind,
        "rows": store.rows,
        "episodes": store.episodes,
        "fps": store.fps,
        "stored_bytes": store.stored_bytes,
        "decoded_bytes": store.decoded_bytes,
        "columns": [
            {
                "name": column.name,
                "kind": column.kind,
                "shape": list(column.shape),
                "dtype": column.dtype,
                "encoding": column.encoding,
                "way": column.way,
                "why": column.why,
                "role": roles.get(column.name),
                "stored_bytes": column.stored_bytes,
                "row_bytes": column.row_bytes,
            }
            for column in store.columns.values()
        ],
        "notes": list(store.notes),
    }


def load_lines(load: dict[str, Any]) -> list[str]:
    """For people: one line for the whole, one per column, and what to know besides."""
    if not load["possible"]:
        option = (load["hint"] or "").replace('episodes="whole"', "--episodes whole")
        hint = [row("", f"→ {option}")] if option else []
        return [row("load", f"not as it is: {load['reason']}"), *hint]
    rate = f" · {load['fps']:g} fps" if load["fps"] else ""
    sizes = f"{units.format_size(load['stored_bytes'])} stored · {units.format_size(load['decoded_bytes'])} decoded"
    lines = [row("load", f"{count(load['rows'], 'rows')} · {count(load['episodes'], 'episodes')}{rate} · {sizes}")]
    lines += column_lines(load["columns"][:_MOST_COLUMNS])
    if len(load["columns"]) > _MOST_COLUMNS:
        lines.append(f"  … and {len(load['columns']) - _MOST_COLUMNS:,} more columns")
    return lines + [row("note", note) for note in load["notes"]]


def column_lines(columns: Sequence[dict[str, Any]]) -> list[str]:
    """A table without borders: name, kind, shape and type, encoding, bytes on disk; the way, and once the reason."""
    table = [_cells(column) for column in columns]
    widths = [max((len(line[i]) for line in table), default=0) for i in range(_SIZE + 1)]
    lines = []
    told: set[str] = set()
    for column, line in zip(columns, table, strict=True):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        padded[_SIZE] = line[_SIZE].rjust(widths[_SIZE])
        way = column["way"] if f"{column['way']}{column['why']}" in told else f"{column['way']}: {column['why']}"
        told.add(f"{column['way']}{column['why']}")
        lines.append("  " + "  ".join([*(cell for cell in padded if cell), way]))
    return lines


def _cells(column: dict[str, Any]) -> tuple[str, ...]:
    shape = "×".join(str(size) for size in column["shape"]) or "1"
    role = f" ({column['role']})" if column["role"] and column["role"] != column["name"] else ""
    what = f"{shape} {column['dtype']}" if column["kind"] != "text" else ""
    encoding = column["encoding"] if column["encoding"] != column["kind"] else ""
    return units.plain(column["name"]), column["kind"] + role, what, encoding, units.format_size(column["stored_bytes"])
