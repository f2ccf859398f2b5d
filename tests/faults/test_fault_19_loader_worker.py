"""Fault 19: a worker of a DataLoader is killed. The loop is told, nothing hangs, and no shared memory stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lerobot import making

pytest.importorskip("torch")

# Its own process: a killed worker is told to the main thread by a signal.
SCRIPT = """
import os, signal, sys, time
import psutil, torch
from torch.utils.data import DataLoader
import penstock
from penstock.torch import Dataset, Sampler, collate

def rows(loader):
    return [row for batch in loader for row in batch["index"].tolist()]

if __name__ == "__main__":
    path, start = sys.argv[1:]
    def shared():
        return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()

    before = shared()
    dataset = Dataset(path, image_size=(16, 24), view="ram", memory="256MiB", threads=1)
    words = dict(num_workers=2, collate_fn=collate, multiprocessing_context=start)
    going = iter(DataLoader(dataset, batch_sampler=Sampler(dataset, 1, shuffle=False), **words))
    next(going)
    try:
        os.kill(going._workers[0].pid, signal.SIGKILL)
        for _ in range(1200 if start == "fork" else 0):  # torch hears of the death of its own children at once
            time.sleep(0.05)
        print("told: nothing yet")
    except RuntimeError as error:
        print("told:", error)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # told once is enough: it could speak up anywhere below
    try:
        for _ in going:
            pass
        print("the loop went on")
    except (RuntimeError, penstock.PenstockError, OSError, EOFError):  # the others: a batch of the dead was on its way
        print("the loop ended")
    del going  # tells the other one to end, or ends it
    psutil.wait_procs(psutil.Process().children() if start == "fork" else [], timeout=60)
    print("children:", [child.cmdline() for child in psutil.Process().children() if "resource_tracker" not in
                        " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE])
    left, until = shared() - before, time.monotonic() + 60
    while left and time.monotonic() < until:  # other processes of this machine come and go there
        time.sleep(0.05)
        left &= shared()
    print("left in /dev/shm:", sorted(left))

    # What the dead worker put into the view is whole, and the data set serves the next workers.
    plain = Dataset(path, image_size=(16, 24), view="off", threads=1)
    ours, truth = (collate(each.__getitems__(range(28))) for each in (dataset, plain))
    print("pixels:", all(torch.equal(ours[name], truth[name]) for name in ours if name != "task"))
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 4, shuffle=False), **words)
    print("again:", rows(loader) == list(range(28)))
"""


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_19_a_killed_loader_worker_is_reported_and_leaves_nothing(tmp_path: Path, start: str) -> None:
    making.make(tmp_path / "set", (12, 7, 9))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), str(tmp_path / "set"), start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    reported, loop, children, left, pixels, again = done.stdout.splitlines()
    assert "killed by signal" in reported or start == "forkserver"
    assert loop == "the loop ended"
    assert children == "children: []" or (start == "forkserver" and "forkserver" in children)
    assert left == "left in /dev/shm: []"
    assert pixels == "pixels: True"
    assert again == "again: True"
