"""Batches on a GPU: pinned slots and one copy per batch, JPEGs decoded by nvJPEG, floats made there.

A thread of its own does it, on a stream of its own, while the training step runs: a batch is handed out when it is
complete. JPEG columns travel as bytes (a tenth of the pixels), are decoded whole and resized linearly on the device.
"""

from __future__ import annotations

import mmap
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._src.load.device.inline import InlineCudaBatches
from penstock._src.load.device.nvjpeg import BatchDecoder, NvJpegUnavailable
from penstock._src.load.device.work import AHEAD, DeviceWork
from penstock._src.load.engine.job import BatchIterator, BatchJob, ReadyBatch
from penstock._src.load.engine.source import DeviceShaping, ImageColumn, Shaping
from penstock._src.load.engine.thread_pool import start_thread
from penstock._src.load.epoch import Pass
from penstock._src.load.process.passes import ProcessPass
from penstock._src.profile.record.counters import count, gauge
from penstock.errors import MissingExtra, UsageError

_HOLD_BACK_S = 0.002  # that a step which has just got a batch, and has another ready, has Python's lock for itself


class CudaTarget:
    """Finishes jobs on a CUDA device. `notes` says which way images take."""

    is_device = is_torch = True

    def __init__(self, device: Any, gpu_decode: bool | str, shaping: Shaping) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtra("torch", "torch", f"device={device!r}") from None
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError):
            self.device = torch.device("meta")  # a word that torch does not know
        if self.device.type != "cuda":
            raise UsageError(f"device={device!r}", hint='"cpu" or "cuda", "cuda:1", …')
        if not torch.cuda.is_available():
            raise UsageError(f"device={device!r}: torch {torch.__version__} sees no CUDA device", hint='device="cpu"')
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.user_shaping = shaping
        # The threads leave pixels as uint8: a quarter of the bytes to copy, and the device is quicker at floats.
        self.shaping: Shaping = DeviceShaping(shaping.image_size, shaping.exact, shaping.resize, user_shaping=shaping)
        self.notes: tuple[str, ...] = ()
        self._decodes = self._tried = False
        self._decoder: BatchDecoder | None = None
        if gpu_decode is not False:
            other = f"the device resizes linearly, not by resize={shaping.resize!r}"
            reason = other if shaping.resize != "linear" else _nvjpeg_missing(self.device)
            self._decodes = reason is None
            if reason is not None:
                self.notes = (f"JPEGs are decoded on the CPU: {reason}",)
                if gpu_decode is True:
                    raise UsageError(f"gpu_decode=True: {reason}", hint='gpu_decode="auto" decodes on the CPU then')
        self.slot_memory: Callable[[int], Any] | None = _pinned
        self.register: Callable[[mmap.mmap], None] | None = self._register
        self._registered: list[int] = []

    def _register(self, memory: mmap.mmap) -> None:
        """The GPU copies from it by itself; where the system refuses to pin it, torch copies with the CPU's help."""
        import torch

        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        with torch.cuda.device(self.device):
            if int(torch.cuda.cudart().cudaHostRegister(address, len(memory), 0)) == 0:
                self._registered.append(address)

    def keeps_encoded(self, column: ImageColumn) -> bool:
        return self._decodes and column.is_jpeg and column.fit.channels == 3 and not column.fit.varies

    def slot_bytes(self, n_bytes: int) -> int:
        return 1 << (n_bytes - 1).bit_length()  # torch rounds pinned memory up to a power of two

    def batch_decoder(self) -> BatchDecoder | None:
        """nvJPEG by its own interface, where its library is there."""
        if self._decodes and not self._tried:
            self._tried = True  # once for all passes: the library takes a while to start
            try:
                self._decoder = BatchDecoder(self.device)
            except NvJpegUnavailable:
                self._decoder = None  # torchvision's way does the same
        return self._decoder

    def close(self) -> None:
        """Give the decoder's memory and the pinned pages back."""
        import torch

        registered, self._registered = self._registered, []
        for address in registered:
            torch.cuda.cudart().cudaHostUnregister(address)
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def begin(self, own: Pass | ProcessPass) -> BatchIterator:
        return InlineCudaBatches(own, self) if isinstance(own, ProcessPass) else _CudaIterator(own, self)


def _nvjpeg_missing(device: Any) -> str | None:
    """Why JPEGs cannot be decoded on the device, tried with a real one; None where they can."""
    try:
        import torch
        from torchvision.io import decode_jpeg
    except (ImportError, RuntimeError) as error:
        return f"torchvision is not there ({error})"
    import cv2

    data = cv2.imencode(".jpg", np.full((16, 16, 3), 128, np.uint8))[1].reshape(-1)
    try:
        (pixels,) = decode_jpeg([torch.from_numpy(data)], device=device)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"nvJPEG does not answer: {str(error).splitlines()[0]}"
    return None if pixels.device.type == "cuda" else "torchvision decoded on the CPU"


def _pinned(n_bytes: int) -> Any:
    import torch

    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy()


class _Demand:
    """Whether a thread waits for a batch."""

    is_waiting = False


class _CudaIterator:
    """A thread takes jobs, brings them to the device, and puts complete batches into a short queue."""

    def __init__(self, own: Pass, target: CudaTarget) -> None:
        self._own = own
        self._device = target.device
        self._stop = threading.Event()
        self._free = threading.Semaphore(AHEAD)
        self._demand = _Demand()
        self._ready: queue.SimpleQueue[tuple[BatchJob, dict[str, Any], Any] | BaseException | None] = (
            queue.SimpleQueue()
        )
        work = (own, target, self._stop, self._free, self._demand, self._ready)
        self._thread = threading.Thread(target=_run_copies, args=work, name="penstock-device", daemon=True)
        start_thread(self._thread)
        self._end = weakref.finalize(self, _end, own, self._stop, self._free, self._thread)

    def next(self) -> ReadyBatch | None:
        import torch

        gauge("queue_depth", self._ready.qsize())
        self._demand.is_waiting = True
        ready = self._ready.get()
        self._demand.is_waiting = False
        if isinstance(ready, BaseException):
            self.close()
            raise ready
        if ready is None:
            return None
        job, batch, done = ready
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(done)
        tensors = (value for value in batch.values() if isinstance(value, torch.Tensor))
        for value in {each.untyped_storage().data_ptr(): each for each in tensors}.values():
            value.record_stream(stream)  # its memory is not given away while this stream may still read it
        if job.decoded_there:
            count("images_decoded", job.decoded_there)
        self._free.release()  # last: the other thread would take Python's lock at once
        return job, batch

    def close(self) -> None:
        self._end()


def _end(own: Pass, stop: threading.Event, free: threading.Semaphore, thread: threading.Thread) -> None:
    stop.set()
    free.release()
    own.cancel()
    # Garbage is collected by any thread: one that makes batches would wait for whom waits for it.
    current = threading.current_thread()
    if thread is not current and not own.runs_in(current):
        thread.join()
    own.close()


def _run_copies(
    own: Pass,
    target: CudaTarget,
    stop: threading.Event,
    free: threading.Semaphore,
    demand: _Demand,
    ready: queue.SimpleQueue[tuple[BatchJob, dict[str, Any], Any] | BaseException | None],
) -> None:
    import torch

    try:
        torch.cuda.set_device(target.device)
        work = DeviceWork(target)
        while not stop.is_set():
            free.acquire()
            if not demand.is_waiting and not ready.empty():
                time.sleep(_HOLD_BACK_S)
            job = None if stop.is_set() else own.next()
            if job is None and (stop.is_set() or own.is_over):
                break
            if job is None:  # an epoch ends; the next one follows
                ready.put(None)
                free.release()
                continue
            batch, done = work.finish(job)
            ready.put((job, batch, done))
            del job, batch, done
        work.wait()
        ready.put(None)
    except BaseException as error:
        ready.put(error)
