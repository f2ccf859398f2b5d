"""Batches on a GPU: pinned slots and one copy per batch, JPEGs decoded by nvJPEG, floats made there.

A thread of its own does it, on a stream of its own, while the training step runs: a batch is handed out when it is
complete. JPEG columns travel as bytes (a tenth of the pixels), are decoded whole and resized linearly on the device.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.errors import MissingExtra, PenstockError, UsageError
from penstock.load.crew import start_thread
from penstock.load.epoch import Pass
from penstock.load.job import Encoded, Failure, Handed, Handing, Job
from penstock.load.nvjpeg import BatchDecoder, NvJpegUnavailable
from penstock.load.pictures import Fit, Fitter
from penstock.load.source import ForDevice, PictureColumn, Shaping
from penstock.load.stages import DECODE, DEVICE
from penstock.profile.record.counters import count, gauge
from penstock.profile.record.gpu import gpu_span
from penstock.profile.record.spans import span

_AHEAD = 2  # batches that lie complete on the device
_HOLD_BACK_S = 0.002  # that a step which has just got a batch, and has another ready, has Python's lock for itself
_RESIZE_PIXELS = 32 << 20  # that are resized at a time: three floats each are 384 MiB


class CudaTarget:
    """Finishes jobs on a CUDA device. `notes` says which way pictures take."""

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
        self.asked = shaping
        # The threads leave pixels as uint8: a quarter of the bytes to copy, and the device is quicker at floats.
        self.shaping: Shaping = ForDevice(shaping.image_size, shaping.exact, shaping.resize, asked=shaping)
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

    def keeps_encoded(self, column: PictureColumn) -> bool:
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
        """Give the decoder's memory back."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def begin(self, own: Pass) -> Handing:
        return _CudaHanding(own, self)


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
        (found,) = decode_jpeg([torch.from_numpy(data)], device=device)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"nvJPEG does not answer: {str(error).splitlines()[0]}"
    return None if found.device.type == "cuda" else "torchvision decoded on the CPU"


def _pinned(n_bytes: int) -> Any:
    import torch

    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True).numpy()


class _Asked:
    """Whether somebody waits for a batch."""

    now = False


class _CudaHanding:
    """A thread takes jobs, brings them to the device, and puts complete batches into a short queue."""

    def __init__(self, own: Pass, target: CudaTarget) -> None:
        self._own = own
        self._device = target.device
        self._stop = threading.Event()
        self._free = threading.Semaphore(_AHEAD)
        self._is_asked = _Asked()
        self._ready: queue.SimpleQueue[tuple[Job, dict[str, Any], Any] | BaseException | None] = queue.SimpleQueue()
        work = (own, target, self._stop, self._free, self._is_asked, self._ready)
        self._thread = threading.Thread(target=_deliver, args=work, name="penstock-device", daemon=True)
        start_thread(self._thread)
        self._end = weakref.finalize(self, _end, own, self._stop, self._free, self._thread)

    def next(self) -> Handed | None:
        import torch

        gauge("queue_depth", self._ready.qsize())
        self._is_asked.now = True
        found = self._ready.get()
        self._is_asked.now = False
        if isinstance(found, BaseException):
            self.close()
            raise found
        if found is None:
            return None
        job, batch, done = found
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(done)
        tensors = (value for value in batch.values() if isinstance(value, torch.Tensor))
        for value in {each.untyped_storage().data_ptr(): each for each in tensors}.values():
            value.record_stream(stream)  # its memory is not given away while this stream may still read it
        if job.decoded_there:
            count("pictures_decoded", job.decoded_there)
        self._free.release()  # last: the other thread would take Python's lock at once
        return job, batch

    def close(self) -> None:
        self._end()


def _end(own: Pass, stop: threading.Event, free: threading.Semaphore, thread: threading.Thread) -> None:
    stop.set()
    free.release()
    own.give_up()
    # Garbage is collected by any thread: one that makes batches would wait for whom waits for it.
    current = threading.current_thread()
    if thread is not current and not own.is_own(current):
        thread.join()
    own.close()


def _deliver(
    own: Pass,
    target: CudaTarget,
    stop: threading.Event,
    free: threading.Semaphore,
    asked: _Asked,
    ready: queue.SimpleQueue[tuple[Job, dict[str, Any], Any] | BaseException | None],
) -> None:
    import torch

    try:
        torch.cuda.set_device(target.device)
        work = _DeviceWork(target)
        while not stop.is_set():
            free.acquire()
            if not asked.now and not ready.empty():
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
        work.settle()
        ready.put(None)
    except BaseException as error:
        ready.put(error)


class _DeviceWork:
    """What the device thread keeps: its stream, and slots whose copies may still be under way."""

    def __init__(self, target: CudaTarget) -> None:
        import torch

        self._target = target
        self._device = target.device
        self._stream: Any = torch.cuda.Stream(target.device)  # type: ignore[no-untyped-call,unused-ignore]
        self._fitter = Fitter()
        self._under_way: list[tuple[Any, Any]] = []
        self._nvjpeg = target.batch_decoder()
        self._dtypes: dict[Any, Any] = {}

    def finish(self, job: Job) -> tuple[dict[str, Any], Any]:
        """The batch on the device, and the event after which it is complete."""
        import torch

        with span(DEVICE), torch.cuda.stream(self._stream):
            with gpu_span(DEVICE):
                batch = self._copied(job)
            if job.encoded:
                with gpu_span(DECODE):
                    for alike in _alike(job.encoded):
                        self._decode(job, alike, batch)
                job.decoded_there = sum(len(each.bytes) for each in job.encoded)
            for name, column in job.pictures.items():
                if not column.fit.is_depth:
                    batch[name] = self._shaped(column.name, batch[name])
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
            done.record(self._stream)
        self._under_way = [each for each in self._under_way if not each[0].query()]
        # The slot and the bytes are free when the device has read them.
        self._under_way.append((done, (job.arrays, job.encoded)))
        while len(self._under_way) > _AHEAD:  # a device that lags behind must not hold all slots
            self._under_way.pop(0)[0].synchronize()
        job.arrays, job.encoded = {}, []
        ordered = {name: batch[name] for name in job.names if name in batch}
        return {**ordered, **batch, **job.texts}, done

    def settle(self) -> None:
        """Wait until nothing is under way."""
        self._stream.synchronize()
        self._under_way = []

    def _copied(self, job: Job) -> dict[str, Any]:
        """Everything that lies in the slot, in one copy."""
        import torch

        if not job.arrays:
            return {}
        slot = job.lease
        whole = torch.from_numpy(np.frombuffer(memoryview(slot.memory), np.uint8, count=slot.n_bytes))
        there = torch.empty(slot.n_bytes, dtype=torch.uint8, device=self._device)
        there.copy_(whole, non_blocking=True)
        start = whole.data_ptr()
        batch = {}
        for name, array in job.arrays.items():
            if not array.size:
                batch[name] = torch.from_numpy(array.copy()).to(self._device)
                continue
            offset = array.__array_interface__["data"][0] - start
            dtype = self._dtypes.get(array.dtype)
            if dtype is None:
                dtype = self._dtypes[array.dtype] = torch.from_numpy(array[:0]).dtype
            batch[name] = there[offset : offset + array.nbytes].view(dtype).view(array.shape)
        return batch

    def _decode(self, job: Job, alike: list[Encoded], batch: dict[str, Any]) -> None:
        """Columns of one size together: the decoder is quicker with many pictures at a time."""
        import torch

        fit = alike[0].column.fit
        wanted = [(encoded, number) for encoded in alike for number in range(len(encoded.bytes))]
        there = [place for place, (encoded, number) in enumerate(wanted) if encoded.bytes[number] is not None]
        pixels = self._decoded([wanted[place] for place in there], fit)
        if pixels is None or len(there) < len(wanted):
            whole = torch.zeros((len(wanted), 3, *fit.size), dtype=torch.uint8, device=self._device)
            if pixels is None:  # one of them is damaged or of another size: the CPU finds out which
                self._decode_here(job, wanted, there, whole)
            else:
                whole[torch.tensor(there, device=self._device)] = pixels
            pixels = whole
        begin = 0
        for encoded in alike:
            mine = pixels[begin : begin + len(encoded.bytes)]
            begin += len(encoded.bytes)
            for output, inverse in zip(encoded.column.outputs, encoded.inverse, strict=True):
                found = mine
                if not _is_identity(inverse, len(encoded.bytes)):
                    found = mine.index_select(0, torch.from_numpy(inverse.reshape(-1)).to(self._device))
                lead = (job.size,) if output.steps is None else (job.size, output.steps)
                batch[output.name] = found.reshape(*lead, 3, *fit.size)

    def _decoded(self, wanted: list[tuple[Encoded, int]], fit: Fit) -> Any:
        """(n, 3, height, width) at the size asked for; None where nvJPEG refuses."""
        import torch

        data: list[Any] = [encoded.bytes[number] for encoded, number in wanted]
        if not data:
            return torch.empty((0, 3, *fit.size), dtype=torch.uint8, device=self._device)
        whole = self._nvjpeg.decode(data, fit.stored) if self._nvjpeg is not None else None
        if whole is None:
            whole = self._by_torchvision(data, fit)
        if whole is None or fit.size == fit.stored:
            return whole
        pixels = torch.empty((len(data), 3, *fit.size), dtype=torch.uint8, device=self._device)
        per_piece = max(1, _RESIZE_PIXELS // (fit.stored[0] * fit.stored[1]))
        for start in range(0, len(data), per_piece):
            piece = whole[start : start + per_piece].to(torch.float32)
            scaled = torch.nn.functional.interpolate(piece, size=fit.size, mode="bilinear", align_corners=False)
            pixels[start : start + per_piece] = scaled.add_(0.5)  # to the nearest whole number
        return pixels

    def _by_torchvision(self, data: list[Any], fit: Fit) -> Any:
        """Picture by picture, but it knows what the hardware refuses: progressive JPEGs."""
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        try:
            found = decode_jpeg([torch.from_numpy(each) for each in data], mode=ImageReadMode.RGB, device=self._device)
            whole = torch.stack(found)
        except RuntimeError:  # damaged, or not all of one size
            return None
        return whole if tuple(whole.shape[2:]) == fit.stored else None

    def _decode_here(self, job: Job, wanted: list[tuple[Encoded, int]], there: list[int], pixels: Any) -> None:
        import torch

        for place in there:
            encoded, number = wanted[place]
            data = encoded.bytes[number]
            assert data is not None
            out = np.empty(encoded.column.shape, np.uint8)
            try:
                self._fitter.fit(data, encoded.column.fit, out)
            except PenstockError as error:
                places = [np.flatnonzero((inverse == number).any(axis=1)).tolist() for inverse in encoded.inverse]
                source, row = encoded.origin(number)
                lost = tuple(sorted({place for each in places for place in each}))
                job.lost(Failure(source, encoded.column.name, row, lost, error))
                continue
            pixels[place].copy_(torch.from_numpy(out))

    def _shaped(self, name: str, value: Any) -> Any:
        """Pictures of a column as floats in [0, 1], normalised where asked."""
        import torch

        if self._target.asked.dtype == "uint8":
            return value
        given: Any = self._target.asked.normalize
        if isinstance(given, Mapping):
            given = given.get(name)
        mean, std = (None, None) if given is None else given
        found = value.to(torch.float32).div_(255)
        if mean is not None:
            found.sub_(self._constant(mean))
        if std is not None:
            found.div_(self._constant(std))
        return found

    def _constant(self, values: Any) -> Any:
        import torch

        return torch.as_tensor(np.asarray(values, np.float32).reshape(-1, 1, 1), device=self._device)


def _alike(encoded: list[Encoded]) -> list[list[Encoded]]:
    groups: dict[tuple[Any, ...], list[Encoded]] = {}
    for each in encoded:
        groups.setdefault((each.column.fit.stored, each.column.fit.size), []).append(each)
    return list(groups.values())


def _is_identity(inverse: Any, count: int) -> bool:
    return inverse.size == count and bool((inverse.reshape(-1) == np.arange(count)).all())
