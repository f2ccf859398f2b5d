"""Fault 22: two converters on one output. The second one says who holds it, and exits 1."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from penstock._src.cli import main
from tests.conversion.bags import robot, write


def test_22_the_second_converter_names_the_first_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = write(tmp_path / "run.bag", robot(0.4, hz=50))
    out = tmp_path / "out"
    lock = tmp_path / "out.penstock-partial.lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    os.write(handle, f"4711 on {os.uname().nodename}".encode())
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert main(["convert", str(bag), str(out)]) == 1
        stderr = capsys.readouterr().err
        assert "4711" in stderr and os.uname().nodename in stderr and "another conversion" in stderr
        assert not out.exists()
    finally:
        os.close(handle)
    # The lock falls with its process: what remains is a file that nobody holds.
    assert main(["convert", str(bag), str(out)]) == 0
    assert not lock.exists()
