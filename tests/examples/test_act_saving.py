"""What is written on the way: checkpoints that are no step's time, a disk that is full, a stdout that is odd."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock.errors import OutputFailed

torch = pytest.importorskip("torch")

from act import checkpoint, train  # noqa: E402
from act.checkpoint import forget, write_bytes, write_checkpoint, write_json  # noqa: E402
from act.curve import draw_curve  # noqa: E402
from act.ending import Terminated  # noqa: E402
from act.progress import Progress  # noqa: E402

from tests.examples.running import TINY, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "imitate_episodes.py"
SLOW_S = 0.2


def test_checkpoints_belong_to_no_step(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, train_all = train.write_checkpoint, train.Trainer.run
    saving_ns = whole_ns = 0

    def slow(path: Path, content: Any) -> None:
        nonlocal saving_ns
        began_ns = time.perf_counter_ns()
        time.sleep(SLOW_S)
        write(path, content)
        saving_ns += time.perf_counter_ns() - began_ns

    def timed(self: train.Trainer) -> None:
        nonlocal whole_ns
        began_ns = time.perf_counter_ns()
        train_all(self)
        whole_ns = time.perf_counter_ns() - began_ns

    monkeypatch.setattr(train, "write_checkpoint", slow)
    monkeypatch.setattr(train.Trainer, "run", timed)
    profile.reset()
    out = tmp_path / "RUN.json"
    words = ["--save_every", "1", "--batch_size", "6", "--log_every", "1", "--num_epochs", "2", "--lang", "en"]
    assert run(reach, tmp_path / "ck", *words, "--profile-out", str(out)) == 0
    printed, stdout = capsys.readouterr().out, json.loads(out.read_text())
    assert stdout["steps"]["count"] == 8
    spans = {span["name"]: span for span in stdout["spans"]}
    assert spans["30_checkpoint"]["count"] == 6 + 2  # three of an epoch's four steps, and at its end
    # However slow the machine is: what the steps took, and the epochs, is at most what is left without checkpoints.
    rest_ns = whole_ns - saving_ns
    rows = json.loads((tmp_path / "ck" / "history.json").read_text())
    assert saving_ns >= 8 * SLOW_S * 1e9 and stdout["steps"]["total_ns"] <= rest_ns
    assert sum(row["ms_per_step"] * row["steps"] for row in rows) * 1e6 <= rest_ns
    assert sum(each.duration_ns for each in profile.snapshot().epochs) <= rest_ns
    epochs = [line for line in printed.splitlines() if line.startswith("Epoch ")]
    for line, each in zip(epochs, profile.snapshot().epochs, strict=True):
        assert line.split(" | ")[0].endswith(f"took: {each.duration_ns / 1e9:.2f}s")
    assert printed.count(" for checkpoints") == 2


def test_a_line_of_progress_leaves_checkpoints_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("act.progress.time.perf_counter", lambda: now[0])
    progress = Progress(total=9, every=2)
    progress.begin(0)
    now[0] += 7.0
    progress.leave_out(5.0)
    assert "step 2 of 9, 1.0 s a step" in progress.line(2, (1.0, 1.0, 1.0, 1.0))


@contextmanager
def _room(n_bytes: int) -> Iterator[None]:
    """The system lets no file grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_checkpoint(path, {"model": torch.zeros(100_000)}),
        lambda path: write_json(path, list(range(100_000))),
        lambda path: write_bytes(path, bytes(100_000)),
        lambda path: draw_curve(path, [], "nothing"),
    ],
)
def test_what_cannot_be_written_is_reported_and_leaves_nothing(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"before")
    with _room(1000), pytest.raises(OutputFailed, match="kept: cannot be written: File too large") as caught:
        write(path)
    assert "\n" not in caught.value.message and caught.value.hint is not None
    assert [each.name for each in tmp_path.iterdir()] == ["kept"] and path.read_bytes() == b"before"


def test_a_run_that_is_trained_anew_forgets_the_losses_of_before(tmp_path: Path) -> None:
    for name in ("policy_last.ckpt", "policy_best.ckpt", "history.json", "train_val_seed_3.png", "notes.txt"):
        (tmp_path / name).touch()
    forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def _command(reach: Path, ck: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), *TINY, "--dataset", str(reach), "--ckpt_dir", str(ck)]


def _environment(**words: str) -> dict[str, str]:
    places = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places, **words}


def test_a_terminal_that_lacks_letters_gets_question_marks(reach: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*_command(reach, tmp_path / "ck"), "--lang", "zh"],
        capture_output=True,
        env=_environment(PYTHONIOENCODING="ascii"),
    )
    assert done.returncode == 0 and done.stderr == b""
    assert b" 32?48" in done.stdout and b"Epoch 0 ???" in done.stdout


def test_when_nobody_reads_any_more_it_ends_quietly(reach: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*_command(reach, tmp_path / "ck"), "--num_epochs", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=_environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        try:
            process.stdout.readline()
            process.stdout.close()
            stderr = process.stderr.read()
            assert process.wait(60) == 1 and stderr == b""
        finally:
            process.kill()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_signal_while_a_checkpoint_is_written_is_no_disk_failure(
    stop: type[BaseException], code: int, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    writes = []

    class Stopped(io.FileIO):
        def write(self, data: Any) -> int:
            writes.append(len(data))
            if len(writes) == 9:
                raise stop
            return super().write(data)

    def opened(path: Path, mode: str) -> Any:
        return (Stopped if mode == "wb" and (tmp_path / "ck" / "history.json").exists() else open)(path, mode)

    monkeypatch.setattr(checkpoint, "open", opened, raising=False)  # torch's writer raises its own on top
    assert run(reach, tmp_path / "ck", "--num_epochs", "2") == code
    stderr = capsys.readouterr().err
    assert "--resume goes on from the last checkpoint" in stderr and "cannot be written" not in stderr
    assert not list((tmp_path / "ck").glob("*.part"))
    monkeypatch.undo()
    assert checkpoint.read_checkpoint(tmp_path / "ck" / "policy_last.ckpt")["epoch"] == 1
