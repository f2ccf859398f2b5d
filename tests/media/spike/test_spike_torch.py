"""The same numbers from tensors as from arrays."""

from __future__ import annotations

import numpy as np
import pytest

from penstock._src.media.spike.frames import crop_packed, voxel_counts
from penstock._src.media.spike.intensity import spike_to_tfi, spike_to_tfp
from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout
from penstock._src.media.spike.voxel import packed_to_voxel, spike_to_voxel
from tests.media.spikes import packed_bytes, random_spikes

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("mode", ["count", "bilinear"])
def test_voxels_of_a_tensor_are_those_of_the_array(mode: str) -> None:
    spikes = random_spikes(23, 7, 9)
    found = spike_to_voxel(torch.from_numpy(spikes), 5, mode=mode)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), spike_to_voxel(spikes, 5, mode=mode), rtol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [None, 0, 22])
def test_images_of_a_tensor_are_those_of_the_array(at: int | None) -> None:
    spikes = random_spikes(23, 7, 9) * (np.arange(9) > 1).astype(np.uint8)
    tensor = torch.from_numpy(spikes)
    np.testing.assert_allclose(spike_to_tfp(tensor, at).numpy(), spike_to_tfp(spikes, at), rtol=1e-6)
    np.testing.assert_allclose(spike_to_tfi(tensor, at).numpy(), spike_to_tfi(spikes, at), rtol=1e-6)


def test_packed_crops_of_a_batch_give_the_counts_of_each() -> None:
    layout = SpikeLayout("packed", 20, 48, 26, flip=True)
    data = packed_bytes(random_spikes(26, 20, 48))
    boxes = [PlaneRegion(2, left, 10, 17) for left in (0, 5, 8, 23)]
    crops = [crop_packed(data, layout, box) for box in boxes]
    widest = max(crop.shape[2] for crop, _ in crops)
    stacked = np.stack([np.pad(crop, ((0, 0), (0, 0), (0, widest - crop.shape[2]))) for crop, _ in crops])
    offsets = torch.tensor([offset for _, offset in crops])
    expected = np.stack([voxel_counts(data, layout, 5, box) for box in boxes])
    batch = packed_to_voxel(torch.from_numpy(stacked), offsets, 17, 5)
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch.numpy(), expected)
    clips = packed_to_voxel(torch.from_numpy(stacked).reshape(2, 2, *stacked.shape[1:]), offsets.reshape(2, 2), 17, 5)
    np.testing.assert_array_equal(clips.numpy().reshape(batch.shape), expected)
    one = packed_to_voxel(torch.from_numpy(crops[1][0]), crops[1][1], 17, 5)
    np.testing.assert_array_equal(one.numpy(), expected[1])
