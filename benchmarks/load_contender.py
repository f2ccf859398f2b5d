"""penstock's loader, both of its engines, or the making of a view, as a contender of benchmarks/load.py.

Usage: python load_contender.py load|engines|build PATH [options]; a round for every line on standard input.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from rounds import Clock, serve, timed

import penstock

SPARE_BATCHES = 16  # more than a loader prepares ahead: the end of an epoch never falls into the timed part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("load", "engines", "build"))
    parser.add_argument("path")
    parser.add_argument("--window", choices=("row", "transition"), default="row")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=2, default=(224, 224), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--dtype", choices=("uint8", "float32"), default="uint8")
    parser.add_argument("--view", choices=("off", "ram"), default="off", help="ram: filled before the first round")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=32, help="of each engine, in one round of engines")
    parser.add_argument("--engine", choices=("thread", "process"), default="thread")
    args = parser.parse_args()
    store = penstock.open(args.path)
    {"build": serve_build, "engines": serve_engines, "load": serve_load}[args.what](args, store)


def views_of(args: argparse.Namespace, store: Any) -> dict[str, Any]:
    images = [name for name, column in store.columns.items() if column.is_image]
    found: dict[str, Any] = penstock.build_view(
        store, images, tuple(args.size), where="ram", memory=args.memory, threads=args.threads
    )
    return found


def serve_build(args: argparse.Namespace, store: Any) -> None:
    def play() -> dict[str, Any]:
        clock = Clock()
        views = views_of(args, store)
        frames = sum(view.n_filled for view in views.values())
        found = clock.rate(frames)
        if frames != store.rows * len(views):
            raise SystemExit(f"{frames} frames of {store.rows * len(views)} are in the views")
        for view in views.values():
            view.close()
        return found

    serve(play)


def loader_of(args: argparse.Namespace, store: Any, views: Any, rounds: int = 1, **options: Any) -> penstock.Loader:
    """One store as a mixture of one: an epoch as long as the rounds, so that only the steady state is timed."""
    window = penstock.Transition() if args.window == "transition" else penstock.Window()
    length = (rounds * (args.warmup + args.batches) + SPARE_BATCHES) * args.batch
    return penstock.Loader(
        penstock.Mix([(store, 1.0)], length=length), window, args.batch, image_size=tuple(args.size),
        memory=args.memory, view=views, threads=args.threads, dtype=args.dtype, **options,
    )  # fmt: skip


def serve_engines(args: argparse.Namespace, store: Any) -> None:
    """A round: both engines in many short turns, from one view, so that both meet the same memory and moments."""
    views = views_of(args, store)

    def play() -> dict[str, Any]:
        with (
            loader_of(args, store, views, args.turns, engine="thread") as threads,
            loader_of(args, store, views, args.turns, engine="process") as process,
        ):
            passes = {"threads": iter(threads), "process": iter(process)}
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in passes}
            for turn in range(args.turns):
                for name in sorted(passes, reverse=bool(turn % 2)):
                    found[name].append(
                        timed(passes[name], warmup=args.warmup, count=args.batches, samples=args.batch)
                    )
        rates = {name: [each["per_s"] for each in turns] for name, turns in found.items()}
        ratios = [mine / other for mine, other in zip(rates["process"], rates["threads"], strict=True)]
        medians = {f"{name}_per_s": statistics.median(each) for name, each in rates.items()}
        return {**found["process"][-1], **medians, "ratio": statistics.median(ratios), "ratios": ratios}

    serve(play, rows=store.rows)


def serve_load(args: argparse.Namespace, store: Any) -> None:
    views = views_of(args, store) if args.view == "ram" else "off"

    def play() -> dict[str, Any]:
        with loader_of(args, store, views, engine=args.engine) as loader:
            found = timed(iter(loader), warmup=args.warmup, count=args.batches, samples=args.batch)
            return {**found, "stats": {key: value for key, value in loader.stats().items() if isinstance(value, int)}}

    serve(play, rows=store.rows)


main()
