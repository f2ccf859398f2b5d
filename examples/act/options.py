"""The command line: its options, what each of them takes, and which of them fit together."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

from .ranges import format_ranges, parse_ranges
from .settings import Settings

_TRIES = 20
_LONGEST_CHUNK = 10_000


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(description="Train a policy on episodes; --resume goes on, --eval tries it.")
    _add_run(parser.add_argument_group("run"))
    _add_model(parser.add_argument_group("policy"))
    _add_loading(parser.add_argument_group("data"))
    return parser


def _add_run(group: Any) -> None:
    group.add_argument("--task_name", required=True, help="a name for titles, and of the demo's directory")
    group.add_argument("--ckpt_dir", type=Path, required=True, metavar="DIR", help="where the run is kept")
    group.add_argument("--num_epochs", type=_count, default=1, metavar="N", help="passes over all samples (1)")
    group.add_argument("--batch_size", type=_count, default=4, metavar="N", help="samples of a step (4)")
    group.add_argument("--lr", type=_positive, default=1e-5, help="of AdamW (1e-5)")
    group.add_argument("--lr_backbone", type=_positive, help="of the ResNet (as --lr)")
    group.add_argument("--weight_decay", type=_from_zero, default=1e-4, help="of AdamW (1e-4)")
    group.add_argument("--seed", type=_whole, default=0, help="of the split, order, weights and dropout (0)")
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: cuda where there is one")
    group.add_argument("--amp", action="store_true", help="bfloat16 where that is safe")
    group.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --ckpt_dir")
    group.add_argument("--overwrite", action="store_true", help="train anew where --ckpt_dir holds a run")
    group.add_argument("--eval", action="store_true", help="train nothing: try the best checkpoint on the demo task")
    group.add_argument("--tries", type=_count, default=_TRIES, metavar="N", help=f"of --eval ({_TRIES})")
    group.add_argument("--val_every", type=_count, default=1, metavar="N", help="validate every N epochs (1)")
    group.add_argument("--save_every", type=_whole, default=0, metavar="N", help="checkpoint every N steps, too")
    group.add_argument(
        "--log_every", type=_whole, default=50, metavar="N",
        help="a line every N steps, at the first one, and after half a minute of silence (50; 0: none)",
    )  # fmt: skip
    group.add_argument("--table_every", type=_count, default=10, metavar="N", help="timing table every N epochs (10)")
    group.add_argument("--lang", choices=("zh", "en"), default="zh", help="of the timing lines and the table (zh)")
    group.add_argument("--profile-out", type=Path, metavar="RUN.json", help="for `penstock profile RUN.json`")


def _add_model(group: Any) -> None:
    group.add_argument("--policy_class", choices=("ACT", "CNNMLP"), default="ACT", help="(ACT)")
    group.add_argument("--kl_weight", type=_from_zero, default=10.0, help="of the style's divergence in the loss (10)")
    group.add_argument("--chunk_size", type=_count, default=20, metavar="N", help="actions of one prediction (20)")
    group.add_argument("--hidden_dim", type=_count, default=512, metavar="N", help="of a token (512)")
    group.add_argument("--dim_feedforward", type=_count, default=3200, metavar="N", help="of a layer's middle (3200)")
    group.add_argument("--heads", type=_count, default=8, metavar="N", help="of attention (8)")
    group.add_argument("--enc_layers", type=_count, default=4, metavar="N", help="of each encoder (4)")
    group.add_argument("--dec_layers", type=_count, default=7, metavar="N", help="of the decoder (7)")
    group.add_argument("--dropout", type=_share, default=0.1, help="(0.1)")
    group.add_argument("--backbone_width", type=_count, default=64, metavar="N", help="64 is ResNet-18 (64)")
    group.add_argument(
        "--backbone_weights", type=Path, metavar="FILE", help="a state dict of torchvision's resnet18; read as tensors"
    )
    norms = ("batch", "frozen", "group")
    group.add_argument("--norm", choices=norms, help="of the ResNet (frozen with --backbone_weights, else batch)")


def _add_loading(group: Any) -> None:
    group.add_argument(
        "--dataset", type=Path, metavar="PATH",
        help="directory of ALOHA-style HDF5 episodes, or a LeRobot data set (default: the demo task, in --ckpt_dir)",
    )  # fmt: skip
    group.add_argument("--cameras", default="", metavar="A,B", help="some of the cameras (all)")
    group.add_argument("--episodes", metavar="0-40,45", help="some of the episodes, by number (all)")
    group.add_argument("--val_share", type=_number, default=0.2, help="of the episodes, for validation (0.2)")
    group.add_argument("--image_size", type=_size, metavar="HxW", help="of the images in a batch (as stored)")
    group.add_argument("--memory", default="2GiB", metavar="SIZE", help="that both loaders may hold (2GiB)")
    group.add_argument("--threads", default="auto", metavar="N", help="of each loader: a number, cpu*0.5 or auto")
    group.add_argument("--view", choices=("auto", "off", "ram", "disk"), default="auto", help="decoded images (auto)")
    group.add_argument("--gpu_decode", choices=("auto", "on", "off"), default="auto", help="JPEGs on the GPU (auto)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be 1 or more")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 or more")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be above 0")
    return value


def _from_zero(text: str) -> float:
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be 0 or more")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to below 1")
    return value


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None or not all(32 <= int(side) <= 4096 for side in found.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH from 32 on, e.g. 480x640")
    return int(found[1]), int(found[2])


def settings_from(args: argparse.Namespace) -> Settings:
    """Checked together: what argparse sees alone may not fit."""
    given = {name: value for name, value in vars(args).items() if name not in ("eval", "tries")}
    given["cameras"] = tuple(name.strip() for name in args.cameras.split(",") if name.strip())
    given["episodes"] = None if args.episodes is None else format_ranges(parse_ranges(args.episodes))
    given["device"] = _device(args.device)
    settings = Settings(**given)
    _check_sizes(settings)
    if settings.resume and settings.overwrite:
        raise UsageError("--resume and --overwrite contradict each other")
    if not 0 < settings.val_share < 1:
        raise UsageError(f"--val_share {settings.val_share:g} is not between 0 and 1", hint="a fifth: --val_share 0.2")
    if not re.fullmatch(r"auto|[1-9]\d*|cpu\*(?!0*\.?0*$)\d*\.?\d+", settings.threads):
        raise UsageError(f"--threads: '{settings.threads}' is not a number of threads, auto or cpu*0.9")
    if settings.ckpt_dir.exists() and not settings.ckpt_dir.is_dir():
        raise UsageError(f"--ckpt_dir {settings.ckpt_dir} is a file", hint="the directory of a run is needed")
    return settings


def _check_sizes(settings: Settings) -> None:
    """Those of ACT; CNNMLP has neither heads nor chunks."""
    if settings.policy_class != "ACT":
        return
    if settings.hidden_dim % settings.heads:
        raise UsageError(f"--hidden_dim {settings.hidden_dim} cannot be split into {settings.heads} --heads")
    if settings.chunk_size > _LONGEST_CHUNK:
        raise UsageError(
            f"--chunk_size {settings.chunk_size:,} is more than {_LONGEST_CHUNK:,}",
            hint="20 to 100 are usual; what is longer than the longest episode is padding",
        )


def _device(name: str) -> str:
    """A device that torch has here."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name} is no device", hint="cpu, cuda, cuda:1 or auto") from None
    if found.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: training is on cpu or cuda", hint="cpu, cuda, cuda:1 or auto")
    if found.type == "cpu":
        if found.index:
            raise UsageError(f"--device {name}: there is one cpu, all of its cores are in it", hint="--device cpu")
        return "cpu"
    there = torch.cuda.device_count()
    if (found.index or 0) >= there:
        raise UsageError(f"--device {name}: torch finds {there} CUDA devices here", hint="--device cpu, or auto")
    return name
