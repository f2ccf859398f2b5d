"""Conversions whose N-th change of a file fails: run by a process that forks, so that a case costs milliseconds.

`Injector` compiles injection.c, starts a server with it preloaded, and asks it to run conversions in children.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

KINDS = {"EIO": "e", "ENOSPC": "n", "killed before": "b", "killed after": "a", "half a write": "h"}
_CASE_S = 60


@dataclass(frozen=True)
class Result:
    """How a conversion ended: `code` as the shell sees it, negative for a signal; `error` is what it said."""

    code: int
    error: str
    calls: int


class Injector:
    """A server that runs `penstock.convert(**call)` in children of its own, one after the other."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: system calls cannot be made to fail")
        self.library = directory / "injection.so"
        source = Path(__file__).with_name("injection.c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self.library), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, timeout=120)
        self._asked = 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": str(self.library)},
        )

    def run(self, call: dict[str, Any], *, under: Path, number: int = 0, kind: str = "EIO") -> Result:
        """Convert; the `number`-th call that changes something under `under` fails (0: none does)."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._asked += 1
        request = {"call": call, "under": str(under), "number": number, "kind": KINDS[kind], "id": self._asked}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        # A test that ran out of time leaves an answer behind, which is not that of the next one.
        while (answer := json.loads(self._server.stdout.readline())).pop("id") != self._asked:
            continue
        return Result(**answer)

    def __enter__(self) -> Injector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.wait(30)
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()


def _serve() -> None:
    # Everything that a conversion loads is loaded once, here; the children begin with it. Nothing below may start a
    # thread, which a child would not have.
    import av
    import cv2
    import numpy
    import pyarrow.parquet

    cv2.setNumThreads(0)
    assert av and numpy and pyarrow.parquet
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_case(json.loads(line))) + "\n")
        answers.flush()


def _case(request: dict[str, Any]) -> dict[str, Any]:
    reported, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reported)
        os._exit(_convert(request, tell))
    os.close(tell)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(_CASE_S)
    with os.fdopen(reported) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    left_s = signal.alarm(0)
    code = os.waitstatus_to_exitcode(status)
    parts = json.loads(text) if text else {"error": "", "calls": 0}
    if left_s == 0:
        parts["error"] = f"did not end within {_CASE_S} s"
        code = 99
    return {"code": code, **parts, "id": request["id"]}


def _convert(request: dict[str, Any], tell: int) -> int:
    import penstock
    from penstock.errors import PenstockError

    library = ctypes.CDLL(None)
    library.injection_count.restype = ctypes.c_long
    under = os.fsencode(request["under"])
    library.injection_arm(under, ctypes.c_long(request["number"] or -1), ord(request["kind"]))
    error, code = "", 0
    try:
        code = penstock.convert(**request["call"]).exit_code
    except PenstockError as problem:
        error, code = str(problem), problem.exit_code
    except BaseException:
        error, code = traceback.format_exc(), 70  # ours is the only kind of error that a user may see
    os.write(tell, json.dumps({"error": error[-4000:], "calls": library.injection_count()}).encode())
    return code


if __name__ == "__main__":
    _serve()
