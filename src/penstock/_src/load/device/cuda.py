"""Batches on a GPU: pinned slots and one copy per batch, JPEGs decoded by nvJPEG, floats made there.

JPEG columns travel as bytes (a tenth of the pixels), are decoded whole and resized linearly on the device.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.device.inline import InlineCudaBatches
from penstock._src.load.device.nvjpeg import BatchDecoder, NvJpegUnavailable
from penstock._src.load.engine.job import BatchIterator
from penstock._src.load.engine.slots import Register
from penstock._src.load.engine.source import DeviceShaping, ImageColumn, Shaping
from penstock._src.load.epoch import Pass
from penstock.errors import MissingExtra, UsageError


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
        self.register: Register | None = self._register

    def _register(self, memory: NDArray[np.uint8]) -> None:
        """The GPU copies from it by itself; where the system refuses to pin it, torch copies with the CPU's help."""
        import torch

        address = memory.ctypes.data
        with torch.cuda.device(self.device):
            if int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)) == 0:
                # Pages that go while they are pinned would count as pinned for what comes to lie at their address.
                weakref.finalize(memory, _unregister, address).atexit = False

    def keeps_encoded(self, column: ImageColumn) -> bool:
        return self._decodes and column.is_jpeg and column.fit.channels == 3 and not column.fit.varies

    def batch_decoder(self) -> BatchDecoder | None:
        """nvJPEG by its own interface, where its library is there."""
        if self._decodes and not self._tried:
            self._tried = True  # once, and not before images are decoded here: the library takes a while to start
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

    def begin(self, own: Pass) -> BatchIterator:
        return InlineCudaBatches(own, self)


def _unregister(address: int) -> None:
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)


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
