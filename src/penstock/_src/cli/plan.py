"""penstock plan: what loading or converting data takes on this machine, what fits, and what to run."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.bench import parse_image_size
from penstock._src.cli.convert import split_words
from penstock._src.cli.display import print_json, print_text, row, table
from penstock._src.cli.plan_page import conversion_cells, conversion_page, loading_cells, loading_page
from penstock._src.system import units
from penstock._src.system.files import as_path
from penstock.errors import OutputFailed, UsageError

if TYPE_CHECKING:
    from penstock._src.plan.conversion_plan import ConversionOption, ConversionPlan
    from penstock._src.plan.history import RunOutcome
    from penstock._src.plan.load_plan import LoadPlan

_BAR = 48
_EPILOG = """\
examples:
  penstock plan datasets/run --batch-size 64
  penstock plan replay.hdf5 --memory 4GiB --image-size 224x224 --html plan.html
  penstock plan train.jsonl --batch-size 32 --gpu-memory 16GiB --model-params 110M
  penstock plan run.bag video=h264
  penstock plan --history
A plan of a data set measures its first rows for a few seconds. A plan of a recording reads its index only.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "plan",
        usage="penstock plan [options] PATH [a.b=c …]",
        help="predict memory and speed before anything starts: what fits, which strategy, what to run",
        description="Predict what loading a data set, or converting a recording, takes on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="PATH [a.b=c …]", help="data; configuration of its conversion")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="samples of a batch (64)")
    parser.add_argument("--image-size", default="224x224", metavar="HxW", help="images in a batch: 224x224, or full")
    parser.add_argument(
        "--window", default="auto", metavar="KIND", help="what a sample is: row, transition, chunk:20, clip:5 or auto"
    )
    parser.add_argument(
        "--episodes", metavar="NUMBERS", help="open only these episodes: 0-9,12; whole: those with all files"
    )
    parser.add_argument("--memory", metavar="SIZE", help="the budget (default: half of what is available)")
    parser.add_argument("--threads", default="auto", metavar="N", help="threads: a number, cpu*0.5 or auto")
    parser.add_argument(
        "--epochs", type=int, default=10, metavar="N", help="epochs within which a view must pay off (10)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="seconds to measure each way (1)")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="also estimate the batch size for a GPU with this memory")
    parser.add_argument("--model-params", metavar="N", help="parameters of the model: 110M, 1.5B (with --gpu-memory)")
    parser.add_argument("--config", metavar="FILE", help="YAML configuration of the conversion")
    parser.add_argument("--convert", action="store_true", help="plan the conversion of a data set, not its loading")
    parser.add_argument("--history", action="store_true", help="show how good predictions were on this machine")
    parser.add_argument("--html", metavar="FILE", help="write the plan as a page")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    paths, overrides = split_words(args.words)
    if args.history:
        return _history(args)
    if len(paths) != 1:
        raise UsageError(f"plan takes one path, not {len(paths)}", hint="penstock plan datasets/run")
    if args.convert or overrides or args.config or _is_recording(paths[0]):
        return _conversion(paths[0], overrides, args)
    return _loading(paths[0], args)


def _is_recording(path: str) -> bool:
    from penstock._src.conversion.find import identify_input

    return identify_input(as_path(path)).is_recording


def _loading(path: str, args: argparse.Namespace) -> int:
    from penstock._src.cli.inspect.stores import parse_episodes
    from penstock._src.load.bench.planning import plan_loading

    batch = _largest_batch(args)
    plan = plan_loading(
        path,
        args.batch_size,
        window=args.window,
        image_size=parse_image_size(args.image_size),
        memory=args.memory,
        threads=int(args.threads) if args.threads.isdecimal() else args.threads,
        epochs=args.epochs,
        seconds=args.seconds,
        **({} if args.episodes is None else {"episodes": parse_episodes(args.episodes)}),
    )
    facts = _batch_facts(batch, args)
    lines = loading_lines(plan) + [row(*fact) for fact in facts]
    _finish(args, {**plan.to_json(), **_batch_json(batch)}, lines, loading_page(plan, facts))
    return 0


def _largest_batch(args: argparse.Namespace) -> int | None:
    """The batch that a GPU holds, by arithmetic; None where neither GPU nor model is given."""
    from penstock._src.plan.batch_calculator import BatchSizeCalculator

    if (args.gpu_memory is None) != (args.model_params is None):
        hint = "--gpu-memory 16GiB --model-params 110M"
        raise UsageError("--gpu-memory and --model-params belong together", hint=hint)
    if args.gpu_memory is None:
        return None
    size: int = BatchSizeCalculator.calculate_max_batch_size(
        parse_parameters(args.model_params) / 1e6,
        image_size=parse_image_size(args.image_size) or (224, 224),
        available_gpu_memory_gb=units.parse_bytes(args.gpu_memory) / units.GIB,
        verbose=False,
    )
    return size


def _batch_json(batch: int | None) -> dict[str, Any]:
    return {} if batch is None else {"largest_batch_size": batch}


def _batch_facts(batch: int | None, args: argparse.Namespace) -> list[tuple[str, str]]:
    if batch is None:
        return []
    probe = "penstock.plan.find_max_batch_size measures it with the model"
    text = f"a batch of about {batch:,} for {args.model_params} parameters in {args.gpu_memory}, by arithmetic; {probe}"
    return [("GPU", text if batch else f"{args.gpu_memory} do not hold {args.model_params} parameters in training")]


def parse_parameters(text: str) -> float:
    """`110M`, `1.5B` or a plain number."""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1.0)
    number = text[:-1] if scale > 1 else text
    try:
        return float(number) * scale
    except ValueError:
        raise UsageError(f"--model-params: {text!r} is not a number", hint="--model-params 110M") from None


def loading_lines(plan: LoadPlan) -> list[str]:
    """For people: what it is, what it costs, what fits, what to run."""
    lines = [plan.path, *(row(label, text) for label, text in plan.lines())]
    lines += table(loading_cells(plan), right=(1, 2, 3, 4))
    lines += bar(plan.chosen.memory_bytes, plan.budget_bytes)
    lines += [row("store", plan.opening), row("run", plan.code)]
    return lines + [row("or", each.code) for each in plan.options if each.code]


def _conversion(path: str, overrides: Sequence[str], args: argparse.Namespace) -> int:
    from penstock._src.conversion.planning import plan_conversion

    batch = _largest_batch(args)
    plan = plan_conversion(path, memory=args.memory or "auto", config=args.config, overrides=overrides)
    commands = [] if plan.chosen is None else _commands(plan, plan.chosen, overrides, args)
    facts = _batch_facts(batch, args)
    lines = conversion_lines(plan, commands) + [row(*fact) for fact in facts]
    plain = {**plan.to_json(), "commands": commands, **_batch_json(batch)}
    _finish(args, plain, lines, conversion_page(plan, facts, commands))
    return 0 if plan.chosen is not None else 1


def _commands(
    plan: ConversionPlan, chosen: ConversionOption, overrides: Sequence[str], args: argparse.Namespace
) -> list[str]:
    """To convert, and then to plan the loading of what was made."""
    words = [word for word in overrides if not word.startswith("video=")]
    words += [] if args.config is None else ["--config", args.config]
    words += [] if args.memory is None else ["--memory", args.memory]
    out = _new_output(f"datasets/{Path(plan.path).resolve().name.split('.')[0]}", chosen.video)
    return [
        shlex.join(["penstock", "convert", plan.path, out, f"video={chosen.video}", *words]),
        shlex.join(["penstock", "plan", out, "--batch-size", str(args.batch_size)]),
    ]


def _new_output(name: str, video: str) -> str:
    """The first name where nothing lies yet: the data set that is converted may have the usual one."""
    further = (f"{name}_{video}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain((name, f"{name}_{video}"), further) if not Path(each).exists())


def conversion_lines(plan: ConversionPlan, commands: Sequence[str]) -> list[str]:
    lines = [plan.path, *(row(label, text) for label, text in plan.lines)]
    lines += table(conversion_cells(plan), right=(1,))
    if plan.chosen is not None:
        lines += bar(plan.chosen.memory_bytes, plan.budget_bytes)
    lines += [row(label, command) for label, command in zip(("run", "then"), commands, strict=False)]
    return lines


def bar(parts: dict[str, int] | Any, budget_bytes: int) -> list[str]:
    """The budget as a bar: one letter per part, and what is left."""
    letters, lines, drawn = "", [], 0
    for number, (name, size) in enumerate(parts.items()):
        drawn += size
        letter = "█▓▒░#=+*"[number % 8]
        letters += letter * (round(drawn / max(budget_bytes, 1) * _BAR) - len(letters))
        lines.append(f"  {letter} {name:<26}{units.format_bytes(size):>10}")
    left = max(0, budget_bytes - drawn)
    lines.append(f"  · {'left of the budget':<26}{units.format_bytes(left):>10}")
    return [row("budget", f"[{letters[:_BAR]:·<{_BAR}}] {units.format_bytes(budget_bytes)}"), *lines]


def _finish(args: argparse.Namespace, plain: dict[str, Any], lines: Sequence[str], page: str) -> None:
    if args.html:
        try:
            Path(args.html).write_text(page, encoding="utf-8")
        except OSError as error:
            raise OutputFailed(Path(args.html), "writing the page", error) from error
    if args.json:
        print_json(plain)
        return
    for line in lines:
        print_text(line)
    if args.html:
        print_text(row("page", args.html))


def _history(args: argparse.Namespace) -> int:
    from penstock._src.plan.history import read_history, summaries
    from penstock._src.system.cache_directory import cache_directory

    history = read_history(cache_directory())
    entries = summaries(history)
    if args.json:
        kinds, runs = ([each._asdict() for each in values] for values in (entries, history))
        print_json({"kinds": kinds, "runs": runs})
        return 0
    if not history:
        print("no run was predicted yet on this machine; convert records its runs, and so does a Loader with plan=")
        return 0
    for line in history_lines(history):
        print_text(line)
    return 0


def history_lines(history: Sequence[RunOutcome], shown: int = 20) -> list[str]:
    from penstock._src.plan.history import summaries

    cells = [("kind", "runs", "memory: median error", "largest", "samples/s: median error")]
    for each in summaries(history):
        rate = "–" if each.rate_error is None else f"{each.rate_error:.0%}"
        errors = (f"{each.memory_error:.0%}", f"{each.worst_memory_error:.0%}", rate)
        cells.append((each.kind, f"{each.runs:,}", *errors))
    return [*table(cells, right=(1, 2, 3)), *(f"{each.kind:<8} {each.what}: {each.line}" for each in history[-shown:])]
