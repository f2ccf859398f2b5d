"""Which encoders work here is found by trying; what does not work is replaced by the CPU, and said."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.media.video import hardware
from penstock._src.media.video.encode import CODECS, EncoderSettings, VideoEncoder
from penstock._src.media.video.hardware import encoder_settings
from penstock.errors import ConfigError
from tests.conversion import bags
from tests.media.images import rgb_image


def test_software_encoders_work_everywhere() -> None:
    found = {(each.codec, each.device): each for each in hardware.survey()}
    assert all(found[codec, "cpu"].works for codec in CODECS)
    assert all(each.works or each.reason for each in found.values())


@pytest.mark.parametrize("codec", CODECS)
def test_a_device_that_does_not_work_is_replaced_and_named(codec: str) -> None:
    device, note = hardware.choose(codec, "auto")  # type: ignore[arg-type]
    broken = [each for each in hardware.DEVICES if not hardware.probe(codec, each).works]  # type: ignore[arg-type]
    assert broken, "some device is missing on every machine"
    if device == "cpu":
        assert f"{codec}_{broken[0]}: " in note
    device, note = hardware.choose(codec, broken[0])  # type: ignore[arg-type]
    assert device == "cpu" and f"{codec}_{broken[0]}" in note
    assert encoder_settings(codec, device=broken[0]) == encoder_settings(codec)
    assert hardware.device_notes([codec], "cpu") == []


def test_a_conversion_says_what_encodes(tmp_path: Path) -> None:
    broken = next(each for each in hardware.DEVICES if not hardware.probe("h264", each).works)
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.5))
    asked = penstock.convert(bag, tmp_path / "a", video="h264", encoding={"device": broken})
    plain = penstock.convert(bag, tmp_path / "b", video="h264")
    assert any(f"h264_{broken}" in note and "encoded by the CPU" in note for note in asked.notes)
    assert not any("encoded by" in note for note in plain.notes)
    with pytest.raises(ConfigError, match=r"encoding\.device"):
        penstock.convert(bag, tmp_path / "c", encoding={"device": "gpu"})


@pytest.mark.parametrize("gop", [2, 30])
@pytest.mark.parametrize("codec", CODECS)
def test_the_bytes_do_not_depend_on_the_number_of_threads(codec: str, gop: int) -> None:
    digests = set()
    for threads in (1, 2, 5):
        # Large enough for x264 to use more than one thread.
        with VideoEncoder(encoder_settings(codec, gop=gop), 320, 240, fps=30, threads=threads) as encoder:
            samples = [sample for k in range(6) for sample in encoder.encode(rgb_image(k, 240, 320))]
            samples += encoder.flush()
            digests.add(hashlib.sha256(encoder.stsd + b"".join(sample.data for sample in samples)).hexdigest())
    assert len(digests) == 1


def test_nothing_in_the_bytes_names_the_machine() -> None:
    for codec in CODECS:
        with VideoEncoder(EncoderSettings(codec), 64, 48, fps=30) as encoder:
            samples = [*encoder.encode(np.zeros((48, 64, 3), np.uint8)), *encoder.flush()]
            data = encoder.stsd + b"".join(sample.data for sample in samples)
        assert not any(word in data for word in (b"cpuid", b"pools", b"threads=2", b"threads=4"))
