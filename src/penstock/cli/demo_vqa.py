"""penstock demo vqa: make a small VQA data set of shapes, colours, counts and positions."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from penstock.errors import UsageError
from penstock.system import units


def add_vqa(kinds: Any) -> None:
    """The words of `penstock demo vqa`."""
    parser = kinds.add_parser(
        "vqa",
        help="make questions about images of coloured shapes, for examples/train_vqa.py",
        description="Write OUT/images/*.jpg, OUT/train.jsonl and OUT/val.jsonl: scenes of circles, squares and "
        "triangles, and questions about their colours, shapes, counts and positions.",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="where images/, train.jsonl and val.jsonl go")
    parser.add_argument("--scenes", type=int, default=2000, metavar="N", help="images (2000), a tenth to validate on")
    parser.add_argument("--questions", type=int, default=6, metavar="N", help="about each image, at most (6)")
    parser.add_argument("--size", default="64x64", metavar="HxW", help="of the images (64x64)")
    parser.add_argument("--seed", type=int, default=0, help="other scenes (0)")
    parser.set_defaults(run=run_vqa)


def run_vqa(args: argparse.Namespace) -> int:
    """Write the images and the records."""
    from penstock.demo.vqa import ShapeScript, write_vqa_set

    height, _, width = args.size.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise UsageError(f"--size {args.size!r} is not HEIGHTxWIDTH, e.g. 64x64")
    script = ShapeScript(args.scenes, args.questions, int(height), int(width), seed=args.seed)
    began = time.perf_counter()
    size = write_vqa_set(Path(args.out), script)
    seconds = time.perf_counter() - began
    print(
        f"make {seconds:.2f} s · {args.out} · {script.scenes:,} images {height}×{width}, up to {script.questions} "
        f"questions each · {units.format_size(size)}"
    )
    print(f"next: penstock inspect {args.out}/train.jsonl · python examples/train_vqa.py --data {args.out}")
    return 0
