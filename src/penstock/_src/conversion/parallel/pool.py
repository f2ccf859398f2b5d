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
from penstock._src.conversion.commit.join import join, worker_output_of
from penstock._src.conversion.inputs.input import Input
from penstock._src.conversion.parallel.worker import ConvertRequest
from penstock._src.profile.record.spans import joining
from penstock._src.system import units
from penstock.errors import DataSetError, Interrupted, PenstockError, RecordingError, carried_error

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job

_WAIT_S = 0.2
# Modules come from where this process has them, not from whatever lies in the working directory.
_WORKER = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from penstock._src.conversion.parallel.worker import entry; entry()"
)
_STOP_TIMEOUT_S = 20.0  # how long a process may take to close its files after SIGTERM
_LATE_SIGNAL_S = 1.0
# The process that joins: libraries, and the pieces in which it moves frames; besides that, the rows of one flush.
JOINING_BYTES = 144 * 2**20
_LEAST_PARALLEL_BYTES = 64 * 2**20  # starting processes takes longer than converting less than this


def processes_for(job: Job, source: Input, inputs: int) -> int:
    """How many processes convert the inputs that are left, the first of which is `source`."""
    wanted = min(job.cores, inputs)
    if wanted < 2:
        return 1
    if not job.cores_given:
        if not source.encodes:
            return 1
        left_bytes = sum(entry.size_bytes for entry in job.inputs.entries if not entry.is_finished)
        if left_bytes < _LEAST_PARALLEL_BYTES:
            return 1
    joining_bytes = JOINING_BYTES + source.memory.joining_bytes + job.upload_bytes
    fitting = (job.budget.limit_bytes - joining_bytes) // max(source.memory.least_bytes, 1)
    if fitting < wanted:
        # The same text for every input, so that it is shown once.
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
    partial_line: bytearray = field(default_factory=bytearray)

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
                self._assign_idle()
                self._read_answers()
                if job.stop.is_requested:
                    self._stop_all()
                self._join_finished()
                if job.stop.also_check is not None:
                    job.stop.also_check()
                if job.stop.is_requested:
                    self._join_partial()
                    raise Interrupted("interrupted")
        finally:
            self._end_all()

    def _assign_idle(self) -> None:
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
        if job.spec is None:
            raise RecordingError("no input could be converted")
        request = ConvertRequest(
            number=number,
            ref=entry.ref,
            spec=job.spec,
            root=worker_output_of(job.root, number),
            episodes=entry.episodes,
            state=entry.state,
            budget_bytes=(job.budget.limit_bytes - job.joining_bytes) // job.processes,
            threads=max(1, job.cores // job.processes),
            strict=job.strict,
        )
        process.number = number
        if number != self._order[0]:  # the first one was shown when it was opened
            job.progress.plan([(entry.ref.path.name + " ", units.format_size(entry.size_bytes))])
        # Writing to a dead process fails; the end of its output shows that next.
        with contextlib.suppress(BrokenPipeError):
            if process.popen.stdin is not None:
                process.popen.stdin.write(json.dumps(request.to_json()).encode() + b"\n")
                process.popen.stdin.flush()

    def _read_answers(self) -> None:
        for key, _ in self._selector.select(_WAIT_S):
            process: _Process = key.data
            data = os.read(process.output, 1 << 16)
            if not data:
                self._remove(process)
                continue
            process.partial_line += data
            *lines, rest = process.partial_line.split(b"\n")
            process.partial_line = bytearray(rest)
            for line in lines:
                self._take_answer(process, json.loads(line))

    def _take_answer(self, process: _Process, answer: dict[str, Any]) -> None:
        if "moved" in answer:
            self._job.moved(answer["number"], answer["moved"])
        elif "done" in answer:
            self._predicted[id(process)] = answer["predicted_bytes"]
            self._job.predicted_bytes = self._job.joining_bytes + sum(self._predicted.values())
            self._results[answer["done"]] = None
            process.number = None
        elif "failed" in answer:
            self._results[answer["failed"]] = carried_error(answer)
            process.number = None

    def _remove(self, process: _Process) -> None:
        """A process has ended: as asked, or in the middle of an input, which fails with it."""
        self._selector.unregister(process.output)
        self._processes.remove(process)
        self._predicted.pop(id(process), None)
        code = process.popen.wait()
        _close(process.popen.stdin)
        _close(process.popen.stdout)
        if process.number is None or self._is_stopping(code):
            return
        path = self._job.inputs.entries[process.number].ref.path
        self._results[process.number] = RecordingError(
            f"{path}: the process that converted it ended: {_cause(code)}",
            hint="check the system log; fewer --jobs or a smaller --memory use less memory",
        )

    def _is_stopping(self, code: int) -> bool:
        """Whether the job was asked to stop. A signal to all processes may reach this one last."""
        end_s = time.monotonic() + _LATE_SIGNAL_S
        while code == Interrupted.exit_code and not self._job.stop.is_requested and time.monotonic() < end_s:
            time.sleep(0.01)
        return self._job.stop.is_requested

    def _join_finished(self) -> None:
        job = self._job
        while self._order and self._order[0] in self._results:
            number = self._order.popleft()
            error = self._results[number]
            written = worker_output_of(job.root, number)
            # After Ctrl-C what is whole is still committed; only a second one stops that.
            through = dict(join(written, job.writing().writer, job.inputs, number))
            job.stage(f"row {job.writing().writer.frames:,}")
            job.moved.done(number)
            entry = job.inputs.entries[number]
            if error is None and not entry.is_finished:  # nothing may be missing without a word
                error = DataSetError(
                    f"{entry.ref.path}: the output of its process in {written} is damaged or missing",
                    hint="check the disk; --resume converts it again",
                )
            if error is not None:
                job.give_up(number, error)
            else:
                job.note_outcome(number, through.get(number, ()))
            shutil.rmtree(written, ignore_errors=True)

    def _join_partial(self) -> None:
        """Of the input whose turn it is, what is committed comes next; those of the others wait for a resume."""
        if self._order:
            number = self._order[0]
            written = worker_output_of(self._job.root, number)
            for _ in join(written, self._job.writing().writer, self._job.inputs, number):
                pass

    def _stop_all(self) -> None:
        """Send SIGTERM to all workers, and wait until their files are closed."""
        for process in self._processes:
            process.popen.terminate()
            _close(process.popen.stdin)  # an idle worker ends
        for process in list(self._processes):
            try:
                process.popen.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
        while self._processes:
            self._read_answers()

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


def _cause(code: int) -> str:
    if code == Interrupted.exit_code:
        return "stopped by SIGTERM"
    if code >= 0:
        return f"exit code {code}"
    if -code == signal.SIGKILL:
        return "killed (SIGKILL), as the system does when memory runs out"
    return f"signal {signal.Signals(-code).name}"
