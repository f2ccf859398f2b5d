"""Checkpoints: written whole or not at all, read as tensors and plain values only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from penstock.errors import OutputExists, UsageError

VERSION = 1
LAST, BEST = "policy_last.ckpt", "policy_best.ckpt"


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Beside its place first, then renamed: a run that is killed here leaves the checkpoint before."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        torch.save({"version": VERSION, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write_json(path: Path, content: Any) -> None:
    """The same for small files that people read."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint that this program wrote; nothing in it is executed."""
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="train first; --ckpt_dir names the directory of a run")
    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise UsageError(f"{path} is no checkpoint of this program, version {VERSION}")
    return found


def check_free(directory: Path) -> None:
    """A run that is there is not replaced unless that is asked for."""
    if (directory / LAST).exists():
        hint = "--resume goes on with it, --overwrite trains anew, or choose another --ckpt_dir"
        raise OutputExists(f"{directory / LAST} exists: it is left alone", hint=hint)


def read_last(directory: Path, now: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint to go on from, unless it was trained with settings that make another result."""
    path = directory / LAST
    found = read_checkpoint(path)
    saved = found["settings"]
    differ = [name for name in now if saved.get(name) != now[name]]
    if differ:
        told = ", ".join(f"{name} was {saved.get(name)!r}, is {now[name]!r}" for name in differ)
        raise UsageError(f"{path} was trained otherwise: {told}", hint="resume with the same words, or train anew")
    return found


def random_state(device: torch.device) -> dict[str, Any]:
    """Of all generators that training draws from."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """As `random_state` told it."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
