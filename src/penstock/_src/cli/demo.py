"""penstock demo: make a recording, inspect, convert, check and read it back, and say what happened."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock._src.system import units
from penstock.errors import DataSetError, OutputExists, UsageError

_SHORTEST_S, _LONGEST_S = 0.5, 3600.0
_Option = tuple[str, str | int | float | None, str | None, str]  # flag, default (None: required), metavar, help
_KINDS: dict[str, tuple[str, str, list[_Option]]] = {
    "act": (
        "make episodes of a two-armed reaching task with four cameras, for examples/imitate_episodes.py",
        "Write ALOHA-style HDF5 episodes (four JPEG cameras, qpos, qvel, action of 14 numbers) in which "
        "two arms reach for targets that only the images show.",
        [
            ("--out", None, "DIR", "where episode_0.hdf5, … are written"),
            ("--episodes", 24, "N", "number of episodes (24)"),
            ("--rows", 40, "N", "rows of each episode, at 50 rows a second (40)"),
            ("--size", "120x160", "HxW", "size of the images (120x160); ALOHA has 480x640"),
            ("--seed", 0, None, "another seed gives other targets and postures (0)"),
        ],
    ),
    "spike": (
        "make blurred and sharp images with spike streams of known motion, and a configuration for them",
        "Write OUT/{train,test}/SEQ/{blur,sharp,spike}, motion.csv beside them, and OUT/config.yaml: views "
        "of a moving scene, blurred images as their mean, and the spikes of an integrate-and-fire camera.",
        [
            ("--out", None, "DIR", "where train/, test/ and config.yaml are written"),
            ("--train", 8, "N", "sequences to train on (8)"),
            ("--test", 2, "N", "sequences to validate on (2)"),
            ("--images", 12, "N", "blurred images of each sequence (12)"),
            ("--size", "192x256", "HxW", "size of the images; the spike plane has half of it (192x256)"),
            ("--travel", 12.0, "PX", "how far things move during one exposure (12)"),
            ("--seed", 0, None, "another seed gives other scenes and paths (0)"),
        ],
    ),
    "vqa": (
        "make questions about images of coloured shapes, for examples/train_vqa.py",
        "Write OUT/images/*.jpg, OUT/train.jsonl and OUT/val.jsonl: scenes of circles, squares and "
        "triangles, and questions about their colours, shapes, counts and positions.",
        [
            ("--out", None, "DIR", "where images/, train.jsonl and val.jsonl go"),
            ("--scenes", 2000, "N", "number of images (2000), a tenth for validation"),
            ("--questions", 6, "N", "most questions about one image (6)"),
            ("--size", "64x64", "HxW", "size of the images (64x64)"),
            ("--seed", 0, None, "another seed gives other scenes (0)"),
        ],
    ),
}


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "demo",
        help="make a small recording, convert it, check it and read it back",
        description="The whole walk on a recording that it makes itself: no data, no network and no ROS are needed.",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="keep the recording and the data set here (default: a temporary place)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the recording, 0.5 to 3600 (default 10)")
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="the budget of the conversion, e.g. 512MiB")
    parser.set_defaults(run=run)
    kinds = parser.add_subparsers(
        title="instead",
        dest="what",
        metavar="[act|spike|vqa]",
        help="act: make episodes for imitation learning instead; spike: make spike clips with known motion; "
        "vqa: make images with questions",
    )
    for name, kind in _KINDS.items():
        _add_kind(kinds, name, *kind)


def _add_kind(kinds: Any, name: str, summary: str, description: str, options: Sequence[_Option]) -> None:
    parser = kinds.add_parser(name, help=summary, description=description)
    for flag, default, metavar, text in options:
        kind = str if default is None else type(default)
        parser.add_argument(flag, type=kind, default=default, required=default is None, metavar=metavar, help=text)
    parser.set_defaults(run={"act": run_act, "spike": run_spike, "vqa": run_vqa}[name])


def run_act(args: argparse.Namespace) -> int:
    """Write the episodes."""
    from penstock._src.demo.act import ReachScript, write_episodes

    script = ReachScript(args.episodes, args.rows, *_size(args), seed=args.seed)
    what = f"{script.episodes:,} episodes of {script.rows:,} rows · four JPEG cameras {_pixels(script)}"
    _make(args, lambda out: write_episodes(out, script), what)
    print(f"next: penstock inspect {args.out} · python examples/imitate_episodes.py --dataset {args.out} …")
    return 0


def run_spike(args: argparse.Namespace) -> int:
    """Write the clips and their configuration."""
    from penstock._src.demo.spike import CONFIG_NAME, SpikeScript, write_spike_set

    script = SpikeScript(args.train, args.test, args.images, *_size(args), args.travel, args.seed)
    what = (
        f"{script.train:,} + {script.test:,} sequences of {script.images:,} images {_pixels(script)} · "
        f"spikes {'×'.join(map(str, script.plane))}, 56 or 88 frames an image"
    )
    _make(args, lambda out: write_spike_set(out, script), what)
    config = Path(args.out) / CONFIG_NAME
    print(f"next: penstock inspect {args.out} · penstock check {config} · python examples/train_deblur.py {config}")
    return 0


def run_vqa(args: argparse.Namespace) -> int:
    """Write the images and the records."""
    from penstock._src.demo.vqa import ShapeScript, write_vqa_set

    script = ShapeScript(args.scenes, args.questions, *_size(args), seed=args.seed)
    what = f"{script.scenes:,} images {_pixels(script)}, up to {script.questions} questions each"
    _make(args, lambda out: write_vqa_set(out, script), what)
    print(f"next: penstock inspect {args.out}/train.jsonl · python examples/train_vqa.py --data {args.out}")
    return 0


def _size(args: argparse.Namespace) -> tuple[int, int]:
    height, _, width = args.size.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise UsageError(f"--size {args.size!r} is not HEIGHTxWIDTH, e.g. 480x640")
    return int(height), int(width)


def _pixels(script: Any) -> str:
    return f"{script.height}×{script.width}"


def _make(args: argparse.Namespace, write: Callable[[Path], int], what: str) -> None:
    began = time.perf_counter()
    n_bytes = write(Path(args.out))
    _print("make", time.perf_counter() - began, f"{args.out} · {what} · {units.format_size(n_bytes)}")


def run(args: argparse.Namespace) -> int:
    from penstock._src.system.budget import Budget

    if not _SHORTEST_S <= args.seconds <= _LONGEST_S:
        raise UsageError(f"--seconds {args.seconds:g} is outside {_SHORTEST_S:g}…{_LONGEST_S:g}")
    Budget.parse(args.memory)  # a wrong word is reported before the recording is made
    with _directory(args.out) as directory:
        return _walk(directory, args)


@contextmanager
def _directory(out: str | None) -> Iterator[Path]:
    if out is not None:
        path = Path(out)
        path.mkdir(parents=True, exist_ok=True)
        _check_free(path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as temporary:
        yield Path(temporary)


def _check_free(directory: Path) -> None:
    """Nothing is ever replaced: a demo.bag may be somebody's own, converted to demo/ beside it."""
    for path in (directory / "demo.bag", directory / "demo"):
        if path.exists():
            raise OutputExists(f"{path} exists: it is left alone", hint="choose another --out, or remove it yourself")


def _print(title: str, seconds: float, text: str) -> None:
    print(f"{title:<9}{seconds:6.2f} s   {text}", flush=True)


def _walk(directory: Path, args: argparse.Namespace) -> int:
    from penstock._src import recordings
    from penstock._src.cli.display import count
    from penstock._src.conversion.job import convert
    from penstock._src.demo.recording import Script, write_recording
    from penstock._src.lerobot.check.dataset import check
    from penstock._src.system import memory

    bag, out = directory / "demo.bag", directory / "demo"
    with memory.PeakMeter() as meter:
        began = time.perf_counter()
        size = write_recording(bag, Script(seconds=args.seconds))
        _print(
            "make",
            time.perf_counter() - began,
            f"{bag} · {units.format_size(size)} · ROS 1, three JPEG cameras, joints",
        )

        began = time.perf_counter()
        with recordings.open(bag) as recording:
            messages = sum(topic.count for topic in recording.topics)
            topics = len(recording.topics)
        _print("inspect", time.perf_counter() - began, f"{topics} topics · {messages:,} messages")

        report = convert(bag, out, memory=args.memory, task="move the arm over the table")
        rate = units.format_size(int(report.bytes_in / report.seconds))
        _print(
            "convert",
            report.seconds,
            f"{out} · {report.frames:,} rows at {report.fps} fps · JPEG bytes copied · {report.lost_count} lost · "
            f"{rate}/s",
        )

        began = time.perf_counter()
        findings = check(out)
        _print("check", time.perf_counter() - began, count(len(findings.problems), "problems"))
        began = time.perf_counter()
        read = _read_back(bag, out)
        _print("read", time.perf_counter() - began, read)
    print(f"peak memory of the whole demo {units.format_bytes(meter.tree_peak_bytes)} (generation and check included)")
    if args.out is not None:
        print(f"next: penstock inspect {out} · penstock doctor {out} · LeRobotDataset('demo', root='{out}')")
    return findings.exit_code or report.exit_code


def _read_back(bag: Path, out: Path) -> str:
    """The last row's image, out of the video file, is the very JPEG that the camera sent."""
    import numpy as np

    from penstock._src import recordings
    from penstock._src.demo.recording import CAMERA_TOPIC, CAMERAS
    from penstock._src.stores.opening import open_store
    from penstock._src.stores.store import Scratch

    with open_store(out) as store:
        row = store.rows - 1
        state = store.numbers("observation.state", np.array([row])).reshape(-1)
        stored = next(store.images("observation.images." + CAMERAS[0]).read([row], Scratch())).tobytes()
    with recordings.open(bag) as recording:
        topic = recording.topic(CAMERA_TOPIC.format(CAMERAS[0]))
        sent = [bytes(payload or b"") for _, payload in recording.payloads(topic, [topic.count - 1])]
    if not sent[0].endswith(stored):
        raise DataSetError("the last image of the data set is not the last image of the recording")
    return (
        f"row {row:,}: state [{state[0]:.3f}, {state[1]:.3f}, …] · "
        f"its JPEG of {len(stored):,} bytes is the recorded one, byte for byte"
    )
