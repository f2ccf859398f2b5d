"""Small runs of train_deblur.py: in this process, in one of their own, or in several under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

_CONFIG = """\
SEED: 7
DATA:
  ROOT: {root}
  CROP_SIZE: 32
  K: 8
DATALOADER:
  TOTAL_WORKERS: 0
TRAIN:
  EPOCHS: 2
  BATCH_SIZE: 1
  GRADIENT_ACCUMULATION_STEPS: 2
  MAX_GRAD_NORM: 1.0
  OPTIM:
    LR: 0.001
"""

# A run that writes down which clips it trains on; with DIE_AFTER=N the first process is killed behind checkpoint N.
_WATCHED = """\
import json, os, signal, sys
from pathlib import Path

sys.path.insert(0, {examples!r})
import train_deblur
from deblur import train

rank, saved = int(os.environ.get("RANK", 0)), 0
backward, write = train.Trainer.backward, train.write_checkpoint

def watched(self, batch):
    line = [self.epoch, self.step, batch["index"].tolist(), batch["weight"].tolist()]
    with open(Path(os.environ["SEEN"]) / f"rank{{rank}}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
    return backward(self, batch)

def write_and_die(*words):
    global saved
    write(*words)
    saved += 1
    if saved == int(os.environ.get("DIE_AFTER", 0)):
        os.kill(os.getpid(), signal.SIGKILL)

train.Trainer.backward, train.write_checkpoint = watched, write_and_die
train_deblur.leave(train_deblur.main(sys.argv[1:]))
"""


def write_config(directory: Path, root: Path) -> Path:
    """The configuration of a small run."""
    path = directory / "deblur.yaml"
    path.write_text(_CONFIG.format(root=root))
    return path


def run(config: Path, out: Path, *words: str) -> int:
    """The exit code of a run here."""
    import train_deblur

    return int(train_deblur.main([str(config), "--out", str(out), "--device", "cpu", "--log-every", "1", *words]))


def start_apart(config: Path, out: Path, *words: str, processes: int = 1, die_after: int = 0) -> int:
    """The exit code of a run in processes of its own; `seen` says which clips they trained on."""
    out.mkdir(exist_ok=True)
    script = out.with_suffix(".py")
    script.write_text(_WATCHED.format(examples=str(EXAMPLES)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(torchrun if processes > 1 else []), str(script), str(config), "--out", str(out),
               "--device", "cpu", *words]  # fmt: skip
    places = os.pathsep.join(path for path in sys.path if path)
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": places, "SEEN": str(out), "DIE_AFTER": str(die_after)}
    return subprocess.run(command, env={**os.environ, **own}, timeout=240).returncode


def seen(out: Path, rank: int = 0) -> list[tuple[int, int, list[int], list[float]]]:
    """(epoch, step, clips, their weights) of every batch that a process trained on."""
    return [tuple(json.loads(line)) for line in (out / f"rank{rank}.jsonl").read_text().splitlines()]  # type: ignore[misc]


def history(out: Path) -> list[Mapping[str, Any]]:
    """The figures of every epoch."""
    found: list[Mapping[str, Any]] = json.loads((out / "history.json").read_text())
    return found
