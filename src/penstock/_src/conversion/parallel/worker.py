"""One of the processes that convert: takes inputs from its parent, line by line, and writes each into a directory.

That worker output is a small data set that is never closed, with a journal of its own: a worker that was killed leaves
what it had committed, and the next one goes on there. Requests come as JSON lines on stdin, answers go as JSON lines to
stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from penstock._src.conversion.commit.writing import InputProgress, JobInputs, SerialWriter
from penstock._src.conversion.inputs.input import DatasetSpec, InputRef, OpenOptions, State, open_input
from penstock._src.conversion.stop import StopSignals
from penstock._src.system.budget import Budget
from penstock._src.system.memory import give_back_large_blocks
from penstock.errors import Interrupted, PenstockError

_PR_SET_PDEATHSIG = 1
_PROGRESS_EVERY_S = 0.1


@dataclass(frozen=True)
class ConvertRequest:
    """One input to convert: where to, from which state on, and with which resources."""

    number: int
    ref: InputRef
    spec: DatasetSpec
    root: Path  # of the worker output
    episodes: int  # of this input in the data set already,
    state: State | None  # and the state after the last of them
    budget_bytes: int
    threads: int
    strict: bool

    def to_json(self) -> dict[str, Any]:
        ref = [self.ref.kind, str(self.ref.path)]
        return {**vars(self), "ref": ref, "spec": self.spec.to_json(), "root": str(self.root)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> ConvertRequest:
        kind, path = tree["ref"]
        spec = DatasetSpec.from_json(tree["spec"])
        return ConvertRequest(**{**tree, "ref": InputRef(kind, Path(path)), "spec": spec, "root": Path(tree["root"])})


class _Answers:
    """Lines to the parent; progress at intervals, not at every block."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._sent_s = 0.0

    def send(self, **answer: Any) -> None:
        self._stream.write(json.dumps(answer) + "\n")
        self._stream.flush()

    def moved(self, number: int, done_bytes: int) -> None:
        now = time.monotonic()
        if now - self._sent_s >= _PROGRESS_EVERY_S:
            self._sent_s = now
            self.send(moved=done_bytes, number=number)


def main(parent: int) -> int:
    """Work until stdin ends."""
    _die_with_parent(parent)
    give_back_large_blocks()
    # Whatever a library prints must not get between the answers.
    answers = _Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    with StopSignals() as stop:
        for line in sys.stdin:
            request = ConvertRequest.from_json(json.loads(line))
            try:
                predicted_bytes = _convert(request, stop, answers)
            except Interrupted:
                return Interrupted.exit_code
            except PenstockError as error:
                answers.send(failed=request.number, kind=type(error).__name__, message=error.message, hint=error.hint)
            except MemoryError as error:
                answers.send(failed=request.number, kind="PenstockError", message=f"out of memory: {error}", hint=None)
            else:
                answers.send(done=request.number, predicted_bytes=predicted_bytes)
    return 0


def _convert(request: ConvertRequest, stop: StopSignals, answers: _Answers) -> int:
    own, stopping = request.spec.settings, stop.check
    options = OpenOptions(own, request.budget_bytes, request.threads, request.strict, check_stop=stopping, inputs=2)
    inputs = JobInputs([InputProgress(request.ref, 0)], first=request.number)
    with open_input(request.ref, options, request.spec) as source:
        from penstock._src.conversion.commit.join import open_worker_output

        writer = open_worker_output(request.root, source, inputs, request.episodes, request.state)
        writing = SerialWriter(
            writer, inputs, Budget(request.budget_bytes), stop, on_moved=answers.moved, on_rows=lambda text: None
        )
        try:
            if not inputs.entry(request.number).is_finished:
                writing.take(source, request.number)
        finally:
            writer.leave()
        return source.memory.peak_bytes


def _die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return  # elsewhere than on Linux the end of stdin is what remains
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def entry() -> None:
    """The process: `main` with the parent's number, then out at once, like the command itself."""
    try:
        code = main(int(sys.argv[1]))
    except KeyboardInterrupt:  # signalled twice: by a batch system and by the parent
        code = Interrupted.exit_code
    sys.stdout.flush()
    os._exit(code)
