"""Imitation learning from episodes: ACT or CNNMLP on ALOHA-style HDF5 episodes or LeRobot data sets.

    python examples/imitate_episodes.py --task_name astrobench_dual_arm --ckpt_dir ./ckpt --policy_class ACT \\
        --kl_weight 10 --chunk_size 20 --hidden_dim 512 --batch_size 4 --dim_feedforward 3200 --num_epochs 1 \\
        --lr 1e-5 --seed 0

It needs torch, and matplotlib for the loss curve: pip install torch torchvision matplotlib. Without --dataset it makes
a small task of its own (`penstock demo act`). docs/train/act.md tells the rest.
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
from typing import TYPE_CHECKING

from act.ending import ProfileOut, Terminated, hearing_sigterm
from act.messages import message
from act.options import build_parser, settings_from
from act.ranges import parse_ranges
from act.settings import Settings
from act.words import in_options, leaving_out

from penstock.errors import MissingExtra, OutputFailed, PenstockError, UsageError

if TYPE_CHECKING:
    from act.data import Data

_DEMO = {"episodes": 12, "rows": 32, "height": 96, "width": 128}  # an epoch in minutes, on two cores of a CPU


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
        print(message("demo", settings.lang, directory=directory, mb=made / 1e6), flush=True)
    return directory


def make_demo(directory: Path) -> int:
    """All of it or nothing: beside its place first, where a try that was killed left what is removed now."""
    from penstock.demo import ReachScript, write_episodes

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
        settings.val_share, None if settings.episodes is None else parse_ranges(settings.episodes), settings.resume,
    )  # fmt: skip
    print(data.describe(settings.lang), flush=True)
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
        stats = {name: {**each.to_dict(), "scale": each.scale} for name, each in data.stats.items()}
        write_json(settings.ckpt_dir / "dataset_stats.json", stats)
        count = sum(each.numel() for each in trainer.policy.parameters())
        model = {"policy": settings.policy_class, "millions": count / 1e6, "device": settings.device}
        print(message("model", settings.lang, **model), flush=True)
        was_done = trainer.is_done
        with ProfileOut(settings.profile_out, trainer), leaving_out(data.numbers):
            trainer.run()
            if was_done:
                epochs = {"epoch": trainer.epoch, "epochs": settings.num_epochs}
                print(message("nothing", settings.lang, **epochs), flush=True)
            print(message("best", settings.lang, l1=trainer.best_l1, directory=settings.ckpt_dir), flush=True)


def try_out(settings: Settings, tries: int) -> None:
    """The best checkpoint on the synthetic task."""
    import torch
    from act.checkpoint import BEST, fitting, read_to_act
    from act.rollout import evaluate, load_policy
    from act.task import check_task

    from penstock.demo import ReachScript

    path = settings.ckpt_dir / BEST
    found = read_to_act(path)
    check_task(path, found)
    with fitting(path):
        task = found["task"] if "task" in found else _stored_size(settings)
        script = ReachScript(height=task["height"], width=task["width"])
        policy, shape = load_policy(found)
    for name, outcome in evaluate(policy, shape, script, tries, torch.device(settings.device)).items():
        print(f"{name:<17}{outcome}", flush=True)


def _stored_size(settings: Settings) -> dict[str, int]:
    """Of the images, for checkpoints from before these kept it."""
    import penstock

    with penstock.open(settings.dataset or demo_directory(settings)) as store:
        sizes = [column.shape for column in store.columns.values() if column.kind == "image"]
    if not sizes:
        raise UsageError("the data set has no camera")
    return {"height": sizes[0][0], "width": sizes[0][1]}


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
