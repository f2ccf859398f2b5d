"""The stages of a sample's way, as a profile shows them: their names, the clock of a task, the sums of a batch.

    00_TOTAL_getitem          a sample: all work of all threads for it
    02_read_qpos              its numbers, without actions
    03_read_images_total      its images
    03a_read_one_camera       those of one camera: read and decoded, or copied from a view
    03b_image_decode          one image: decoded and resized
    03c_fetch_bytes           one image: read from the store
    03d_view_copy             one image: copied from a view
    03e_view_put              one image: put into a view
    04_read_actions           its actions
    05_to_tensor_normalize    handed out
    05a_normalize_image     one image: made floats

A small image is copied in microseconds, so tasks add up on their own, and a batch is recorded when it is complete:
counts are exact, and a process that is killed has recorded whole batches.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from penstock._src.profile.record.spans import count, is_enabled, record_calls, show
from penstock._src.profile.report.figures import IDLE
from penstock._src.stores.store import Column

TOTAL = "00_TOTAL_getitem"
NUMBERS = "02_read_qpos"
IMAGES = "03_read_images_total"
CAMERA = "03a_read_one_camera"
DECODE = "03b_image_decode"
FETCH = "03c_fetch_bytes"
COPY = "03d_view_copy"
PUT = "03e_view_put"
ACTIONS = "04_read_actions"
HAND_OUT = "05_to_tensor_normalize"
FLOATS = "05a_normalize_image"
DEVICE = "06_to_device"
PLAN = "plan_batch"
SLOT = IDLE

now_ns = time.perf_counter_ns
_PARTS = (DECODE, FETCH, COPY, PUT, FLOATS)


class StageClock:
    """What one task spends on which stage; a thread has one, and begins it anew with every task."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the task before."""
        self.decode_ns = self.fetch_ns = self.float_ns = self.put_ns = 0
        self.floats = self.n_bytes = self.images = self.puts = 0
        self.began_ns = self.last_ns = now_ns()

    def read(self, image: Any) -> None:
        """An image came: since the one before was used, it was read."""
        now = now_ns()
        self.fetch_ns += now - self.last_ns
        self.last_ns = now
        self.images += 1
        self.n_bytes += image.nbytes

    def used(self) -> None:
        """The image was decoded and placed."""
        now = now_ns()
        self.decode_ns += now - self.last_ns
        self.last_ns = now

    def put(self, since_ns: int, count: int = 1) -> None:
        """Meanwhile, it was put into a view, or several were."""
        self.put_ns += now_ns() - since_ns
        self.puts += count

    def add_floats(self, since_ns: int) -> None:
        """Meanwhile, it was made floats."""
        self.float_ns += now_ns() - since_ns
        self.floats += 1

    def show(self) -> None:
        """In the timeline of the thread: when it began the task, and how long it was at it."""
        show(CAMERA, self.began_ns, now_ns() - self.began_ns)


class Sums:
    """What a batch took, guarded by the batch's lock, and recorded at once when the batch is complete."""

    __slots__ = ("_calls", "_cameras", "_ns", "_samples", "hand_out_ns", "n_bytes", "plan_ns")

    def __init__(self) -> None:
        self._ns: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._samples = self._cameras = 0
        self.n_bytes = self.plan_ns = self.hand_out_ns = 0

    def plan(self, samples: int, cameras: int) -> None:
        """So many samples are wanted, each with that many cameras."""
        self._samples += samples
        self._cameras += samples * cameras

    def _add(self, name: str, duration_ns: int, calls: int) -> None:
        self._ns[name] = self._ns.get(name, 0) + duration_ns
        self._calls[name] = self._calls.get(name, 0) + calls

    def add_numbers(self, is_action: bool, duration_ns: int) -> None:
        """A column of numbers was gathered."""
        self._add(ACTIONS if is_action else NUMBERS, duration_ns, 0)

    def add_copies(self, clock: StageClock, images: int) -> None:
        """A task copied images from a view."""
        spent_ns = now_ns() - clock.began_ns
        self._add(COPY, spent_ns, images)
        self._add(CAMERA, spent_ns, 0)

    def add_puts(self, clock: StageClock, images: int) -> None:
        """A task put images of the batch into a view."""
        spent_ns = now_ns() - clock.began_ns
        self._add(PUT, spent_ns, images)
        self._add(CAMERA, spent_ns, 0)

    def add_images(self, clock: StageClock, column: Column, rows: int, *, decodes: bool) -> None:
        """A task read images of a column (of so many rows) and, unless the device does, decoded them."""
        make_ns = max(0, clock.decode_ns - clock.put_ns - clock.float_ns)
        if column.is_decoded_while_read:
            self._add(DECODE, clock.fetch_ns + make_ns, clock.images)
        elif decodes:
            self._add(FETCH, clock.fetch_ns, clock.images)
            self._add(DECODE, make_ns, clock.images)
        else:
            self._add(FETCH, clock.fetch_ns + make_ns, clock.images)
        if clock.puts:
            self._add(PUT, clock.put_ns, clock.puts)
        if clock.floats:
            self._add(FLOATS, clock.float_ns, clock.floats)
        self._add(CAMERA, now_ns() - clock.began_ns, 0)
        stored = column.is_read_as_stored
        self.n_bytes += clock.n_bytes if stored else clock.images * column.stored_bytes // max(rows, 1)

    def record(self, *, is_counted: bool, is_inside: bool) -> None:
        """Into the profile. `is_counted`: as samples, not as parts of one that somebody else counts; `is_inside`: the
        calling thread has done all of it, within the span that is open."""
        if not is_enabled():
            return
        spent, calls = self._ns, self._calls
        images_ns = spent.get(CAMERA, 0)
        top, inside = ((TOTAL,), False) if is_counted else ((), is_inside)
        below = 0
        for name in (NUMBERS, ACTIONS):
            if name in spent:
                below += spent[name]
                record_calls(name, spent[name], self._samples, under=top, inside=inside)
        parts_ns = 0
        for name in _PARTS:
            if name in spent:
                parts_ns += spent[name]
                record_calls(name, spent[name], calls[name], under=(*top, IMAGES, CAMERA))
        if self._cameras:
            record_calls(CAMERA, images_ns, self._cameras, child_ns=parts_ns, under=(*top, IMAGES))
            record_calls(IMAGES, images_ns, self._samples, child_ns=images_ns, under=top, inside=inside)
        if self.hand_out_ns:
            record_calls(HAND_OUT, self.hand_out_ns, self._samples, under=top, inside=inside)
        if is_counted:
            total_ns = self.plan_ns + images_ns + self.hand_out_ns
            below += images_ns + self.hand_out_ns
            record_calls(TOTAL, total_ns, self._samples, child_ns=below, inside=is_inside)
        for name, n in (("bytes_read", self.n_bytes), ("view_hits", calls.get(COPY)),
                        ("images_decoded", calls.get(DECODE))):  # fmt: skip
            if n:
                count(name, n)
        _record_requests()


_seen_requests: Any = None


def _record_requests() -> None:
    """What this process asked of remote stores since the batch before."""
    global _seen_requests
    module = sys.modules.get("penstock._src.system.files.remote.requests")
    if module is None:
        return
    now = module.counters.copy()
    new, _seen_requests = now if _seen_requests is None else now.since(_seen_requests), now
    if new.requests > 0:
        # Counters, not a stage: many requests are under way at once, and waiting for one is part of 03c_fetch_bytes.
        count("remote_requests", new.requests)
        count("remote_bytes", new.bytes_read)
        count("remote_wait_us", new.wait_ns // 1000)
        count("remote_latency_us", new.first_byte_ns // 1000)
