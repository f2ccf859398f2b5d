"""Spike-guided motion deblurring: one YAML for data, loading and training.

    penstock demo spike --out clips
    python examples/train_deblur.py clips/config.yaml --out run
    torchrun --nproc-per-node 3 examples/train_deblur.py CONFIG --out run

Words after CONFIG change its values: `TRAIN.EPOCHS=3 DATA.CROP_SIZE=128`. docs/train/deblur.md tells the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from penstock.errors import MissingExtra, PenstockError

_FINISHED_WITH_LOSS = 3


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG", type=Path, help="the YAML file: DATA, DATALOADER, TRAIN, SEED")
    parser.add_argument("values", metavar="KEY=VALUE", nargs="*", help="values that replace those of the file")
    parser.add_argument("--out", type=Path, help="directory of the run (default: runs/NAME of CONFIG)")
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--resume", action="store_true", help="go on exactly where the run in --out ended")
    known.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: %(default)s)")
    parser.add_argument("--no-amp", action="store_true", help="float32 on a GPU too (default: bfloat16 there)")
    parser.add_argument("--log-every", type=int, default=100, metavar="N", help="steps per line (default: %(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=0, metavar="N", help="also a checkpoint every N steps (default: epochs only)"
    )
    parser.add_argument(
        "--images", type=int, default=4, metavar="N", help="before/after images per epoch (default: %(default)s)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """From the YAML to the last epoch; the exit code."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch", "training") from None
    from deblur.checkpoint import check_free, forget
    from deblur.ranks import joined_ranks
    from deblur.train import Settings, Trainer

    import penstock

    config = penstock.load_clip_config(args.config, args.values)
    out = args.out or Path("runs") / args.config.stem
    settings = Settings(out, args.log_every, args.save_every, args.images, not args.no_amp, args.resume)
    if not (args.resume or args.overwrite):
        check_free(out)
    out.mkdir(parents=True, exist_ok=True)
    with (
        joined_ranks(args.device) as ranks,
        penstock.clip_loaders(config, rank=ranks.rank, world_size=ranks.world_size) as loaders,
    ):
        trainer = Trainer(loaders, ranks, settings)
        if ranks.is_first:
            if args.overwrite:
                forget(out)
            count = sum(each.numel() for each in trainer.parameters)
            print(f"DeblurNet: {count / 1e6:.2f} million parameters on {ranks.device}", flush=True)
        return _FINISHED_WITH_LOSS if trainer.run() else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = build_parser().parse_intermixed_args(argv)
    try:
        return run(args)
    except PenstockError as error:
        print(f"train_deblur: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("train_deblur: interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130


def leave(code: int) -> NoReturn:
    """End this process. One of several ends at once: a thread of gloo may still hold tensors when the last barrier is
    over, and aborts an interpreter that is ending meanwhile (pytorch/pytorch#190489)."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
