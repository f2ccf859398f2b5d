"""What becomes of images on the device: JPEGs decoded by nvJPEG, floats made there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.load.engine.images import Fitter, ImageFit
from penstock._src.load.engine.job import BatchJob, EncodedImages, Failure
from penstock._src.load.engine.stages import DECODE
from penstock._src.profile.record.gpu import gpu_span
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.load.device.cuda import CudaTarget

_RESIZE_PIXELS = 64 << 20  # that are resized at a time: three numbers each are 384 MiB


class DeviceWork:
    """Finishes images on the device, on a stream beside that of the training."""

    def __init__(self, target: CudaTarget) -> None:
        self._target = target
        self._device = target.device
        self.stream = _stream(target.device)
        self._fitter = Fitter()

    def decoded(self, job: BatchJob) -> dict[str, Any]:
        """The images that stayed encoded, by output, on the current stream."""
        batch: dict[str, Any] = {}
        with gpu_span(DECODE):
            for alike in _by_size(job.encoded):
                self._decode(job, alike, batch)
        job.decoded_there = sum(len(each.bytes) for each in job.encoded)
        return batch

    def wait(self) -> None:
        """Wait until nothing is under way."""
        self.stream.synchronize()

    def _decode(self, job: BatchJob, alike: list[EncodedImages], batch: dict[str, Any]) -> None:
        """Columns of one size together: the decoder is quicker with many images at a time."""
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
            part = pixels[begin : begin + len(encoded.bytes)]
            begin += len(encoded.bytes)
            for output, inverse in zip(encoded.column.outputs, encoded.inverse, strict=True):
                decoded = part
                if not _is_identity(inverse, len(encoded.bytes)):
                    decoded = part.index_select(0, torch.from_numpy(inverse.reshape(-1)).to(self._device))
                lead = (job.size,) if output.steps is None else (job.size, output.steps)
                batch[output.name] = decoded.reshape(*lead, 3, *fit.size)

    def _decoded(self, wanted: list[tuple[EncodedImages, int]], fit: ImageFit) -> Any:
        """(n, 3, height, width) at the size asked for; None where nvJPEG refuses."""
        import torch

        data: list[Any] = [encoded.bytes[number] for encoded, number in wanted]
        if not data:
            return torch.empty((0, 3, *fit.size), dtype=torch.uint8, device=self._device)
        decoder = self._target.batch_decoder()
        whole = decoder.decode(data, fit.stored) if decoder is not None else None
        if whole is None:
            whole = self._by_torchvision(data, fit)
        if whole is None or fit.size == fit.stored:
            return whole
        pixels = torch.empty((len(data), 3, *fit.size), dtype=torch.uint8, device=self._device)
        per_piece = max(1, _RESIZE_PIXELS // (fit.stored[0] * fit.stored[1]))
        for start in range(0, len(data), per_piece):
            piece = whole[start : start + per_piece].to(torch.float16)  # half the memory; pixels differ by 0.06 at most
            scaled = torch.nn.functional.interpolate(piece, size=fit.size, mode="bilinear", align_corners=False)
            pixels[start : start + per_piece] = scaled.add_(0.5)  # to the nearest whole number
        return pixels

    def _by_torchvision(self, data: list[Any], fit: ImageFit) -> Any:
        """ImageArray by image, but it knows what the hardware refuses: progressive JPEGs."""
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        try:
            images = decode_jpeg([torch.from_numpy(each) for each in data], mode=ImageReadMode.RGB, device=self._device)
            whole = torch.stack(images)
        except RuntimeError:  # damaged, or not all of one size
            return None
        return whole if tuple(whole.shape[2:]) == fit.stored else None

    def _decode_here(
        self, job: BatchJob, wanted: list[tuple[EncodedImages, int]], there: list[int], pixels: Any
    ) -> None:
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

    def shaped(self, name: str, value: Any) -> Any:
        """Images of a column as floats in [0, 1], normalised where asked."""
        import torch

        if self._target.user_shaping.dtype == "uint8":
            return value
        normalize: Any = self._target.user_shaping.normalize
        if isinstance(normalize, Mapping):
            normalize = normalize.get(name)
        mean, std = (None, None) if normalize is None else normalize
        floats = value.to(torch.float32).div_(255)
        if mean is not None:
            floats.sub_(self._constant(mean))
        if std is not None:
            floats.div_(self._constant(std))
        return floats

    def _constant(self, values: Any) -> Any:
        import torch

        return torch.as_tensor(np.asarray(values, np.float32).reshape(-1, 1, 1), device=self._device)


@functools.cache
def _stream(device: Any) -> Any:
    """One for all loaders: torch keeps the memory of a stream, and gives it to no other."""
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]


def _by_size(encoded: list[EncodedImages]) -> list[list[EncodedImages]]:
    groups: dict[tuple[Any, ...], list[EncodedImages]] = {}
    for each in encoded:
        groups.setdefault((each.column.fit.stored, each.column.fit.size), []).append(each)
    return list(groups.values())


def _is_identity(inverse: Any, count: int) -> bool:
    return inverse.size == count and bool((inverse.reshape(-1) == np.arange(count)).all())
