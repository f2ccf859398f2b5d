"""Small runs of imitate_episodes.py, in this process or in one of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TINY = [
    "--task_name", "tiny", "--hidden_dim", "16", "--dim_feedforward", "16", "--heads", "2", "--enc_layers", "1",
    "--dec_layers", "1", "--backbone_width", "8", "--chunk_size", "4", "--batch_size", "5", "--lr", "1e-3", "--threads",
    "1", "--memory", "512MiB", "--device", "cpu", "--log_every", "2", "--lang", "en",
]  # fmt: skip


def run(reach: Path, directory: Path, *words: str) -> int:
    """The exit code of a run here."""
    import imitate_episodes

    return imitate_episodes.main([*TINY, "--dataset", str(reach), "--ckpt_dir", str(directory), *words])


def start(reach: Path, directory: Path, *words: str, code: str = "") -> subprocess.Popen[str]:
    """A run of its own, to be sent signals, of the script or of `code`; its output can be read line by line."""
    script = Path(__file__).resolve().parents[2] / "examples" / "imitate_episodes.py"
    program = ["-c", code] if code else [str(script)]
    command = [sys.executable, *program, *TINY, "--dataset", str(reach), "--ckpt_dir", str(directory), *words]
    places = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    pipe = subprocess.PIPE
    # A shell's background job ignores Ctrl-C, and so would what it starts: a program that is begun hears it again.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
