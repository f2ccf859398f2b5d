"""How much memory this process and its children hold, now and at the peak.

Own memory is RSS. A tree of processes is summed as PSS, in which a page shared by n processes counts 1/n for each: a
sum of RSS would count shared pages once per process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_SAMPLE_INTERVAL_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_M_MMAP_THRESHOLD = -3  # malloc.h
_ARROW_ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL"  # the variable of the environment by which Arrow chooses

# Resetting the kernel's high-water mark affects every open meter of this process, so all of them are known here.
_open_meters: list[PeakMeter] = []
_meters_lock = threading.Lock()


def give_back_freed() -> None:
    """Hand freed heap to the system: glibc keeps what large temporaries left, and the peak would contain it."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resume_collection() -> None:
    """Collect garbage again after `gc.disable()`, but not among what was loaded meanwhile: that stays anyway."""
    if not gc.isenabled():
        gc.freeze()
        gc.unfreeze()  # into the oldest generation, which is looked through last
        gc.enable()


def give_back_large_blocks() -> None:
    """Blocks from 1 MiB on go back to the system when they are freed; for a process that is penstock's own.

    glibc raises that limit to the largest block so far, up to 32 MiB, and the holes in its heap stay.
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, 1 << 20)


@contextlib.contextmanager
def arrow_from_system() -> Iterator[None]:
    """Arrow, if it is loaded within, takes memory from the system, unless the user has chosen an allocator for it.

    Its own allocator keeps what was freed: a row group of 2 MB leaves 20 MB behind.
    """
    if "pyarrow" in sys.modules or _ARROW_ALLOCATOR in os.environ:
        yield
        return
    os.environ[_ARROW_ALLOCATOR] = "system"
    try:
        yield
    finally:
        os.environ.pop(_ARROW_ALLOCATOR, None)


def arrow_keeps_freed() -> bool:
    """Whether Arrow has, or within `arrow_from_system` will have, an allocator that keeps what was freed."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None or not hasattr(arrow, "default_memory_pool"):  # not loaded, or another thread is about it
        return os.environ.get(_ARROW_ALLOCATOR, "system") != "system"
    return bool(arrow.default_memory_pool().backend_name != "system")


def _proc_bytes(pid: int | str, file: str, field: bytes) -> int | None:
    """A field of a file of /proc; None where the process has ended, is another user's, or the kernel has none such."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / file).read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process now; 0 when it has ended."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def pss_bytes(pid: int) -> int:
    """Proportional memory of one process; its RSS where the kernel does not report it, 0 when it has ended."""
    found = _proc_bytes(pid, "smaps_rollup", b"Pss:")
    return rss_bytes(pid) if found is None else found


def anonymous_bytes(pid: int | str = "self") -> int:
    """What a process holds without files and shared memory; 0 when it has ended."""
    return _proc_bytes(pid, "status", b"RssAnon:") or 0


def _high_water_bytes() -> int:
    return _proc_bytes("self", "status", b"VmHWM:") or rss_bytes()


def descendants(pid: int) -> list[int]:
    """The process ids of all children of `pid`, and theirs, that live now."""
    pids: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        try:
            tasks = os.listdir(_PROC / str(parent) / "task")
        except OSError:  # the process ended while we looked
            continue
        for task in tasks:
            try:
                words = (_PROC / str(parent) / "task" / task / "children").read_bytes().split()
            except OSError:  # the thread ended while we looked, or the kernel has no `children` file
                if parent == pid and not (_PROC / str(pid) / "task" / str(pid) / "children").exists():
                    return _descendants_by_parent(pid)
                continue
            children = [int(word) for word in words]
            pids += children
            pending += children
    return pids


def _descendants_by_parent(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def tree_pss_bytes(pid: int | None = None) -> int:
    """Proportional memory of a process (this one by default) and of all that descend from it, shared pages once."""
    root = os.getpid() if pid is None else pid
    return sum(pss_bytes(each) for each in [root, *descendants(root)])


def _reset_high_water() -> bool:
    """Start the kernel's peak of this process anew; False where that is not allowed."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
        return True
    except OSError:
        return False


class PeakMeter:
    """The peak memory between entering and leaving.

    >>> with PeakMeter() as meter:
    ...     work()
    >>> meter.peak_bytes, meter.tree_peak_bytes

    `peak_bytes` is the kernel's own high-water mark, so no spike of this process escapes it; where the kernel does not
    allow that mark to be reset, and for child processes, memory is sampled every 50 ms. Meters may nest and overlap.
    """

    def __init__(self) -> None:
        self.start_bytes = 0
        self.exact = False  # whether peak_bytes comes from the kernel rather than from samples
        self._seen_bytes = 0
        self._tree_seen_bytes = 0
        self._stop = threading.Event()
        self._sampler: threading.Thread | None = None
        self._open = False

    def __enter__(self) -> PeakMeter:
        with _meters_lock:
            high_water = _high_water_bytes()
            for meter in _open_meters:
                meter._note_peak(high_water)
            self.exact = _reset_high_water()
            self.start_bytes = self._seen_bytes = rss_bytes()
            _open_meters.append(self)
            self._open = True
        self._stop.clear()
        self._sampler = threading.Thread(target=self._sample, name="penstock-memory", daemon=True)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._sampler is not None:
            self._sampler.join()
        with _meters_lock:
            self._observe()
            self._open = False
            _open_meters.remove(self)

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory of this process since the meter was entered."""
        with _meters_lock:
            if self._open:
                self._observe()
            return self._seen_bytes

    @property
    def tree_peak_bytes(self) -> int:
        """The same with all child processes, what these share among themselves counted once."""
        return max(self.peak_bytes, self._tree_seen_bytes)

    def sample(self) -> int:
        """Look at the whole tree now, and return what it holds."""
        # Own memory as RSS, so that the tree is never less than `peak_bytes`; a child's as PSS, so that what it shares
        # with its siblings counts once.
        tree_bytes = rss_bytes() + sum(pss_bytes(child) for child in descendants(os.getpid()))
        with _meters_lock:
            self._tree_seen_bytes = max(self._tree_seen_bytes, tree_bytes)
        return tree_bytes

    def _note_peak(self, high_water_bytes: int) -> None:
        self._seen_bytes = max(self._seen_bytes, high_water_bytes if self.exact else rss_bytes())

    def _observe(self) -> None:
        self._note_peak(_high_water_bytes() if self.exact else 0)

    def _sample(self) -> None:
        own_needs_samples = not self.exact
        while not self._stop.wait(_SAMPLE_INTERVAL_S):
            if descendants(os.getpid()):
                self.sample()
            if own_needs_samples:
                with _meters_lock:
                    self._observe()
