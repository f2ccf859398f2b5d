"""penstock inspect: what is in a recording, a data set or an HDF5 file; what loading or converting it would take."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.convert import split_words
from penstock._src.cli.inspect.stores import parse_episodes
from penstock._src.system.files import as_path
from penstock._src.system.memory import resume_collection
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.inputs.input import InputRef


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "inspect",
        usage="penstock inspect [options] PATH… [a.b=c …]",
        help="show what a recording, a data set or an HDF5 file holds, and what loading or converting it would take",
        description="Show topics, types, counts and rates of a recording; rows, episodes and columns of a LeRobot data "
        "set, an HDF5 file, a directory of HDF5 episodes or a spike data set, how their rows are read and why; the "
        "layout of spike files (.dat). Of a directory with several of them, a line each.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PATH… [a.b=c …]",
        help=".bag, .db3, .mcap or .hdf5 files, LeRobot data sets, directories with them, or globs; "
        "configuration for the predicted conversion",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML configuration for the predicted conversion")
    parser.add_argument(
        "--suggest-config",
        action="store_true",
        help="print the YAML that convert would use, or one to edit, with the reasons as comments",
    )
    parser.add_argument(
        "--fields",
        nargs="?",
        const="",
        metavar="TOPIC",
        help="list every field of the messages of a topic, or of all topics: path, type, shape and one value",
    )
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="the budget of the predicted conversion")
    parser.add_argument(
        "--episodes", metavar="NUMBERS", help="open only these episodes of a data set: 0-9,12; whole: with all files"
    )
    parser.add_argument("--allow-external", action="store_true", help="let HDF5 files refer to other files")
    parser.add_argument("--verbose", action="store_true", help="list every topic that is left out, with its reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object, of several inputs a list")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    gc.disable()  # loading the libraries makes many objects and no garbage
    try:
        return _run(args)
    finally:
        resume_collection()


def _run(args: argparse.Namespace) -> int:
    if args.fields and Path(args.fields).exists():  # `--fields run.bag`: all topics of it
        args.words, args.fields = [args.fields, *args.words], ""
    args.paths, args.words = split_words(args.words)
    args.words += ["hdf5.allow_external=true"] if args.allow_external else []
    args.episodes = None if args.episodes is None else parse_episodes(args.episodes)
    if not args.paths:
        raise UsageError("inspect needs a recording or a data set", hint="penstock inspect run.bag")
    if args.suggest_config and args.json:
        raise UsageError("--suggest-config prints YAML, --json prints JSON: give one of them")
    if args.suggest_config and args.fields is not None:
        raise UsageError("--suggest-config prints YAML, --fields a table: give one of them")
    if all(_is_spike_file(as_path(path)) for path in args.paths):
        from penstock._src.cli.inspect.spike import inspect_spike_files

        return inspect_spike_files([as_path(path) for path in args.paths], args)
    refs = _named_directories(args.paths) or _contents(args.paths)
    if not refs and (files := _spike_files(args.paths)):
        from penstock._src.cli.inspect.spike import inspect_spike_files

        return inspect_spike_files(files, args)
    if all(each.is_recording for each in refs):
        from penstock._src.cli.inspect.recordings import inspect_recordings

        return inspect_recordings(args)
    from penstock._src.cli.inspect.listing import find_inputs, list_inputs

    inputs = list(find_inputs(refs, args))
    named = {as_path(path) for path in args.paths}
    of = inputs[0].of
    if of is not None and (len(inputs) == 1 or all(each.of is of and each.path in named for each in inputs)):
        return int(of.load("inspect")([each.path for each in inputs], args))
    return list_inputs(inputs, args)


def _is_spike_file(path: Path) -> bool:
    return path.suffix.lower() == ".dat" and path.is_file()


def _spike_files(paths: Sequence[str]) -> list[Path]:
    """The spike files right in directories that hold nothing else of use; none where one has no such files."""
    found = [sorted(each for each in as_path(path).glob("*") if _is_spike_file(each)) for path in paths]
    return [each for files in found for each in files] if all(found) else []


def _named_directories(paths: Sequence[str]) -> list[InputRef]:
    """The directories that are stores, where the words name nothing else; none where they name none."""
    from penstock._src import formats
    from penstock._src.conversion.inputs.input import InputRef

    named = [(path, formats.by_directory(path, "store")) for path in map(as_path, paths)]
    stores = [InputRef(store.kind, path) for path, store in named if store is not None]
    if stores and len(paths) > len(stores):
        raise UsageError(f"{stores[0].path} is a data set: inspect shows data sets, or recordings, not both at once")
    return stores


def _contents(paths: Sequence[str]) -> list[InputRef]:
    from penstock._src.conversion.find import find_inputs

    try:
        return find_inputs(paths)
    except PenstockError:
        return []  # the search for recordings gives the better error
