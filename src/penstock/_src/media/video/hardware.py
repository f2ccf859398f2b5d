"""Which encoders of PyAV work on this machine, and why others do not; settings with a device that works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock._src.media.video.encode import CODECS, Codec, Device, EncoderSettings, VideoEncoder
from penstock.errors import PenstockError, VideoError

DEVICES: tuple[Device, ...] = ("nvenc", "videotoolbox", "qsv", "vaapi")
"""In the order in which `auto` tries them."""
_NOT_THERE = "PyAV has no encoder"
_FRAMES, _WIDTH, _HEIGHT = 4, 320, 240  # NVENC refuses images that are much smaller


class Probe(NamedTuple):
    """Whether an encoder works here, seen by encoding a few images."""

    codec: Codec
    device: Device
    encoder: str
    works: bool
    reason: str = ""


@lru_cache(maxsize=64)
def probe(codec: Codec, device: Device) -> Probe:
    """Encode a few images and count the samples."""
    settings = replace(EncoderSettings(codec), device=device)
    try:
        reason = _lacks(settings.encoder) or _trial(settings)
    except PenstockError as error:
        system_reason = getattr(error.__cause__, "strerror", None)
        reason = (
            f"cannot be opened ({system_reason}): no such hardware, or no driver for it"
            if system_reason
            else error.message
        )
    return Probe(codec, device, settings.encoder, not reason, reason)


def choose(codec: Codec, wanted: str) -> tuple[Device, str]:
    """(the device that encodes a codec, what to say of it): the wanted one where it works, else the CPU."""
    tried = [probe(codec, device) for device in DEVICES if wanted in ("auto", device)]
    for each in tried:
        if each.works:
            return each.device, f"{codec} is encoded by {each.device}: the bytes depend on this machine"
    reasons = "; ".join(f"{each.encoder}: {each.reason}" for each in tried)
    return "cpu", f"{codec} is encoded by the CPU, because no hardware encoder works here ({reasons})"


def encoder_settings(
    codec: str,
    *,
    crf: int | None = None,
    gop: int | None = None,
    preset: str | int | None = None,
    device: str = "cpu",
) -> EncoderSettings:
    """Settings for a codec by name; what is None stays as LeRobot has it. A device that does not work becomes "cpu"."""
    if codec not in CODECS:
        raise VideoError(f"unknown codec {codec!r}; known: {', '.join(CODECS)}")
    defaults = EncoderSettings(codec)
    return EncoderSettings(
        codec=codec,
        crf=defaults.crf if crf is None else crf,
        g=defaults.g if gop is None else gop,
        preset=preset,
        device="cpu" if device == "cpu" else choose(codec, device)[0],
    )


def device_notes(codecs: Iterable[str], wanted: str) -> list[str]:
    """What to say before a conversion that asks for hardware."""
    asked = set(codecs)
    return [] if wanted == "cpu" else [choose(codec, wanted)[1] for codec in CODECS if codec in asked]


def survey() -> list[Probe]:
    """Every encoder that PyAV knows, tried."""
    devices: tuple[Device, ...] = ("cpu", *DEVICES)
    probes = [probe(codec, device) for codec in CODECS for device in devices]
    return [each for each in probes if each.works or not each.reason.startswith(_NOT_THERE)]


def _lacks(encoder: str) -> str:
    import av

    try:
        av.codec.Codec(encoder, "w")
    except ValueError:  # UnknownCodecError
        return f"{_NOT_THERE} of this name"
    return ""


def _trial(settings: EncoderSettings) -> str:
    samples = 0
    with VideoEncoder(settings, _WIDTH, _HEIGHT, fps=30) as encoder:
        for number in range(_FRAMES):
            samples += len(encoder.encode(np.full((_HEIGHT, _WIDTH, 3), 40 * number, np.uint8)))
        samples += len(encoder.flush())
    return "" if samples == _FRAMES else f"{samples} samples for {_FRAMES} images"
