"""penstock convert: recordings, HDF5 files or data sets → one LeRobot data set."""

from __future__ import annotations

import argparse
import gc
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.system.memory import give_back_large_blocks, resume_collection
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._src.cli.display import Lines

_OVERRIDE = re.compile(r"^[A-Za-z_](?:[\w.\-/]|\[[^\]=]+\])*=")

_HYDRA = re.compile(r"^(\+{1,2}|~)" + _OVERRIDE.pattern[1:])

_EPILOG = """\
examples:
  penstock convert run.bag datasets/run
  penstock convert day1/ 'day2/*.mcap' datasets/days --memory 512MiB task="stack the cups"
  penstock convert run.bag datasets/run --config robot.yaml video=h264 rosbag.chunk_size=500
  penstock convert day1/ datasets/days --jobs 4 --resume       (goes on after a crash or Ctrl-C)
  penstock convert day2/ datasets/days --append                (more recordings into a finished data set)
  penstock convert episodes/*.hdf5 datasets/aloha fps=50
  penstock convert datasets/run datasets/run_av1 video=av1     (copy now, compress tonight)
  penstock convert run.bag datasets/run_v21 output=v2.1        (LeRobot v2.1 in H.264, for GR00T and openpi)
  penstock convert day1/ s3://robots/sets/days                 (into object storage; day2/ … --append adds to it)
  penstock convert day1/ datasets/days --shard 3/8             (one of 8 machines; then `penstock commit datasets/days`)
  penstock convert day1/ datasets/days --on ray                (the nodes of a Ray cluster)
  penstock convert --config-path configs/data --config-name KuavoRosbag2Lerobot rosbag.rosbag_dir=… rosbag.lerobot_dir=…
The last path is the output. Words with '=' change the configuration (`penstock inspect BAG --suggest-config`).
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "convert",
        usage="penstock convert [options] SRC… OUT [a.b=c …]",
        help="convert recordings to a LeRobot data set, in constant memory",
        description="Convert ROS 1 bags, ROS 2 db3 and mcap recordings, ALOHA, robomimic and replay HDF5 files, or "
        "LeRobot v2.1 and v3.0 data sets to one LeRobot v3.0 data set, or with output=v2.1 to a v2.1 one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SRC… OUT [a.b=c …]",
        help="files, directories or globs; the output, a directory or s3://…",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML configuration")
    parser.add_argument("--config-path", metavar="DIR", help="where a Kuavo configuration lies (default configs/data)")
    parser.add_argument("--config-name", metavar="NAME", help="a Kuavo configuration, which names source and output")
    parser.add_argument(
        "--memory",
        default="auto",
        metavar="SIZE",
        help="peak memory, all processes, e.g. 512MiB (default: half of what is free, 2GiB at most)",
    )
    parser.add_argument("--jobs", default="auto", metavar="N", help="cores that may encode: a number, cpu*0.5 or auto")
    parser.add_argument(
        "--on", metavar="ray[://HOST:PORT]", help="convert on a Ray cluster; --memory, --jobs: per task"
    )
    parser.add_argument(
        "--shard", metavar="I/N", help="convert the I-th of N parts, from 0; `penstock commit` joins them"
    )
    parser.add_argument("--resume", action="store_true", help="resume a conversion that did not finish")
    parser.add_argument("--append", action="store_true", help="add the inputs to a data set that penstock wrote")
    parser.add_argument("--keep-going", action="store_true", help="leave out inputs that fail (exit code 3)")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that penstock wrote before")
    parser.add_argument("--allow-external", action="store_true", help="let HDF5 files refer to other files")
    parser.add_argument("--strict", action="store_true", help="stop at the first loss instead of counting it")
    parser.add_argument("--verbose", action="store_true", help="show every note instead of grouping like ones")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.set_defaults(run=run)


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Paths, and `a.b=c` words; a path that exists is a path even with '=' in it."""
    for word in words:
        if _HYDRA.match(word) and not Path(word).exists():
            plain = word.lstrip("+~")
            raise UsageError(f"{word!r}: Hydra's '+' and '~' are not supported", hint=f"write {plain}")
    overrides = [word for word in words if _OVERRIDE.match(word) and not Path(word).exists()]
    return [word for word in words if word not in overrides], overrides


def run(args: argparse.Namespace) -> int:
    # Loading the libraries makes a hundred thousand objects and no garbage; the display looks for some again.
    gc.disable()
    give_back_large_blocks()
    try:
        return _run(args)
    finally:
        resume_collection()


def _run(args: argparse.Namespace) -> int:
    from penstock._src.cli.display import display, report_lines
    from penstock._src.conversion.job import convert

    paths, overrides = split_words(args.words)
    overrides += ["hdf5.allow_external=true"] if args.allow_external else []
    values: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    if args.config_path is not None or args.config_name is not None:
        paths, values, notes = _kuavo(args, paths, overrides)
        overrides = []
    if len(paths) < 2:
        raise UsageError(
            "convert needs at least one source and an output", hint="penstock convert run.bag datasets/run"
        )
    shown = display(results=not args.json, verbose=args.verbose)
    try:
        for note in notes:
            shown.note(note)
        if args.shard is not None:
            return _shard(args, paths, overrides, values, shown)
        report = convert(
            paths[:-1],
            paths[-1],
            config=args.config,
            memory=args.memory,
            jobs=args.jobs,
            on=args.on,
            resume=args.resume,
            append=args.append,
            keep_going=args.keep_going,
            overwrite=args.overwrite,
            strict=args.strict,
            overrides=overrides,
            progress=shown,
            **values,
        )
    finally:
        shown.close()
    sys.stdout.write(report.dumps() if args.json else "\n".join(report_lines(report)) + "\n")
    return report.exit_code


def _shard(
    args: argparse.Namespace, paths: list[str], overrides: list[str], values: Mapping[str, Any], shown: Lines
) -> int:
    """One part of a conversion by several machines."""
    from penstock._src.cli.display import print_json, shard_lines
    from penstock._src.conversion.job import new_job, shared_settings
    from penstock._src.conversion.settings import read_settings
    from penstock._src.conversion.shards.shard import convert_shard, parse_shard

    if args.on is not None:
        raise UsageError("--shard and --on are two ways to share the work", hint="give one of them")
    parse_shard(args.shard)
    settings = read_settings(args.config, [*overrides, *(["bad_messages=reject"] if args.strict else [])], values)
    job = new_job(
        paths[:-1],
        paths[-1],
        settings if args.append else shared_settings(settings),
        memory=args.memory,
        jobs=args.jobs,
        strict=args.strict,
        keep_going=args.keep_going,
        progress=shown,
    )
    command = _without_shard(sys.argv[1:])
    report = convert_shard(
        job, args.shard, append=args.append, overwrite=args.overwrite, command=command, resume=args.resume
    )
    if args.json:
        print_json(report.to_json())
    else:
        sys.stdout.write("\n".join(shard_lines(report, paths[-1])) + "\n")
    return report.exit_code


def _without_shard(words: list[str]) -> str:
    """The command that the user gave, for a shell, without the shard that it names."""
    kept, names = [], False
    for word in words:
        if not (names or word == "--shard" or word.startswith("--shard=")):
            kept.append(word)
        names = word == "--shard"
    return shlex.join(["penstock", *kept])


def _kuavo(
    args: argparse.Namespace, paths: list[str], overrides: list[str]
) -> tuple[list[str], Mapping[str, Any], tuple[str, ...]]:
    """Paths, settings and notes of a configuration with Kuavo's keys; paths in the call stand in for its own."""
    from penstock._src.conversion import kuavo

    if args.config is not None:
        raise UsageError("--config and --config-name are two configurations", hint="give one of them")
    if len(paths) == 1:
        raise UsageError(
            f"{paths[0]!r} is a source without an output, or an output without a source",
            hint="give both, or none: rosbag.rosbag_dir=… rosbag.lerobot_dir=…",
        )
    sources, out = paths[:-1], paths[-1] if paths else None
    job = kuavo.arguments(args.config_path, args.config_name, overrides, sources=sources, out=out)
    return [*map(str, job.sources), str(job.out)], job.values, job.notes
