"""Checkpoints: written whole or not at all, read as tensors and plain values only."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from penstock.errors import OutputExists, OutputFailed, UsageError

VERSION = 1
LAST, BEST = "policy_last.ckpt", "policy_best.ckpt"
HISTORY = "history.json"

_MOST_SAID = 200  # letters of another library's error
_TO_ACT = ("settings", "policy_class", "shape", "columns", "stats", "model")
_TO_GO_ON = ("stats", "epoch", "step", "model", "optimizer", "random", "loader", "sums", "history", "best_l1")


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Beside its place first, then renamed: a run that is killed here leaves the checkpoint before."""
    with _beside(path) as part, open(part, "wb") as file:
        torch.save({"version": VERSION, **content}, file)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """The same for small files that people read; NaN and infinity, which JSON has not, as null."""
    with _beside(path) as part:
        part.write_text(json.dumps(_finite(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """The same for an image."""
    with _beside(path) as part:
        part.write_bytes(content)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` when it is whole; of one that cannot be written nothing stays."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        stop = _inside(error, KeyboardInterrupt)
        if stop is not None and stop is not error:  # torch's writer complains of the file that Ctrl-C left cut
            raise stop from None
        if isinstance(error, (OSError, RuntimeError)):  # torch tells a full disk in its own way
            said = _inside(error, OSError) or RuntimeError(str(error).partition("\n")[0])
            raise OutputFailed(path, "cannot be written", said) from error
        raise


def _inside(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error of this kind that others were raised on top of."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, kind):
        inner = inner.__cause__ or inner.__context__
    return inner


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _finite(each) for name, each in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def load_tensors(path: Path, what: str, hint: str) -> Any:
    """What torch.save wrote, as tensors and plain values: nothing in it is executed."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of junk, torch warns that it may not understand it
            return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # junk makes torch's reader raise anything: KeyError, RuntimeError, OSError, …
        raise UsageError(
            f"{path} ({size:,} bytes) is cut or is no {what}: it cannot be read as tensors", hint=hint
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint that this program wrote."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="train first; --ckpt_dir names the directory of a run")
    found = load_tensors(path, "checkpoint", _way_out(path))
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("settings"), dict):
        raise UsageError(f"{path} is no checkpoint of this program, version {VERSION}", hint=_way_out(path))
    return found


def read_to_act(path: Path) -> dict[str, Any]:
    """A checkpoint with a policy in it."""
    return _with(_TO_ACT, path, read_checkpoint(path))


def _with(names: Sequence[str], path: Path, found: dict[str, Any]) -> dict[str, Any]:
    missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(f"{path} is no checkpoint for this: it has no {', '.join(missing)}", hint=_way_out(path))
    return found


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """The body takes over what the checkpoint at `path` holds; what does not fit is told in a line."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, KeyError, ValueError, AttributeError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        said = said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]} …"
        raise UsageError(f"{path}: what it holds does not fit: {said}", hint=_way_out(path)) from error


def _way_out(path: Path) -> str:
    told = "put a whole copy in its place, or train anew with --overwrite"
    is_rest = path.name == LAST and path.with_name(BEST).exists()
    return f"{told}; {BEST} beside it can still be tried with --eval" if is_rest else told


def check_free(directory: Path) -> None:
    """A run that is there is not replaced unless that is asked for."""
    if (directory / LAST).exists():
        hint = "--resume goes on with it, --overwrite trains anew, or choose another --ckpt_dir"
        raise OutputExists(f"{directory / LAST} exists: it is left alone", hint=hint)


def forget(directory: Path) -> None:
    """A run that is trained anew: nobody shall go on with the old one, nor take its losses for those of the new one."""
    for pattern in (LAST, BEST, HISTORY, "train_val_seed_*.png"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def read_last(directory: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint to go on from, unless it was trained with settings that make another result."""
    path = directory / LAST
    found = read_checkpoint(path)
    saved = found["settings"]
    differ = [name for name in now if saved.get(name) != now[name]]
    if differ:
        told = ", ".join(f"{name} was {saved.get(name)!r}, is {now[name]!r}" for name in differ)
        raise UsageError(f"{path} was trained otherwise: {told}", hint="use the same options, or train anew")
    return _with(_TO_GO_ON, path, found)


def random_state(device: torch.device) -> dict[str, Any]:
    """Of all generators that training draws from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """As `random_state` told it."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
