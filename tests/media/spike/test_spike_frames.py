"""Frames, crops and counts from the bytes of spike files: equal to unpacking everything first."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.media.spike.files import read_packed, read_spikes, read_voxel
from penstock._src.media.spike.frames import count_dtype, crop_packed, unpack, voxel_counts
from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout, bin_starts
from penstock._src.media.spike.voxel import spike_to_voxel
from penstock.errors import SpikeError
from tests.media.spikes import packed_bytes, random_spikes


@st.composite
def files(draw: st.DrawFn) -> tuple[SpikeLayout, PlaneRegion | None, int, int]:
    """A layout, a box in it, a number of bins and a seed."""
    packing = draw(st.sampled_from(["packed", "uint8"]))
    width = draw(st.integers(1, 40))
    height = draw(st.integers(1, 5)) * (8 if width % 8 and packing == "packed" else 1)
    frames = draw(st.integers(1, 40))
    layout = SpikeLayout(packing, height, width, frames, draw(st.booleans()))
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = PlaneRegion(top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))
    return layout, draw(st.sampled_from([box, None])), draw(st.integers(1, frames)), draw(st.integers(0, 99))


@given(files())
def test_crops_and_counts_equal_those_of_the_unpacked_file(
    made: tuple[SpikeLayout, PlaneRegion | None, int, int],
) -> None:
    layout, box, num_bins, seed = made
    whole = random_spikes(layout.frames, layout.height, layout.width, seed)
    stored = whole[:, ::-1] if layout.flip else whole
    data = packed_bytes(stored) if layout.packing == "packed" else stored.tobytes()
    assert len(data) == layout.n_bytes
    part = whole if box is None else whole[:, box.top : box.top + box.height, box.left : box.left + box.width]
    np.testing.assert_array_equal(unpack(data, layout, box), part)
    starts = bin_starts(layout.frames, num_bins)
    expected = np.stack([part[begin:end].sum(0) for begin, end in pairwise(starts)])
    counts = voxel_counts(data, layout, num_bins, box)
    assert counts.dtype == count_dtype(layout, num_bins) and counts.flags.c_contiguous
    np.testing.assert_array_equal(counts, expected)
    given = np.full(expected.shape, 7, np.float32)
    assert voxel_counts(data, layout, num_bins, box, given) is given
    np.testing.assert_array_equal(given, expected)
    np.testing.assert_array_equal(spike_to_voxel(part, num_bins), expected)
    packed, offset = crop_packed(data, layout, box)
    bits = np.unpackbits(packed, axis=-1, bitorder="little")[:, :, offset : offset + part.shape[2]]
    np.testing.assert_array_equal(bits, part)


def test_a_frame_is_in_the_bin_that_its_number_gives() -> None:
    for frames in (5, 10, 56, 88, 104, 301):
        starts = bin_starts(frames, 5)
        bins = [sum(frame >= start for start in starts[1:]) for frame in range(frames)]
        assert bins == [frame * 5 // frames for frame in range(frames)]
    assert np.diff(bin_starts(10, 5)).tolist() == [2, 2, 2, 2, 2]
    assert np.diff(bin_starts(88, 5)).tolist() == [18, 18, 17, 18, 17]


@pytest.mark.parametrize("frames", [255, 256, 1000])
def test_a_bin_of_many_frames_counts_beyond_a_byte(frames: int) -> None:
    layout = SpikeLayout("packed", 2, 8, frames)
    counts = voxel_counts(b"\xff" * layout.n_bytes, layout, 1)
    assert counts.dtype == (np.uint8 if frames < 256 else np.uint16)
    assert (counts == frames).all()


def test_a_large_plane_is_counted_in_parts() -> None:
    layout = SpikeLayout("packed", 360, 640, 88, flip=True)
    data = np.random.default_rng(0).integers(0, 256, layout.n_bytes, np.uint8)
    expected = spike_to_voxel(unpack(data, layout), 5)
    np.testing.assert_array_equal(voxel_counts(data, layout, 5), expected)


def test_bytes_that_are_no_spikes_are_summed_as_they_are() -> None:
    """The seed's files: packed bits, read as ten frames of bytes."""
    layout = SpikeLayout("uint8", 396, 640, 10)
    data = np.random.default_rng(0).integers(0, 256, layout.n_bytes, np.uint8)
    counts = voxel_counts(data, layout, 5)
    np.testing.assert_array_equal(counts, data.reshape(5, 2, 396, 640).sum(1))
    np.testing.assert_array_equal(spike_to_voxel(data.reshape(10, 396, 640), num_bins=5), counts)
    with pytest.raises(SpikeError, match="bytes up to 255 cannot be packed"):
        crop_packed(data, layout)


@pytest.mark.parametrize("flip", [False, True])
def test_of_a_large_plane_only_the_rows_of_the_crop_are_read(tmp_path: Path, flip: bool) -> None:
    layout, box = SpikeLayout("packed", 1000, 1000, 6, flip), PlaneRegion(100, 203, 16, 30)
    data = np.random.default_rng(0).integers(0, 256, layout.n_bytes, np.uint8)
    path = tmp_path / "a.dat"
    path.write_bytes(data.tobytes())
    np.testing.assert_array_equal(read_voxel(path, layout, 3, box), voxel_counts(data, layout, 3, box))
    np.testing.assert_array_equal(read_packed(path, layout, box)[0], crop_packed(data, layout, box)[0])
    crop = read_spikes(path, height=1000, width=1000, flip=flip, box=box)
    np.testing.assert_array_equal(crop, unpack(data, layout, box))


def test_a_box_beyond_the_plane_and_bins_without_frames_are_refused() -> None:
    layout = SpikeLayout("packed", 4, 8, 3)
    with pytest.raises(SpikeError, match="does not lie in a plane of 4×8"):
        unpack(bytes(layout.n_bytes), layout, PlaneRegion(0, 1, 4, 8))
    with pytest.raises(SpikeError, match="5 bins of 3 frames") as caught:
        voxel_counts(bytes(layout.n_bytes), layout, 5)
    assert "from 1 to 3" in str(caught.value)
    with pytest.raises(SpikeError, match="13 bytes of spikes, 3×4×8 packed are 12"):
        unpack(bytes(13), layout)
