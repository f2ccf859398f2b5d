"""Voxels that are linear in time, and images from spikes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock._src.media.spike.intensity import spike_to_tfi, spike_to_tfp
from penstock._src.media.spike.voxel import spike_to_voxel
from penstock.errors import SpikeError
from tests.media.spikes import random_spikes


def test_bilinear_voxels_share_every_spike_between_two_moments() -> None:
    spikes = np.zeros((9, 1, 3), np.uint8)
    spikes[0, 0, 0] = spikes[8, 0, 1] = spikes[3, 0, 2] = 1
    voxel = spike_to_voxel(spikes, 5, mode="bilinear")
    assert voxel.dtype == np.float32
    assert voxel[:, 0, 0].tolist() == [1, 0, 0, 0, 0]
    assert voxel[:, 0, 1].tolist() == [0, 0, 0, 0, 1]
    assert voxel[:, 0, 2].tolist() == [0, 0.5, 0.5, 0, 0]  # frame 3 of 9 lies in the middle of moments 1 and 2


def test_both_kinds_of_voxel_hold_all_spikes() -> None:
    spikes = random_spikes(37, 6, 5)
    for mode in ("count", "bilinear"):
        np.testing.assert_allclose(spike_to_voxel(spikes, 7, mode=mode).sum(0), spikes.sum(0), rtol=1e-5)
    batch = np.stack([spikes, spikes[::-1]])
    np.testing.assert_array_equal(spike_to_voxel(batch, 7)[1], spike_to_voxel(spikes[::-1], 7))


def test_a_pixel_that_fires_every_n_frames_has_the_intensity_of_1_in_n() -> None:
    frames = np.arange(120)
    spikes = np.stack([frames % n == n - 1 for n in (1, 2, 3, 5, 60)], 1).astype(np.uint8)[:, None]
    np.testing.assert_allclose(spike_to_tfi(spikes)[0], [1, 1 / 2, 1 / 3, 1 / 5, 1 / 60])
    np.testing.assert_allclose(spike_to_tfp(spikes, window=60)[0], [1, 1 / 2, 1 / 3, 1 / 5, 1 / 60])
    np.testing.assert_allclose(spike_to_tfp(spikes, window=None)[0, -1], 2 / 120)


def test_intervals_end_where_the_file_ends() -> None:
    spikes = np.zeros((10, 1, 3), np.uint8)
    spikes[2, 0, 0] = spikes[7, 0, 1] = 1
    assert spike_to_tfi(spikes, at=4)[0].tolist() == [np.float32(1 / 8), np.float32(1 / 8), 0]
    assert spike_to_tfi(spikes, at=9)[0].tolist() == [np.float32(1 / 8), np.float32(1 / 3), 0]


def test_a_window_at_the_end_of_the_file_keeps_its_length() -> None:
    spikes = np.arange(10).reshape(10, 1, 1) >= 6
    assert spike_to_tfp(spikes, at=9, window=4)[0, 0] == 1
    assert spike_to_tfp(spikes, at=0, window=4)[0, 0] == 0


def test_wrong_words_are_refused() -> None:
    spikes = random_spikes(4, 2, 2)
    with pytest.raises(SpikeError, match="not a kind of voxel"):
        spike_to_voxel(spikes, 2, mode="cubic")  # type: ignore[arg-type]
    with pytest.raises(SpikeError, match=r"\(2, 2\): \(frames, height, width\) is needed"):
        spike_to_voxel(spikes[0])
    with pytest.raises(SpikeError, match="there are frames 0 to 3"):
        spike_to_tfi(spikes, at=4)
