"""How a run ends: SIGTERM as Ctrl-C, a profile that cannot be written, and what is found out before training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock.errors import OutputFailed

torch = pytest.importorskip("torch")

from act.ending import Terminated, hearing_sigterm  # noqa: E402
from act.progress import Progress  # noqa: E402
from act.train import Trainer  # noqa: E402

from tests.examples.running import run, start  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_keeps_profile_and_checkpoint(number: int, code: int, reach: Path, tmp_path: Path) -> None:
    out = tmp_path / "RUN.json"
    words = ["--num_epochs", "100000", "--table_every", "100000", "--profile-out", str(out)]
    with start(reach, tmp_path / "ck", *words) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            for line in iter(process.stdout.readline, ""):
                if "val l1" in line:
                    break
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert stderr.count("\n") == 1 and "--resume goes on from the last checkpoint" in stderr
    assert ("terminated" if code == 143 else "interrupted") in stderr
    assert json.loads(out.read_text())["steps"]["count"] >= 5 and (tmp_path / "ck" / "policy_last.ckpt").exists()


def test_a_second_sigterm_at_once_does_not_disturb_what_the_first_began() -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are heard in the main thread")
    with hearing_sigterm():
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        except Terminated:
            pytest.fail("the second signal was heard")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_python_would_forget_is_noticed(number: int, code: int, reach: Path, tmp_path: Path) -> None:
    """One that comes in the callback of a weak reference."""
    program = f"""
import os, sys, weakref
import imitate_episodes
from act.train import Trainer
step = Trainer._train_step

class Thing:
    pass

def cleared(_):
    os.kill(os.getpid(), {int(number)})

def with_a_signal(trainer, *words):
    if trainer.step == 2:
        thing = Thing()
        gone = weakref.ref(thing, cleared)
        del thing
    return step(trainer, *words)

Trainer._train_step = with_a_signal
sys.exit(imitate_episodes.entry())
"""
    process = start(reach, tmp_path / "ck", "--num_epochs", "100000", "--table_every", "100000", code=program)
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, stderr
    assert stderr.count("\n") == 1 and ("terminated" if code == 143 else "interrupted") in stderr


def test_without_a_checkpoint_resuming_is_not_promised(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_train_step", interrupt)
    before = signal.getsignal(signal.SIGTERM)
    assert run(reach, tmp_path / "ck", "--profile-out", str(tmp_path / "RUN.json")) == 130
    output = capsys.readouterr()
    assert "there was no checkpoint yet: --save_every N" in output.err and "no profile is written" in output.out
    assert not (tmp_path / "RUN.json").exists() and signal.getsignal(signal.SIGTERM) is before


def test_a_profile_that_fails_does_not_hide_why_training_did(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OutputFailed(path, "the profile cannot be written", OSError(28, "No space left on device"))

    def explode(self: Trainer) -> None:
        raise RuntimeError("the GPU is on fire")

    monkeypatch.setattr(profile, "save", full)
    out = str(tmp_path / "RUN.json")
    assert run(reach, tmp_path / "one", "--profile-out", out) == 1  # alone it is an error
    assert "No space left" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "validate", explode)
    with pytest.raises(RuntimeError, match="on fire"):
        run(reach, tmp_path / "two", "--profile-out", out)
    assert "the profile was not saved either" in capsys.readouterr().err


def test_where_a_profile_cannot_go_is_found_out_first(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ck = tmp_path / "ck"
    assert run(reach, ck, "--profile-out", str(tmp_path / "no" / "RUN.json")) == 2
    assert f"there is no directory {tmp_path / 'no'}" in capsys.readouterr().err
    assert run(reach, ck, "--profile-out", str(tmp_path)) == 2
    assert "is a directory" in capsys.readouterr().err
    monkeypatch.setattr(profile, "is_enabled", lambda: False)
    assert run(reach, ck, "--profile-out", str(tmp_path / "RUN.json")) == 2
    assert "PENSTOCK_PROFILE=0 records nothing" in capsys.readouterr().err
    assert not ck.exists()


def test_a_profile_may_go_where_the_run_does(reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reach, tmp_path / "ck", "--profile-out", str(tmp_path / "ck" / "RUN.json"), "--log_every", "50") == 0
    assert (tmp_path / "ck" / "RUN.json").exists()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  step")]
    assert len(lines) == 1 and lines[0].startswith("  step 1 of 5, ") and " a step, loss " in lines[0]


def test_silence_ends_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("act.progress.time.perf_counter", lambda: now[0])
    progress = Progress(total=72, every=50)
    progress.begin(0)
    reported = []
    for step in range(1, 13):
        now[0] += 6.1
        if progress.is_due(step):
            reported.append(progress.line(step, (step * 2.0, step * 1.0, step * 0.5, float(step))))
    assert [line.split()[1] for line in reported] == ["1", "6", "11"]
    assert reported[1] == "  step 6 of 72, 6.1 s a step, loss 2.0000 l1 1.0000 kl 0.5000"
    assert progress.is_due(50) and not Progress(72, every=0).is_due(1)


def test_help_needs_no_torch() -> None:
    script = Path(__file__).resolve().parents[2] / "examples" / "imitate_episodes.py"
    code = f"import sys; sys.path[:0] = [{str(script.parent)!r}, *{sys.path!r}]; import imitate_episodes; \
print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
