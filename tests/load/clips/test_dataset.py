"""Clips: shapes, alignment of images and spikes under every crop and symmetry, the cache, and what cannot be read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock._src.load.clips.dataset import SpikeClips
from penstock._src.load.clips.frames import image_bytes
from penstock._src.load.clips.passes import Repeat
from penstock._src.load.clips.ram_cache import RamCache
from penstock.errors import ConfigError, ImageError, StoreError, UsageError
from tests.load.clips.clip_sets import OPTIONS, counts_of, image_of, make_sequence, make_set

CLIPS = (7 - 4) + (9 - 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("clips"))


@pytest.fixture
def clips(root: Path) -> Iterator[SpikeClips]:
    made = _clips(root, crop_size=16, augment=True)
    yield made
    made.close()


def _clips(root: Path, **words: Any) -> SpikeClips:
    given: dict[str, Any] = {"split": "train", "output": "numpy", "clip_len": 5, **OPTIONS, **words}
    return SpikeClips(root, **given)


def _pixels(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.rint(values * 255).astype(np.int64) if values.dtype == np.float32 else values.astype(np.int64)


def test_whole_images_come_as_they_are(root: Path) -> None:
    clips = _clips(root)
    assert len(clips) == CLIPS
    sample = clips[4]  # sequence 1 has its images 7…15, and its second clip begins at 8
    assert sample["blur"].shape == sample["sharp"].shape == (5, 3, 48, 64)
    assert sample["spike_vox"].shape == (5, 5, 24, 32)
    assert all(sample[name].dtype == np.float32 for name in ("blur", "sharp", "spike_vox"))
    for step in range(5):
        for name, shift in (("blur", 0), ("sharp", 100)):
            expected = image_of((48, 64), 8 + step + shift).transpose(2, 0, 1)
            np.testing.assert_array_equal(sample[name][step], expected.astype(np.float32) / np.float32(255))
        np.testing.assert_array_equal(sample["spike_vox"][step], counts_of((24, 32)))
    assert (int(sample["index"]), float(sample["weight"])) == (4, 1.0)
    assert clips.where(4) == "seq_1 from 0008.png"


def test_every_crop_shows_the_same_field_in_images_and_spikes(clips: SpikeClips) -> None:
    seen = set()
    for number in range(12 * CLIPS):
        sample = clips[number]
        blur, sharp, voxels = _pixels(sample["blur"]), _pixels(sample["sharp"]), sample["spike_vox"].astype(np.int64)
        assert blur.shape == (5, 3, 16, 16) and voxels.shape == (5, 5, 8, 8)
        np.testing.assert_array_equal(blur[:, :2], sharp[:, :2])
        assert (sharp[:, 2] - blur[:, 2] == 100).all()
        assert (blur[:, 2] == blur[:, 2, :1, :1]).all() and (np.diff(blur[:, 2, 0, 0]) == 1).all()
        rows = voxels[:, 0] + 3 * voxels[:, 1] + 9 * voxels[:, 2]
        columns = voxels[:, 3] + 3 * voxels[:, 4]
        large = np.repeat(np.repeat(np.stack([rows, columns], 1), 2, axis=2), 2, axis=3)
        np.testing.assert_array_equal(large[:, 0], blur[:, 0] // 2)
        np.testing.assert_array_equal(large[:, 1], blur[:, 1] // 2 % 9)
        seen.add((tuple(blur[0, :2, 0, 0]), tuple(blur[0, :2, 0, 1] - blur[0, :2, 0, 0])))
    assert len({turn for _, turn in seen}) == 4  # rightwards is up, down, left or right in the image
    assert len(seen) > 60


def test_samples_depend_on_seed_epoch_and_clip_alone(root: Path, clips: SpikeClips) -> None:
    again = pickle.loads(pickle.dumps(_clips(root, crop_size=16, augment=True)))
    other = _clips(root, crop_size=16, augment=True, seed=1)
    epochs = []
    for number in (0, 3, 3 + CLIPS, 3 + 2 * CLIPS):
        first = clips[number]
        for name, values in first.items():
            np.testing.assert_array_equal(values, again[number][name])
        epochs.append(first["blur"].tobytes())
        assert int(first["index"]) == number % CLIPS
    assert len(set(epochs)) == 4
    assert any(clips[n]["blur"].tobytes() != other[n]["blur"].tobytes() for n in range(4))


def test_bytes_hold_what_floats_do(root: Path, clips: SpikeClips) -> None:
    small = _clips(root, crop_size=16, augment=True, dtype="uint8")
    for number in range(CLIPS):
        floats, found = clips[number], small[number]
        assert found["blur"].dtype == found["spike_vox"].dtype == np.uint8
        np.testing.assert_array_equal(found["blur"].astype(np.float32) / np.float32(255), floats["blur"])
        np.testing.assert_array_equal(found["sharp"].astype(np.float32) / np.float32(255), floats["sharp"])
        np.testing.assert_array_equal(found["spike_vox"], floats["spike_vox"])


def test_several_clips_are_those_one_by_one(clips: SpikeClips) -> None:
    fetched = clips.__getitems__([2, 5, 2 + CLIPS])
    assert fetched.batch["blur"].shape == (3, 5, 3, 16, 16)
    for place, number in enumerate((2, 5, 2 + CLIPS)):
        for name, values in clips[number].items():
            np.testing.assert_array_equal(fetched[place][name], values)


def test_a_loop_over_clips_ends_with_the_epoch(clips: SpikeClips) -> None:
    assert [int(sample["index"]) for sample in clips] == list(range(CLIPS))


def test_negative_numbers_count_from_the_end_and_beyond_that_is_an_error(clips: SpikeClips) -> None:
    assert int(clips[-1]["index"]) == CLIPS - 1
    with pytest.raises(IndexError):
        clips[-CLIPS - 1]


def test_a_repeat_has_no_weight(clips: SpikeClips) -> None:
    sample = clips[Repeat(3)]
    assert (int(sample["index"]), float(sample["weight"])) == (-1, 0.0)
    np.testing.assert_array_equal(sample["blur"], clips[3]["blur"])


def test_precomputed_voxels_give_the_same_tensors(root: Path, tmp_path: Path, clips: SpikeClips) -> None:
    made = make_set(tmp_path / "set")
    for spike in sorted(made.glob("*/*/spike/*.dat")):
        folder = spike.parent.parent / "spike_vox"
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{spike.stem}.npy", counts_of((24, 32)))
    before = _clips(made, crop_size=16, augment=True, voxel_dir="spike_vox")
    for number in range(0, 2 * CLIPS, 3):
        np.testing.assert_array_equal(before[number]["spike_vox"], clips[number]["spike_vox"])


def test_jpeg_images_are_read_too(tmp_path: Path) -> None:
    make_sequence(tmp_path / "train" / "a", 5, suffix=".jpg")
    sample = _clips(tmp_path)[0]
    expected = image_of((48, 64), 2).transpose(2, 0, 1)
    assert np.abs(_pixels(sample["blur"][2]) - expected).mean() < 4


def test_images_without_sharp_ones_make_clips_without_them(tmp_path: Path) -> None:
    import shutil

    make_sequence(tmp_path / "train" / "a", 5)
    shutil.rmtree(tmp_path / "train" / "a" / "sharp")
    assert set(_clips(tmp_path)[0]) == {"blur", "spike_vox", "index", "weight"}


# The cache


def test_a_cache_changes_nothing_but_what_is_decoded(
    root: Path, clips: SpikeClips, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock._src.load.clips import frames

    decoded = []
    real = frames.codec.decode
    monkeypatch.setattr(frames.codec, "decode", lambda data: decoded.append(1) or real(data))
    sizes = image_bytes(clips.store)
    assert len(sizes) == 32 and (sizes == 48 * 64 * 3).all()
    half = 16 * 48 * 64 * 3 + 4096 * 3
    with RamCache(sizes, half) as cache:
        cached = _clips(root, crop_size=16, augment=True, cache=cache)
        for number in range(CLIPS):
            cached[number]
        assert cache.n_filled == cache.n_places > 10
        decoded.clear()
        for number in range(CLIPS):
            found = cached[number + CLIPS]
            for name, values in clips[number + CLIPS].items():
                np.testing.assert_array_equal(found[name], values)
        own = len(decoded) - CLIPS * 10  # the other data set decodes everything
        hits = sum(
            cache._table[int(row) + shift, 0] >= 0 for n in range(CLIPS) for row in cached.rows(n) for shift in (0, 16)
        )
        assert own == CLIPS * 10 - hits


# What cannot be used


def test_a_damaged_image_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    make_set(tmp_path)
    bad = tmp_path / "train" / "seq_0" / "sharp" / "0002.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(ImageError, match=r"sharp/0002\.png"):
        _clips(tmp_path)[0]


def test_a_damaged_image_is_skipped_and_counted_where_asked(tmp_path: Path) -> None:
    make_set(tmp_path)
    bad = tmp_path / "train" / "seq_0" / "sharp" / "0002.png"
    bad.write_bytes(b"no image")
    clips = _clips(tmp_path, on_error="skip", clip_len=3)
    sample = clips[1]
    assert (int(sample["index"]), float(sample["weight"])) == (-1, 0.0)
    np.testing.assert_array_equal(sample["blur"], clips[3]["blur"])  # the next clip without image 2
    assert len(clips.skipped) == 2 and all("0002.png" in each for each in clips.skipped)


def test_where_nothing_can_be_read_it_is_reported(tmp_path: Path) -> None:
    make_set(tmp_path, train=(7,))
    for bad in (tmp_path / "train" / "seq_0" / "sharp").iterdir():
        bad.write_bytes(b"no image")
    clips = _clips(tmp_path, on_error="skip", clip_len=3)
    with pytest.raises(StoreError, match="in a row cannot be read"):
        clips[0]


def test_an_image_of_another_size_names_both(tmp_path: Path) -> None:
    make_set(tmp_path)
    other = tmp_path / "other"
    make_sequence(other, 3, image=(24, 32))
    (other / "blur" / "0002.png").rename(tmp_path / "train" / "seq_0" / "blur" / "0002.png")
    with pytest.raises(ImageError, match=r"blur/0002\.png: 24×32 pixels, .* 48×64"):
        _clips(tmp_path)[0]


def test_clips_of_two_geometries_do_not_make_a_batch(tmp_path: Path) -> None:
    make_sequence(tmp_path / "train" / "a", 5)
    make_sequence(tmp_path / "train" / "b", 5, plane=(12, 32), first=50)
    clips = _clips(tmp_path, crop_size=16, height=None, width=32)
    assert clips[0]["spike_vox"].shape == (5, 5, 8, 8) and clips[1]["spike_vox"].shape == (5, 5, 4, 8)
    with pytest.raises(ConfigError, match=r"\(5, 5, 8, 8\) in a from 0000.png and \(5, 5, 4, 8\) in b") as error:
        clips.__getitems__([0, 1])
    assert "BATCH_SIZE: 1" in str(error.value)


def test_a_crop_larger_than_the_images_is_refused_at_once(root: Path) -> None:
    with pytest.raises(ConfigError, match="seq_0: a crop of 64×64"):
        _clips(root, crop_size=64)


def test_other_data_and_stray_options_are_refused(root: Path, clips: SpikeClips) -> None:
    with pytest.raises(UsageError, match="open already"):
        SpikeClips(clips.store, num_bins=5)
    assert SpikeClips(clips.store, clip_len=2, output="numpy").clip_len == 2
    assert "8 clips of 5 images, crop 16" in repr(clips)
    assert penstock.SpikeClips is SpikeClips
