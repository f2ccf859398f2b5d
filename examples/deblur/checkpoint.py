"""Checkpoints: written whole or not at all, read as tensors and plain values only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from penstock.errors import OutputExists, OutputFailed, UsageError

VERSION = 1
LAST, BEST, HISTORY = "last.ckpt", "best.ckpt", "history.json"


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """A run that is killed here leaves the checkpoint before."""
    with _written(path) as fresh:
        torch.save({"version": VERSION, **content}, fresh)


def write_text(path: Path, text: str) -> None:
    """The same for a small file that people read."""
    with _written(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """The same for an image."""
    with _written(path) as fresh:
        fresh.write_bytes(content)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    try:
        fresh = path.with_name(f"{path.name}.part")
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError where the disk is full
        raise OutputFailed(path, "it cannot be written", error) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint that this program wrote; nothing in it is executed."""
    hint = "train anew with --overwrite, or put a whole copy in its place"
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="leave --resume out; --out names the directory of a run")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises anything of a cut file: EOFError, RuntimeError, KeyError, …
        size = path.stat().st_size
        raise UsageError(f"{path} ({size:,} bytes) is cut or is no checkpoint: {error}", hint=hint) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise UsageError(f"{path} is no checkpoint of this program, version {VERSION}", hint=hint)
    return found


def check_same(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a configuration that makes another result, by the names of what differs."""
    differ = [name for name in sorted({*saved, *now}) if saved.get(name) != now.get(name)]
    if differ:
        listed = ", ".join(f"{name} was {saved.get(name)!r}, is {now.get(name)!r}" for name in differ)
        raise UsageError(f"{path} was trained otherwise: {listed}", hint="use the same values, or --overwrite")


def check_free(directory: Path) -> None:
    """A run that is there is not replaced unless that is asked for."""
    if (directory / LAST).exists():
        hint = "--resume goes on with it, --overwrite trains anew, or choose another --out"
        raise OutputExists(f"{directory / LAST} exists: it is left alone", hint=hint)


def forget(directory: Path) -> None:
    """Before a run is trained anew: nobody goes on with the old one, nor takes its figures for those of the new one."""
    for name in (LAST, BEST, HISTORY):
        (directory / name).unlink(missing_ok=True)
    for path in (directory / "images").glob("epoch_*.png"):
        path.unlink()


def plain(content: Any) -> Any:
    """What JSON makes of it: tuples become lists, paths texts; so that saved and present values compare."""
    return json.loads(json.dumps(content, default=str))
