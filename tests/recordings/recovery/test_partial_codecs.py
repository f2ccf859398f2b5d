"""Cut streams: a prefix of the content, as long as the format allows, and never a byte more or less."""

from __future__ import annotations

import bz2

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.recordings.codecs import decode_prefix
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes

_NOISE = np.random.default_rng(1)
CONTENTS = {
    "noise": _NOISE.bytes(300_000),
    "runs": b"".join(bytes([n % 251]) * int(_NOISE.integers(1, 3000)) for n in range(200)),
    "mixed": b"".join(_NOISE.bytes(40) * int(_NOISE.integers(1, 20)) + bytes(500) for _ in range(400)),
}


def _pack(codec: str, content: bytes) -> bytes:
    return bz2.compress(content) if codec == "bz2" else pa.compress(content, codec=codec, asbytes=True)


PACKED = {(codec, name): _pack(codec, data) for codec in ("lz4", "zstd", "bz2") for name, data in CONTENTS.items()}


@pytest.mark.parametrize(("codec", "name"), list(PACKED))
@settings(max_examples=12)
@given(data=st.data())
def test_a_cut_stream_gives_a_prefix_of_its_content(codec: str, name: str, data: st.DataObject) -> None:
    packed, content = PACKED[codec, name], CONTENTS[name]
    cut = data.draw(st.integers(0, len(packed)))
    found = decode_prefix(codec, ChunkBytes(packed[:cut]), 0, cut)
    assert content.startswith(found)
    if cut == len(packed):
        assert found == content
    if codec == "lz4":  # to the last whole block
        assert name != "noise" or len(found) >= cut - (64 << 10) - 64
    limit = data.draw(st.integers(0, len(content)))
    assert decode_prefix(codec, ChunkBytes(packed[:cut]), 0, cut, limit) == found[:limit]
