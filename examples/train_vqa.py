"""Visual question answering: a small CNN and a text encoder learn the shapes of `penstock demo vqa`.

    python examples/train_vqa.py --ckpt_dir ckpt                    # makes the data, trains, validates
    python examples/train_vqa.py --ckpt_dir ckpt --resume           # goes on at the exact batch
    python examples/train_vqa.py --data shapes --ckpt_dir ckpt      # DIR with train.jsonl and val.jsonl

docs/train/vqa.md tells the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import MissingExtra, OutputExists, PenstockError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="train.jsonl, val.jsonl and their images (default: made here)")
    parser.add_argument("--ckpt_dir", metavar="DIR", required=True, help="where the checkpoint goes")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the data (8)")
    parser.add_argument("--batch_size", type=int, default=64, help="samples of a step (64)")
    parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate (0.002)")
    parser.add_argument("--width", type=int, default=64, help="of the model (64)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (0)")
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader (0: in this process)")
    parser.add_argument("--scenes", type=int, default=2000, help="of the data that are made here (2000)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, metavar="N", help="stop after so many steps; --resume goes on")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser


def data_for(args: argparse.Namespace) -> str:
    """What was named, or the demo: made once."""
    from penstock.demo import ShapeScript, write_vqa_set

    if args.data is not None:
        return str(args.data)
    directory = Path(args.ckpt_dir) / "shapes"
    if not (directory / "val.jsonl").exists():
        size = write_vqa_set(directory, ShapeScript(scenes=args.scenes))
        print(f"{directory}: {args.scenes:,} scenes made, {size / 1e6:.1f} MB", flush=True)
    return str(directory)


def run(args: argparse.Namespace) -> float:
    """Train, and return the share of right answers."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch", "training") from None
    from vqa.train import CHECKPOINT, Settings, Trainer

    directory = Path(args.ckpt_dir)
    if not args.resume and (directory / CHECKPOINT).exists():
        raise OutputExists(f"{directory / CHECKPOINT} exists", hint="--resume goes on from it; or another --ckpt_dir")
    settings = Settings(data_for(args), args.epochs, args.batch_size, args.lr, args.seed, width=args.width)
    trainer = Trainer(settings, directory, workers=args.workers, device=args.device, resume=args.resume)
    try:
        trainer.run(args.steps)
    finally:
        trainer.close()
    return trainer.history[-1]["accuracy"] if trainer.history else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        run(args)
    except PenstockError as error:
        print(f"train_vqa: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("train_vqa: interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
