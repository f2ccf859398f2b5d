"""Several inputs at once: each in a worker process; this one joins them in the order of the inputs."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import penstock
from penstock import errors
from penstock.conversion.commit.join import join, worker_output_of
from penstock.conversion.inputs.input import Input
from penstock.conversion.parallel.worker import Request
from penstock.errors import DataSetError, Interrupted, PenstockError, RecordingError
from penstock.profile.record.spans import joining
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.job import Job

_WAIT_S = 0.2
# Modules come from where this process has them, not from whatever lies in the working directory.
_WORKER = (
    "import sys; sys.path = [p for p in sys.path if p]; from penstock.conversion.parallel.worker import entry; entry()"
)
_LAST_WORDS_S = 20.0  # how long a process may take to put its files in order when it is told to stop
_TOLD_LAST_S = 1.0
# The process that joins: libraries, and the pieces in which it moves frames; besides that, the rows of one flush.
JOINING_BYTES = 144 * 2**20
_WORTH_IT_BYTES = 64 * 2**20  # starting processes takes longer than converting less than this


def processes_for(job: Job, source: Input, inputs: int) -> int:
    """How many processes convert the inputs that are left, the first of which is `source`."""
    wanted = min(job.cores, inputs)
    if wanted < 2:
        return 1
    if not job.cores_given:
        if not source.encodes:
            return 1
        left_bytes = sum(entry.size_bytes for entry in job.inputs.entries if not entry.is_through)
        if left_bytes < _WORTH_IT_BYTES:
            return 1
    joining_bytes = JOINING_BYTES + source.memory.joining_bytes
    fitting = (job.budget.limit_bytes - joining_bytes) // max(source.memory.least_bytes, 1)
    if fitting < wanted:
        # The same words for every input that finds it so, and said once.
        wanted_first = min(job.cores, len(job.inputs.entries) - job.first_new)
        limit, least = (units.format_bytes(n) for n in (job.budget.limit_bytes, source.memory.least_bytes))
        job.note(
            f"{max(fitting, 1)} instead of {wanted_first} inputs at a time: the budget is {limit}, and each takes "
            f"{least} at least, beside {units.format_bytes(joining_bytes)} for joining them"
        )
    job.joining_bytes = joining_bytes
    return int(max(1, min(wanted, fitting)))


@dataclass
class _Process:
    """One worker and what it works at."""

    popen: subprocess.Popen[bytes]
    number: int | None = None
    heard: bytearray = field(default_factory=bytearray)

    @property
    def output(self) -> int:
        if self.popen.stdout is None:
            raise DataSetError("a worker without an output")
        return self.popen.stdout.fileno()


class Parallel:
    """The inputs `todo` of a job, through `job.processes` workers."""

    def __init__(self, job: Job, todo: list[int]) -> None:
        self._job = job
        self._waiting = deque(todo)
        self._order = deque(todo)
        self._results: dict[int, PenstockError | None] = {}
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._predicted: dict[int, int] = {}

    def run(self) -> None:
        """Convert and join all of them; what is joined stays whatever happens."""
        job = self._job
        try:
            while self._order:
                self._employ()
                self._listen()
                if job.stop.asked:
                    self._stop_all()
                self._join_finished()
                if job.stop.asked:
                    self._join_begun()
                    raise Interrupted("interrupted")
        finally:
            self._end_all()

    def _employ(self) -> None:
        """Give every idle process an input, and make processes as long as there is work for them."""
        while self._waiting:
            process = next((each for each in self._processes if each.number is None), None)
            if process is None:
                if len(self._processes) >= self._job.processes:
                    return
                process = self._start()
            self._assign(process, self._waiting.popleft())

    def _start(self) -> _Process:
        package = str(Path(penstock.__file__).parent.parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        popen = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **joining(), "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C at the terminal reaches this process alone, which knows what to do
        )
        process = _Process(popen)
        self._processes.append(process)
        self._selector.register(process.output, selectors.EVENT_READ, process)
        return process

    def _assign(self, process: _Process, number: int) -> None:
        job, entry = self._job, self._job.inputs.entries[number]
        if job.begun is None:
            raise RecordingError("no input could be converted")
        request = Request(
            number=number,
            found=entry.found,
            begun=job.begun,
            root=worker_output_of(job.root, number),
            episodes=entry.episodes,
            state=entry.state,
            budget_bytes=(job.budget.limit_bytes - job.joining_bytes) // job.processes,
            threads=max(1, job.cores // job.processes),
            strict=job.strict,
        )
        process.number = number
        if number != self._order[0]:  # the first one was shown when it was opened
            job.progress.plan([(entry.found.path.name + " ", units.format_size(entry.size_bytes))])
        # One that has died cannot be told; its output says so in a moment.
        with contextlib.suppress(BrokenPipeError):
            if process.popen.stdin is not None:
                process.popen.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
                process.popen.stdin.flush()

    def _listen(self) -> None:
        for key, _ in self._selector.select(_WAIT_S):
            process: _Process = key.data
            said = os.read(process.output, 1 << 16)
            if not said:
                self._bury(process)
                continue
            process.heard += said
            *lines, rest = process.heard.split(b"\n")
            process.heard = bytearray(rest)
            for line in lines:
                self._hear(process, json.loads(line))

    def _hear(self, process: _Process, answer: dict[str, Any]) -> None:
        if "moved" in answer:
            self._job.moved(answer["number"], answer["moved"])
        elif "done" in answer:
            self._predicted[id(process)] = answer["predicted_bytes"]
            self._job.predicted_bytes = self._job.joining_bytes + sum(self._predicted.values())
            self._results[answer["done"]] = None
            process.number = None
        elif "failed" in answer:
            self._results[answer["failed"]] = _error(answer)
            process.number = None

    def _bury(self, process: _Process) -> None:
        """A process has ended: as asked, or in the middle of an input, which fails with it."""
        self._selector.unregister(process.output)
        self._processes.remove(process)
        self._predicted.pop(id(process), None)
        code = process.popen.wait()
        _close(process.popen.stdin)
        _close(process.popen.stdout)
        if process.number is None or self._is_stopping(code):
            return
        path = self._job.inputs.entries[process.number].found.path
        self._results[process.number] = RecordingError(
            f"{path}: the process that converted it ended: {_cause(code)}",
            hint="the system's log may say why; fewer --jobs or a smaller --memory take less",
        )

    def _is_stopping(self, code: int) -> bool:
        """Whether the job was told to stop. Who tells all processes of it may tell this one last, in a moment."""
        end_s = time.monotonic() + _TOLD_LAST_S
        while code == Interrupted.exit_code and not self._job.stop.asked and time.monotonic() < end_s:
            time.sleep(0.01)
        return self._job.stop.asked

    def _join_finished(self) -> None:
        job = self._job
        while self._order and self._order[0] in self._results:
            number = self._order.popleft()
            error = self._results[number]
            written = worker_output_of(job.root, number)
            # After Ctrl-C what is whole is still committed; only a second one stops that.
            noted = join(written, job.writing().writer, job.inputs, number)
            job.stage(f"row {job.writing().writer.frames:,}")
            job.moved.done(number)
            entry = job.inputs.entries[number]
            if error is None and not entry.is_through:  # nothing may be missing without a word
                error = DataSetError(
                    f"{entry.found.path}: what its process wrote to {written} is damaged or gone",
                    hint="check the disk; --resume converts it again",
                )
            if error is not None:
                job.give_up(number, error)
            else:
                job.note_outcome(number, noted)
            shutil.rmtree(written, ignore_errors=True)

    def _join_begun(self) -> None:
        """Of the input whose turn it is, what is committed comes next; those of the others wait for a resume."""
        if self._order:
            number = self._order[0]
            join(worker_output_of(self._job.root, number), self._job.writing().writer, self._job.inputs, number)

    def _stop_all(self) -> None:
        """Tell everybody to put their files in order, and wait for it."""
        for process in self._processes:
            process.popen.terminate()
            _close(process.popen.stdin)  # who waits for work hears that there is none
        for process in list(self._processes):
            try:
                process.popen.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
        while self._processes:
            self._listen()

    def _end_all(self) -> None:
        for process in self._processes:
            if process.number is not None:
                process.popen.send_signal(signal.SIGKILL)
            _close(process.popen.stdin)  # which ends an idle one
            _close(process.popen.stdout)
        for process in self._processes:
            process.popen.wait()
        self._selector.close()


def _close(stream: IO[bytes] | None) -> None:
    # Nobody may be there to read what was still buffered.
    with contextlib.suppress(BrokenPipeError):
        if stream is not None:
            stream.close()


def _error(answer: dict[str, Any]) -> PenstockError:
    """The error of another process, as far as words and kind can be carried over."""
    kind = getattr(errors, answer["kind"], PenstockError)
    error: PenstockError = kind.__new__(kind, answer["message"])
    Exception.__init__(error, answer["message"])
    error.message, error.hint = answer["message"], answer["hint"]
    return error


def _cause(code: int) -> str:
    if code == Interrupted.exit_code:
        return "it was told to stop (SIGTERM)"
    if code >= 0:
        return f"exit code {code}"
    if -code == signal.SIGKILL:
        return "killed (SIGKILL), as the system does when memory runs out"
    return f"signal {signal.Signals(-code).name}"
