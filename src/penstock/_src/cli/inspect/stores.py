"""penstock inspect STORE: rows, episodes and columns, how rows are read and why, and what converting it would take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, print_json, print_text, row, table
from penstock._src.system import units
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.inputs.input import Input, OpenOptions
    from penstock._src.formats import Format
    from penstock._src.stores.store import Store

COMPARED_BYTES = 256 << 20  # of every column of next observations, where nothing is converted yet
_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# docs/convert/hdf5.md explains what is particular to HDF5 files, docs/reference/configuration.md every key.
"""
_MOST_COLUMNS = 200
_MOST_EPISODES = 10_000_000
_SIZE = 4  # the cell of bytes on disk


def inspect_stores(paths: Sequence[Path], args: argparse.Namespace) -> int:
    """Stores of any format."""
    from penstock._src import formats
    from penstock._src.stores.opening import format_of, open_store

    refuse_fields(paths[0], args)
    options = open_options(args)
    if args.suggest_config:
        return suggest(format_of(paths[0]), paths[0], options)

    def describe(path: Path) -> dict[str, Any]:
        with open_store(path, episodes=args.episodes) as store:
            load = store_facts(store)
        of = format_of(path)
        description = {"path": str(path), "bytes": stored_size(path), "kind": of.kind, "load": load}
        return {**description, "conversion": predict(of, path, options)}

    def show(info: dict[str, Any]) -> None:
        print_text(f"{info['path']}: {units.format_size(info['bytes'])} · {formats.get(info['kind']).label}")
        print_text("\n".join([*load_lines(info["load"]), *conversion_lines(info["conversion"])]))

    return show_each(paths, describe, show, args)


def show_each(
    paths: Sequence[Path],
    describe: Callable[[Path], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    args: argparse.Namespace,
) -> int:
    """Describe and show one after the other; one that is broken does not hide the others. Returns the exit code."""
    codes = {0}
    described: list[dict[str, Any]] = []
    for path in paths:
        try:
            description = describe(path)
        except PenstockError as error:
            if len(paths) == 1 or args.traceback:
                raise
            print_text(f"penstock: {error}", file=sys.stderr)
            codes.add(error.exit_code)
            described.append({"path": str(path), "error": error.message, "hint": error.hint})
            continue
        codes.add(3 if description.get("losses") else 0)
        described.append(description)
        if not args.json:
            show(description)
    if args.json:
        print_json(described[0] if len(described) == 1 else described)
    return 1 if 1 in codes else max(codes)


def parse_episodes(text: str) -> list[int] | str:
    """`0-9,12` as numbers, in the order given; `whole` as it is."""
    if text.strip() == "whole":
        return "whole"
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"--episodes: {part.strip()!r} is neither a number nor a range", hint="--episodes 0-9,12")
        stop = int(last) if dash else int(first)
        if stop - int(first) >= _MOST_EPISODES:
            raise UsageError(f"--episodes: {part.strip()!r} are more than {_MOST_EPISODES:,}")
        numbers += range(int(first), stop + 1)
    return numbers


def describe_store(path: Path, **options: Any) -> dict[str, Any]:
    """What `penstock.open` makes of a path, as plain data; or why it cannot be loaded. Reads metadata alone."""
    from penstock._src.stores.opening import open_store

    try:
        with open_store(path, **options) as store:
            return store_facts(store)
    except PenstockError as error:
        return {"possible": False, "reason": error.message, "hint": error.hint}


def episode_directory(path: Path, of: Format, **options: Any) -> dict[str, Any] | None:
    """The store that the files of a format right in a directory are together, described; None where they are none."""
    if len(of.files_in(path)) < 2:
        return None
    description = describe_store(path, **options)
    return description if description["possible"] else None


def stored_size(path: Path) -> int:
    """Bytes of a file, of everything in a directory that is one store, or of the files in it that are one."""
    from penstock._src import formats

    if path.is_file():
        return path.stat().st_size
    if formats.by_directory(path) is not None:
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    together = [each for each in formats.all_formats("store") if each.is_directory_of_files]
    return sum(file.stat().st_size for each in together for file in each.files_in(path))


def refuse_configuration(path: Path, args: argparse.Namespace) -> None:
    """A data set is shown without what a conversion would make of it."""
    what = str(path) if str(path) in map(str, map(Path, args.paths)) else f"{args.paths[0]} holds {path}, which"
    if args.suggest_config or args.words or args.config:
        raise UsageError(f"{what} is a data set: there is no conversion to configure")
    refuse_fields(what, args)


def refuse_fields(what: object, args: argparse.Namespace) -> None:
    if args.fields is not None:
        raise UsageError(f"{what} holds no messages: --fields is for recordings", hint="inspect lists its columns")


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
    explained: set[str] = set()
    cells = []
    for column in columns:
        way = f"{column['way']}: {column['why']}"
        cells.append((*_cells(column), column["way"] if way in explained else way))
        explained.add(way)
    return table(cells, right=(_SIZE,))


def _cells(column: dict[str, Any]) -> tuple[str, ...]:
    shape = "×".join(str(size) for size in column["shape"]) or "1"
    role = f" ({column['role']})" if column["role"] and column["role"] != column["name"] else ""
    what = f"{shape} {column['dtype']}" if column["kind"] != "text" else ""
    encoding = column["encoding"] if column["encoding"] != column["kind"] else ""
    return units.plain(column["name"]), column["kind"] + role, what, encoding, units.format_size(column["stored_bytes"])


# What converting it would take


def open_options(args: argparse.Namespace) -> OpenOptions:
    """What a conversion as it is asked for would be opened with."""
    from penstock._src.conversion.inputs.input import OpenOptions
    from penstock._src.conversion.settings import read_settings
    from penstock._src.system.budget import Budget
    from penstock._src.system.limits import read_cpu_limit

    return OpenOptions(
        settings=read_settings(args.config, args.words),
        budget_bytes=Budget.parse(args.memory).limit_bytes,
        threads=read_cpu_limit().count,
    )


def predict(of: Format, path: Path, options: OpenOptions) -> dict[str, Any]:
    """What converting would give, or why it cannot be."""
    from penstock._src.conversion.inputs.input import InputRef, open_input

    try:
        with open_input(InputRef(of.kind, path), options._replace(compared_bytes=COMPARED_BYTES)) as planned:
            return {
                "possible": True,
                "fps": planned.fps,
                "predicted_peak_bytes": planned.memory.peak_bytes,
                "budget_bytes": options.budget_bytes,
                "features": planned.describe(),
                "lines": [list(line) for line in planned.lines()[1:]],
                "notes": list(planned.notes),
            }
    except PenstockError as error:
        return {"possible": False, "never": bool(of.not_converted), "reason": error.message, "hint": error.hint}


def conversion_lines(plan: dict[str, Any]) -> list[str]:
    """For people: what a conversion would make of each column, and the memory that it would take."""
    if not plan["possible"]:
        hint = [row("", f"→ {plan['hint']}")] if plan["hint"] else []
        start = "" if plan.get("never") else "not as it is: "
        return [row("convert", f"{start}{plan['reason']}"), *hint]
    peak, budget = units.format_bytes(plan["predicted_peak_bytes"]), units.format_bytes(plan["budget_bytes"])
    lines = [row(label, text) for label, text in plan["lines"]]
    lines.append(row("memory", f"predicted peak {peak} of a budget of {budget}"))
    return lines + [row("note", note) for note in plan["notes"]]


def suggest(of: Format, path: Path, options: OpenOptions) -> int:
    """Print the configuration that a conversion would use."""
    from penstock._src.conversion.inputs.input import InputRef, open_input
    from penstock._src.conversion.mapping.suggest import comment, draft_head

    ref = InputRef(of.kind, path)
    try:
        with open_input(ref, options) as planned:
            text = _HEAD.format(name=path.name) + comment(planned.notes) + _settings_yaml(planned)
    except PenstockError as error:
        if options.settings.fps is not None:
            raise
        # The rate is what files leave out: all else is shown with one that has to be changed.
        with open_input(ref, options._replace(settings=replace(options.settings, fps=30))) as planned:
            text = draft_head(path.name, error) + _settings_yaml(planned).replace("fps: 30\n", "# fps: 30\n", 1)
        print_text(f"penstock: not convertible as it is: {error}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


def _settings_yaml(planned: Input) -> str:
    """A configuration that gives the same data set as the settings that the file was opened with."""
    from penstock._src.system import config

    rest = config.dump_yaml(replace(planned.settings, features={})).replace("features: {}\n", "")
    features = {"features": dict(planned.settings.features)}
    return rest + config.dump_yaml(features, skip_defaults=True)
