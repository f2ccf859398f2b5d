"""Imitation learning from episodes: ACT or CNNMLP on ALOHA-style HDF5 episodes or LeRobot data sets.

    python examples/imitate_episodes.py --task_name astrobench_dual_arm --ckpt_dir ./ckpt --policy_class ACT \\
        --kl_weight 10 --chunk_size 20 --hidden_dim 512 --batch_size 4 --dim_feedforward 3200 --num_epochs 1 \\
        --lr 1e-5 --seed 0

Without --dataset it makes a small task of its own (`penstock demo act`). docs/act.md tells the rest.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from act.ending import ProfileOut, Terminated, hearing_sigterm
from act.ranges import format_ranges, parse_ranges
from act.settings import Settings
from act.words import in_options

from penstock.errors import MissingExtra, OutputFailed, PenstockError, UsageError

if TYPE_CHECKING:
    from act.data import Data

_TRIES = 20
_DEMO = {"episodes": 12, "rows": 32, "height": 96, "width": 128}  # an epoch in minutes, on two cores of a CPU


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
    group.add_argument("--image_size", type=_size, metavar="HxW", help="of the pictures in a batch (as stored)")
    group.add_argument("--memory", default="2GiB", metavar="SIZE", help="that both loaders may hold (2GiB)")
    group.add_argument("--threads", default="auto", metavar="N", help="of each loader: a number, cpu*0.5 or auto")
    group.add_argument("--view", choices=("auto", "off", "ram", "disk"), default="auto", help="decoded pictures (auto)")
    group.add_argument("--gpu_decode", choices=("auto", "on", "off"), default="auto", help="JPEGs on the GPU (auto)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def _from_zero(text: str) -> float:
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
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
    given["cameras"] = tuple(name for name in args.cameras.split(",") if name)
    given["episodes"] = None if args.episodes is None else format_ranges(parse_ranges(args.episodes))
    given["device"] = _device(args.device)
    settings = Settings(**given)
    if settings.hidden_dim % settings.heads:
        raise UsageError(f"--hidden_dim {settings.hidden_dim} cannot be split into {settings.heads} --heads")
    if settings.resume and settings.overwrite:
        raise UsageError("--resume and --overwrite contradict each other")
    if not 0 < settings.val_share < 1:
        raise UsageError(f"--val_share {settings.val_share:g} is outside 0…1")
    return settings


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


def check_places(settings: Settings) -> None:
    """What would fail after hours is found out before anything is made."""
    from penstock import profile

    weights, out = settings.backbone_weights, settings.profile_out
    if weights is not None and not settings.resume and not weights.exists():
        raise UsageError(f"--backbone_weights {weights} does not exist", hint="a path to a state dict of resnet18")
    if out is None:
        return
    if not profile.is_enabled():
        hint = "unset PENSTOCK_PROFILE, or leave --profile-out out"
        raise UsageError(f"PENSTOCK_PROFILE=0 records nothing: --profile-out {out} would be empty", hint=hint)
    if out.is_dir():
        raise UsageError(f"--profile-out {out} is a directory", hint=f"a file in it: {out / 'RUN.json'}")
    kept = settings.ckpt_dir.resolve()
    parent = out.resolve().parent
    if parent in (kept, *kept.parents) and not parent.exists():
        return  # the run makes it
    if not parent.is_dir():
        raise UsageError(f"--profile-out {out}: there is no directory {parent}", hint=f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK):
        raise UsageError(f"--profile-out {out}: {parent} may not be written", hint="choose another place")


def demo_directory(settings: Settings) -> Path:
    """Where the demo task of a run lies."""
    return settings.ckpt_dir / f"demo_{re.sub(r'[^A-Za-z0-9_-]', '_', settings.task_name)}"


def dataset_for(settings: Settings) -> Path:
    """What was named, or the demo task: made once."""
    if settings.dataset is not None:
        return settings.dataset
    directory = demo_directory(settings)
    if not any(directory.glob("episode_*.hdf5")):
        if settings.resume:
            hint = "--dataset with the data of that run"
            raise UsageError(f"--resume without --dataset, and {directory} holds no episodes", hint=hint)
        made = make_demo(directory)
        print(f"no --dataset: the demo task is in {directory} ({made / 1e6:.1f} MB)", flush=True)
    return directory


def make_demo(directory: Path) -> int:
    """All of it or nothing: beside its place first, where a try that was killed left what is removed now."""
    from penstock.demo.act import ReachScript, write_episodes

    part = directory.with_name(directory.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        made = write_episodes(part, ReachScript(**_DEMO))
        part.replace(directory)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        why = OSError(error.errno, os.strerror(error.errno)) if error.errno else error  # HDF5's words fill lines
        raise OutputFailed(directory, "the demo task cannot be written", why) from error
    return made


def open_data(settings: Settings) -> Data:
    """The loaders of the run; what is worth a note is told."""
    from act.data import Data
    from act.loading import Loading

    loading = Loading(
        settings.image_size, settings.memory, settings.view, settings.threads, settings.device, settings.gpu_decode
    )
    data = Data(
        dataset_for(settings), settings.chunk, settings.batch_size, settings.seed, loading, settings.cameras,
        settings.val_share, None if settings.episodes is None else parse_ranges(settings.episodes),
    )  # fmt: skip
    print(data.describe(), flush=True)
    for note in (*data.notes(), *data.train.notes):
        print(f"note: {note}", flush=True)
    return data


def train(settings: Settings) -> None:
    """From the data to the last epoch."""
    from act.checkpoint import check_free, forget, read_last, write_json
    from act.train import Trainer

    check_places(settings)
    saved = read_last(settings.ckpt_dir, settings.that_make_the_result()) if settings.resume else None
    if not (settings.resume or settings.overwrite):
        check_free(settings.ckpt_dir)
    try:
        settings.ckpt_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFailed(settings.ckpt_dir, "the directory cannot be made", error) from error
    with open_data(settings) as data:
        trainer = Trainer(settings, data, saved)
        if settings.overwrite:
            forget(settings.ckpt_dir)
        stats = {name: each.to_dict() for name, each in data.stats.items()}
        write_json(settings.ckpt_dir / "dataset_stats.json", stats)
        count = sum(each.numel() for each in trainer.policy.parameters())
        print(f"{settings.policy_class}: {count / 1e6:.1f} million parameters on {settings.device}", flush=True)
        if trainer.is_done:
            print(f"already at epoch {trainer.epoch} of {settings.num_epochs}: nothing to train", flush=True)
        with ProfileOut(settings.profile_out, trainer):
            trainer.run()
            print(f"best val l1 {trainer.best_l1:.4f} · {settings.ckpt_dir}", flush=True)


def try_out(settings: Settings, tries: int) -> None:
    """The best checkpoint on the synthetic task."""
    from act.checkpoint import BEST, read_to_act
    from act.rollout import evaluate
    from act.task import check_task

    from penstock.demo.act import ReachScript

    path = settings.ckpt_dir / BEST
    found = read_to_act(path)
    check_task(path, found)
    height, width = (found["task"][side] for side in ("height", "width")) if "task" in found else _stored_size(settings)
    script = ReachScript(height=height, width=width)
    for name, outcome in evaluate(found, script, tries, settings.device).items():
        print(f"{name:<17}{outcome}", flush=True)


def _stored_size(settings: Settings) -> tuple[int, int]:
    """Of the pictures, for checkpoints from before these kept it."""
    import penstock

    with penstock.open(settings.dataset or demo_directory(settings)) as store:
        sizes = [column.shape for column in store.columns.values() if column.kind == "image"]
    if not sizes:
        raise UsageError("the data set has no camera")
    return sizes[0][0], sizes[0][1]


def run(args: argparse.Namespace) -> None:
    """What the words ask for."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("torch", "torch", "training") from None
    settings = settings_from(args)
    if args.eval:
        try_out(settings, args.tries)
    else:
        train(settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter gets a question mark
    args = build_parser().parse_args(argv)
    try:
        with hearing_sigterm():
            run(args)
    except PenstockError as error:
        print(f"imitate_episodes: {in_options(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        is_term = isinstance(error, Terminated)
        word = "terminated (SIGTERM)" if is_term else "interrupted"
        print(f"imitate_episodes: {word}{'' if args.eval else _what_remains(args.ckpt_dir)}", file=sys.stderr)
        return 143 if is_term else 130
    except BrokenPipeError:  # `| head -1`: nobody reads any more
        return 1
    except OSError as error:  # a disk that is full, a directory that may not be written, …
        where = f"{error.filename}: " if error.filename else ""
        print(f"imitate_episodes: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _what_remains(directory: Path) -> str:
    if (directory / "policy_last.ckpt").exists():
        return "; --resume goes on from the last checkpoint"
    return "; there was no checkpoint yet: --save_every N writes one every N steps"


def entry() -> int:
    """The script: `main`, and a stdout that nobody reads is given up before Python complains of it."""
    code = main()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or 1
    return code


if __name__ == "__main__":
    sys.exit(entry())
