"""nvJPEG by its own C interface: a whole batch of JPEGs in one call, straight into one tensor.

torchvision offers the same decoder image by image: a tensor for each JPEG and for each result, and each of them
takes and gives back Python's lock, which the training step needs. Here the lock is given back once per batch.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RGB_PLANES = 3  # NVJPEG_OUTPUT_RGB: three planes
_BACKENDS = (3, 2)  # hardware: engines of their own where the chip has them; else its kernels
_STEP = 32  # a batch of another size is set up anew: sizes are rounded up to this
_IMAGE = np.dtype([("channel", np.uint64, 4), ("pitch", np.uint64, 4)])  # nvjpegImage_t


class NvJpegUnavailable(Exception):
    """The library is not there, or does not answer; the text says which."""


def find_library() -> str | None:
    """The libnvjpeg that torchvision has loaded, or one that lies beside the CUDA libraries of this environment."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        name = line.rpartition(" ")[2]
        if os.path.basename(name).startswith("libnvjpeg"):
            return name
    import sysconfig

    packages = Path(sysconfig.get_paths()["purelib"])
    libraries = [*packages.glob("nvidia/*/lib/libnvjpeg.so*"), *packages.glob("torchvision.libs/libnvjpeg*.so*")]
    return str(libraries[0]) if libraries else None


class BatchDecoder:
    """Decodes batches on one device, one at a time, on the stream that is current."""

    def __init__(self, device: Any) -> None:
        import torch

        path = find_library()
        if path is None:
            raise NvJpegUnavailable("libnvjpeg is not there")
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NvJpegUnavailable(f"{path} cannot be loaded: {error}") from None
        _declare(self._library)
        self._device = device
        self._lock = threading.Lock()
        self._batch = 0
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._last: list[Any] = []  # the event after which the batch before is decoded
        # By `close`, or when the decoder is dropped: the library holds memory and files of the driver.
        given_up = (self._library, self._handle, self._state, self._last, os.getpid())
        self._end = weakref.finalize(self, _give_back, *given_up)
        self._end.atexit = False
        code = -1
        with torch.cuda.device(device):
            for backend in _BACKENDS:
                code = self._library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(self._handle))
                if code == 0:
                    break
            else:
                raise NvJpegUnavailable(f"nvJPEG could not be started (code {code})")
            code = self._library.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state))
            if code:
                raise NvJpegUnavailable(f"nvJPEG has no state for decoding (code {code})")

    def decode(self, jpegs: Sequence[NDArray[np.uint8]], size: tuple[int, int]) -> Any:
        """(n, 3, height, width) uint8; None where nvJPEG refuses one of them, and after `close`.

        All must be of this size by their headers, which the caller has looked at: nvJPEG writes as far as they say.
        The bytes must stay until the work on the stream is over.
        """
        import torch

        n_jpegs, (height, width) = len(jpegs), size
        count = -(-n_jpegs // _STEP) * _STEP
        jpegs = [*jpegs, *[jpegs[0]] * (count - n_jpegs)]
        plane = height * width
        with self._lock, torch.cuda.device(self._device):
            if not self._end.alive:
                return None  # another thread has closed it
            for last in self._last:
                last.synchronize()  # its buffers on the host are used again
            if count != self._batch and self._initialize(count):
                return None
            pixels = torch.empty((count, 3, height, width), dtype=torch.uint8, device=self._device)
            places = np.zeros(count, _IMAGE)
            first = np.uint64(pixels.data_ptr()) + np.arange(count, dtype=np.uint64) * np.uint64(3 * plane)
            places["channel"][:, :3] = first[:, None] + np.arange(3, dtype=np.uint64) * np.uint64(plane)
            places["pitch"][:, :3] = width
            data = np.array([each.__array_interface__["data"][0] for each in jpegs], np.uint64)
            lengths = np.array([len(each) for each in jpegs], np.uint64)
            stream = torch.cuda.current_stream(self._device)
            code = self._library.nvjpegDecodeBatched(
                self._handle, self._state, data.ctypes.data, lengths.ctypes.data, places.ctypes.data, stream.cuda_stream
            )
            done = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
            done.record(stream)
            self._last[:] = [done]
            if code:
                self._batch = 0  # a state that failed is initialised again
                return None
            return pixels[:n_jpegs]

    def _initialize(self, count: int) -> int:
        code = int(self._library.nvjpegDecodeBatchedInitialize(self._handle, self._state, count, 1, _RGB_PLANES))
        self._batch = 0 if code else count
        return code

    def close(self) -> None:
        """Give the library's memory back; more than once is fine."""
        with self._lock:
            self._end()


def _give_back(
    library: Any, handle: ctypes.c_void_p, state: ctypes.c_void_p, last: list[Any], pid: int
) -> None:  # fmt: skip
    if os.getpid() != pid:
        return  # a child of a fork: the library is the parent's
    for event in last:
        event.synchronize()
    if state:
        library.nvjpegJpegStateDestroy(state)
    if handle:
        library.nvjpegDestroy(handle)


def _declare(library: Any) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.nvjpegCreateEx.argtypes = [number, pointer, pointer, ctypes.c_uint, pointer]
    library.nvjpegJpegStateCreate.argtypes = [pointer, pointer]
    library.nvjpegDecodeBatchedInitialize.argtypes = [pointer, pointer, number, number, number]
    library.nvjpegDecodeBatched.argtypes = [pointer, pointer, pointer, pointer, pointer, pointer]
    library.nvjpegJpegStateDestroy.argtypes = [pointer]
    library.nvjpegDestroy.argtypes = [pointer]
