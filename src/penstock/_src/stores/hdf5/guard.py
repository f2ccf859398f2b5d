"""Work on HDF5 files that no file can hurt: it is done in a child, and what crashes or hangs there ends with the child.

A flipped bit is enough: HDF5 2.0 crashes on some fill values, and hangs in a text heap with a run of zeros. The child
is a fork of this process, which costs milliseconds. Only its success counts: whatever else happens in it is asked again
of a fresh process, since a fork of a process with threads can fail for reasons of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from penstock import errors
from penstock._src.system.memory import rss_bytes
from penstock.errors import PenstockError, StoreCorrupt, StoreError

Line = dict[str, Any]
Work = Callable[[Any], Iterator[Line]]
"""Takes plain data and gives lines of plain data; {"at": number} says which file comes next."""

TIMEOUT_S = 120.0
"""A busy machine or a slow network takes its time; what spins is ended by its CPU time."""
FORK_TIMEOUT_S = 10.0
LARGEST_FORK_BYTES = 8 << 30
"""A process that holds more takes as long to fork as a fresh one takes to start."""

_CPU_SECONDS = 15  # from one line to the next
_MOST_MEMORY_BYTES = 8 << 30  # besides what the process has mapped already
_DAMAGED = "the file is damaged"


class _ForkState(threading.local):
    now = False


_forking = _ForkState()
_one_at_a_time = threading.Lock()  # what warnings are shown is known to a whole process


def is_guard_fork() -> bool:
    """Whether the fork that this thread is making is that of a guard: a child that runs none of the user's code."""
    return _forking.now


def run_guarded(work: str, arguments: Any, paths: Mapping[int, Path], hint: str = _DAMAGED) -> list[Line]:
    """The lines of `work` ("module:function"), done in a child; its first PenstockError is raised here.

    `paths` are the files by the numbers that the work's lines give them: a crash is an error in the name of one.
    """
    lines = _in_fork(work, arguments) if can_fork() else None
    return list(_in_fresh_process(work, arguments, paths, hint)) if lines is None else lines


def can_fork() -> bool:
    return sys.platform == "linux" and rss_bytes() < LARGEST_FORK_BYTES


def _in_fork(work: str, arguments: Any) -> list[Line] | None:
    """The lines, where the child came to its end without any error."""
    import h5py  # noqa: F401 - here, once, instead of in every child

    function = _function(work)
    lines: list[Line] = []
    pid, is_done = 0, False
    # A signal handler that raises does so where the child and the pipe are given back, and never in the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    reading = -1
    try:
        try:
            with _one_at_a_time:
                reading, writing = os.pipe()  # no other guard's child inherits the end that is written to
                try:
                    pid = _fork(function, arguments, writing)
                finally:
                    os.close(writing)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for text in _texts(reading, FORK_TIMEOUT_S):
            line = {"error": None} if text is None else json.loads(text)
            is_done = "end" in line
            if is_done or "error" in line:
                break
            if "at" not in line:
                lines.append(line)
    except OSError:
        is_done = False  # no memory, or no descriptor
    finally:
        if reading >= 0:
            os.close(reading)
        if pid:
            _reap(pid, kill=not is_done)
    return lines if is_done else None


def _reap(pid: int, kill: bool) -> None:
    """Who ignores SIGCHLD, or waits for all children himself, has left none to wait for here."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        if kill and os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        elif not kill:
            os.waitpid(pid, 0)


def _fork(function: Work, arguments: Any, writing: int) -> int:
    """Start the child; for who holds the lock and has blocked all signals."""
    is_collecting = gc.isenabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and others warn of forks of processes with threads
        gc.disable()  # the parent's garbage may be memory of a GPU, which no fork may give back
        _forking.now = True
        try:
            pid = os.fork()
            if pid == 0:
                _child(function, arguments, writing)
        finally:
            _forking.now = False
            if is_collecting:
                gc.enable()
    return pid


def _child(function: Work, arguments: Any, writing: int) -> NoReturn:
    """What a fork does: none of its parent's objects, threads or signals are its own."""
    try:
        faulthandler.disable()
        os.setsid()  # Ctrl-C is for the parent; the child ends by itself
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in {0, 1, 2} - {writing}:
            os.dup2(nowhere, descriptor)
        _serve(function, arguments, os.fdopen(writing, "wb"))
    finally:
        os._exit(0)


def _in_fresh_process(work: str, arguments: Any, paths: Mapping[int, Path], hint: str) -> Iterator[Line]:
    """The lines of a process of its own; each file whole or an error in its name."""
    path = next(iter(paths.values()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
    with tempfile.TemporaryFile() as job, tempfile.TemporaryFile() as complaints:  # pipes would have to be emptied
        job.write(json.dumps([work, arguments]).encode())
        job.seek(0)
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=job, stdout=subprocess.PIPE, stderr=complaints,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise StoreError(f"{path} cannot be checked: no child process could be started: {error}") from error
        assert child.stdout is not None
        try:
            for text in _texts(child.stdout.fileno(), TIMEOUT_S):
                if text is None:
                    raise _timed_out(path, hint)
                line = json.loads(text)
                if "end" in line:
                    return
                if "error" in line:
                    raise _error_from(line["error"])
                if "at" in line:
                    path = paths[line["at"]]
                else:
                    yield line
            raise _why_ended(child.wait(TIMEOUT_S), complaints, path, hint)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _texts(pipe: int, timeout_s: float) -> Iterator[bytes | None]:
    """Lines of a child; None once, where it says nothing for too long."""
    rest = b""
    waiting = select.poll()  # `select` knows no descriptor above 1,023
    waiting.register(pipe, select.POLLIN)
    while True:
        if not waiting.poll(timeout_s * 1000):
            yield None
            return
        block = os.read(pipe, 1 << 16)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from lines


def _why_ended(code: int, complaints: IO[bytes], path: Path, hint: str) -> PenstockError:
    if code == -signal.SIGXCPU:
        return _timed_out(path, hint)
    if code < 0:
        return StoreCorrupt(f"{path} cannot be read: it crashes HDF5 ({signal.Signals(-code).name})", hint=hint)
    complaints.seek(0)
    text = complaints.read(1 << 20).decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
    return StoreCorrupt(f"{path} cannot be read: {text[-1]}", hint=hint)


def _timed_out(path: Path, hint: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path} cannot be read: HDF5 does not return from it (endless loop or deadlock)", hint=hint)


def _error_from(plain: Line) -> PenstockError:
    """An error of a child, as it was raised there."""
    kind = getattr(errors, str(plain["class"]), StoreCorrupt)
    error: PenstockError = kind.__new__(kind, plain["carried"].get("message", ""))
    error.__dict__.update(plain["carried"])
    return error


def _function(work: str) -> Work:
    module, _, name = work.partition(":")
    function: Work = getattr(importlib.import_module(module), name)
    return function


def _serve(function: Work, arguments: Any, out: IO[bytes]) -> None:
    """In the child: do the work, line by line; an error of ours is the last line."""
    _limit_memory()
    _allow_time()
    try:
        for line in function(arguments):
            _allow_time()
            out.write(json.dumps(line).encode() + b"\n")
            if "at" in line:
                out.flush()
    except PenstockError as error:
        carried = {key: value for key, value in vars(error).items() if isinstance(value, (str, int, float, type(None)))}
        out.write(json.dumps({"error": {"class": type(error).__name__, "carried": carried}}).encode() + b"\n")
    out.write(b'{"end": true}\n')
    out.flush()


def _limit_memory() -> None:
    """Whatever becomes of the parent, a child takes neither the machine nor its memory."""
    import resource

    mapped_bytes = 0
    with contextlib.suppress(OSError):
        mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = mapped_bytes + _MOST_MEMORY_BYTES
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # an encoder may have raised the parent's


def _allow_time() -> None:
    """A child that hangs ends by itself, however many files it has read before."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    wanted, given = json.load(sys.stdin)
    _serve(_function(wanted), given, sys.stdout.buffer)
