"""What nvJPEG holds is given back, also where its decoder is dropped. A stand-in for the library counts its calls."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock._src.load.device import nvjpeg  # noqa: E402


class _Function:
    """A function of the library: counted, and refused where that is asked for."""

    def __init__(self, name: str, calls: Counter[str], refused: set[str]) -> None:
        self._name, self._calls, self._refused = name, calls, refused

    def __call__(self, *words: Any) -> int:
        self._calls[self._name] += 1
        if self._name in self._refused:
            return 1
        if self._name in ("nvjpegCreateEx", "nvjpegJpegStateCreate"):
            words[-1]._obj.value = 1
        return 0


class _Library:
    def __init__(self, calls: Counter[str], refused: set[str]) -> None:
        self._calls, self._refused = calls, refused

    def __getattr__(self, name: str) -> _Function:
        function = _Function(name, self._calls, self._refused)
        setattr(self, name, function)
        return function


def _library(monkeypatch: pytest.MonkeyPatch, *refused: str) -> Counter[str]:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(nvjpeg, "find_library", lambda: "libnvjpeg.so")
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _Library(calls, set(refused)))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return calls


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_decoder_gives_its_library_back_once(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    calls = _library(monkeypatch)
    decoder = nvjpeg.BatchDecoder("cuda")
    assert calls == {"nvjpegCreateEx": 1, "nvjpegJpegStateCreate": 1}
    if is_closed:
        decoder.close()
        decoder.close()
        assert calls["nvjpegDestroy"] == 1
        assert decoder.decode([np.zeros(4, np.uint8)], (8, 8)) is None, "another thread may come too late"
    del decoder
    gc.collect()
    assert calls["nvjpegJpegStateDestroy"] == calls["nvjpegDestroy"] == 1


def test_a_library_that_starts_and_has_no_state_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _library(monkeypatch, "nvjpegJpegStateCreate")
    with pytest.raises(nvjpeg.NvJpegUnavailable, match="no state"):
        nvjpeg.BatchDecoder("cuda")
    gc.collect()
    assert calls["nvjpegDestroy"] == 1 and not calls["nvjpegJpegStateDestroy"]
