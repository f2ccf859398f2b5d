"""Spike data sets as stores: folders of the public sets, pairs of files, rows, and what is wrong with them."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

import penstock
from penstock._src import formats
from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout
from penstock._src.media.spike.voxel import spike_to_voxel
from penstock._src.stores.spike.store import SpikeStore
from penstock._src.stores.store import Scratch
from penstock.errors import ImageError, SpikeError, StoreError
from tests.media.spikes import packed_bytes, random_spikes
from tests.stores.spike_sets import Made, make_sequence, make_set

PLANE = {"height": 24, "width": 32}


def _check_voxels(store: penstock.Store, made: list[Made], num_bins: int = 5) -> None:
    expected = np.stack([spike_to_voxel(each, num_bins) for sequence in made for each in sequence.spikes])
    np.testing.assert_array_equal(store.numbers("spike_vox", np.arange(store.rows)), expected)


def test_a_row_is_a_blurred_image_a_sharp_image_and_counts(tmp_path: Path) -> None:
    made = make_set(tmp_path)
    with penstock.open(tmp_path) as store:
        assert isinstance(store, SpikeStore)
        assert list(store.columns) == ["blur", "sharp", "spike_vox"]
        assert (store.rows, store.episodes, store.episode_starts.tolist()) == (6, 2, [0, 3, 6])
        assert store.columns["blur"].shape == (48, 64, 3) and store.columns["blur"].encoding == "png"
        assert store.columns["spike_vox"].shape == (5, 24, 32) and store.columns["spike_vox"].dtype == "uint8"
        _check_voxels(store, made)
        assert store.numbers("spike_vox", np.array([4, 0, 4])).shape == (3, 5, 24, 32)
        for name in ("blur", "sharp"):
            rows = [5, 0]
            for row, found in zip(rows, store.images(name).read(rows, Scratch()), strict=True):
                assert found.tobytes() == store.image_path(name, row).read_bytes()
        assert store.spike_path(3) == tmp_path / "b" / "spike" / "000011.dat"
        assert store.episode_label(1) == "sequence b" and store.row_number(4) == 1


def test_the_layout_is_found_for_all_and_reported(tmp_path: Path) -> None:
    make_set(tmp_path)
    store = SpikeStore(tmp_path)
    assert [each.layout for each in store.sequences] == [SpikeLayout("packed", 24, 32, 16, flip=True)] * 2
    assert [(each.name, each.frames, each.image_height, each.image_width) for each in store.sequences] == [
        ("a", 3, 48, 64),
        ("b", 3, 48, 64),
    ]
    assert any("by the image" in note for note in store.notes)
    assert any("stored upside down" in note for note in store.notes)


def test_a_crop_is_a_part_of_the_whole(tmp_path: Path) -> None:
    make_set(tmp_path)
    store, box = SpikeStore(tmp_path, num_bins=4), PlaneRegion(3, 5, 10, 20)
    np.testing.assert_array_equal(store.voxel(2, box), store.voxel(2)[:, 3:13, 5:25])
    packed, offset = store.packed(2, box)
    bits = np.unpackbits(packed, axis=-1, bitorder="little")[:, :, offset : offset + 20]
    np.testing.assert_array_equal(spike_to_voxel(bits, 4), store.voxel(2, box))


def test_splits_are_opened_alone_or_together(tmp_path: Path) -> None:
    train, test = make_set(tmp_path / "train"), make_set(tmp_path / "test", ("c",))
    with penstock.open(tmp_path, split="train") as store:
        assert [each.name for each in store.sequences] == ["a", "b"]
        _check_voxels(store, train)
    with penstock.open(tmp_path) as store:
        assert [each.name for each in store.sequences] == ["test/c", "train/a", "train/b"]
        _check_voxels(store, test + train)
    with pytest.raises(StoreError, match="val: no sequence with images and spike"):
        penstock.open(tmp_path, split="val")


def test_spikes_may_lie_beside_the_images(tmp_path: Path) -> None:
    made = make_sequence(
        tmp_path / "GOPRO_Large" / "train" / "s",
        blur="blur_gamma",
        spike=tmp_path / "GOPRO_Large_spike_seq" / "train" / "s" / "spike",
    )
    (made.folder / "blur").mkdir()  # the public set has blurred images without gamma, too
    with penstock.open(tmp_path, split="train") as store:
        assert store.sequences[0].blur.folder.name == "blur_gamma"
        _check_voxels(store, [made])
    assert penstock.open(tmp_path).rows == 3


def test_sequences_may_lie_below_blur_data_sharp_data_and_spike_data(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "made")
    for kind in ("blur", "sharp", "spike"):
        (tmp_path / "GOPRO" / "train" / f"{kind}_data").mkdir(parents=True)
        shutil.move(made.folder / kind, tmp_path / "GOPRO" / "train" / f"{kind}_data" / "s")
    with penstock.open(tmp_path / "GOPRO") as store:
        assert [each.name for each in store.sequences] == ["train/s"]
        _check_voxels(store, [made])


def test_one_sequence_and_links_to_folders_are_opened(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "raw" / "s")
    assert penstock.open(made.folder).rows == 3
    linked = tmp_path / "unified" / "train" / "s"
    linked.mkdir(parents=True)
    for kind in ("blur", "sharp", "spike"):
        (linked / kind).symlink_to(Path("../../../raw/s") / kind)
    with penstock.open(tmp_path / "unified", split="train") as store:
        _check_voxels(store, [made])


def test_another_spike_folder_is_opened_by_its_name(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s")
    (made.folder / "spike").rename(made.folder / "events")
    with pytest.raises(StoreError, match=r"without SEQUENCE/spike/\*\.dat"):
        penstock.open(tmp_path)
    with penstock.open(tmp_path, spike_dir="events") as store:
        _check_voxels(store, [made])


def test_names_without_a_common_stem_are_paired_in_order(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s", rows=11)
    for place, path in enumerate(sorted((made.folder / "spike").iterdir())):
        path.rename(path.with_name(f"spike{place}.dat"))  # 10 comes after 9
    with penstock.open(tmp_path) as store:
        _check_voxels(store, [made])


def test_sequences_may_differ_in_frames_and_geometry(tmp_path: Path) -> None:
    made = [
        make_sequence(tmp_path / "a"),
        make_sequence(tmp_path / "b", frames=40),
        make_sequence(tmp_path / "c", plane=(32, 24), image=(64, 48)),
    ]
    store = SpikeStore(tmp_path)
    assert [each.layout.frames for each in store.sequences] == [16, 40, 16]
    assert store.numbers("spike_vox", np.arange(6)).shape == (6, 5, 24, 32)
    assert store.voxel(7).shape == (5, 32, 24)
    np.testing.assert_array_equal(store.voxel(7), spike_to_voxel(made[2].spikes[1], 5))
    with pytest.raises(StoreError, match="the spikes of c are 32×24, those of a 24×32") as caught:
        store.numbers("spike_vox", np.array([0, 6]))
    assert "episodes=[0, 1]" in str(caught.value)
    assert any("images of 2 sizes: 48×64, 64×48" in note for note in store.notes)
    with penstock.open(tmp_path, episodes=[2, 0]) as part:
        assert part.episode_numbers is not None and part.episode_numbers.tolist() == [2, 0]
        assert part.columns["spike_vox"].shape == (5, 32, 24)


def test_sharp_images_may_be_absent_and_columns_left_out(tmp_path: Path) -> None:
    made = make_set(tmp_path)
    with penstock.open(tmp_path, columns=["spike_vox"]) as store:
        assert list(store.columns) == ["spike_vox"]
    for each in made:
        shutil.rmtree(each.folder / "sharp")
    with penstock.open(tmp_path) as store:
        assert list(store.columns) == ["blur", "spike_vox"]
        with pytest.raises(StoreError, match="has no images 'sharp'"):
            store.image_path("sharp", 0)


def test_jpeg_images_are_given_as_they_are(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s")
    for kind in ("blur", "sharp"):
        for path in (made.folder / kind).iterdir():
            pixels = cv2.imread(str(path))
            assert pixels is not None
            cv2.imwrite(str(path.with_suffix(".jpg")), pixels)
            path.unlink()
    with penstock.open(tmp_path) as store:
        assert store.columns["blur"].encoding == "jpeg"
        assert next(store.images("sharp").read([1], Scratch()))[:2].tobytes() == b"\xff\xd8"


@pytest.mark.parametrize(
    ("kind", "suffix", "reason"), [("sharp", ".png", "no sharp file"), ("spike", ".dat", "no spike file")]
)
def test_a_missing_file_is_named_or_its_row_left_out(tmp_path: Path, kind: str, suffix: str, reason: str) -> None:
    made = make_set(tmp_path)
    (made[0].folder / kind / f"000002{suffix}").unlink()
    with pytest.raises(StoreError, match="a: 000002 is missing in") as caught:
        penstock.open(tmp_path)
    assert f"a/{kind}" in str(caught.value) and "2 in" in str(caught.value) and "3 in" in str(caught.value)
    with penstock.open(tmp_path, on_missing="skip") as store:
        assert store.rows == 5 and store.episode_starts.tolist() == [0, 2, 5]
        assert any(f"1 rows left out: {reason}" in note for note in store.notes)
        assert store.spike_path(1).name == "000003.dat"


def test_a_link_that_leads_nowhere_is_a_missing_file(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s")
    path = made.folder / "spike" / "000002.dat"
    path.unlink()
    path.symlink_to(tmp_path / "gone.dat")
    with pytest.raises(StoreError, match="s: 000002 is missing in"):
        penstock.open(tmp_path)


@pytest.mark.parametrize("change", [b"", b"too long"])
def test_a_spike_file_of_another_size_is_reported_with_the_numbers(tmp_path: Path, change: bytes) -> None:
    made = make_set(tmp_path)
    path = made[1].folder / "spike" / "000011.dat"
    data = path.read_bytes()
    path.write_bytes(data + change if change else data[:-100])
    with pytest.raises(SpikeError, match=r"000011\.dat: cannot reshape") as caught:
        penstock.open(tmp_path)
    assert "16×24×32 packed, which are 1,536 bytes" in str(caught.value)
    store = SpikeStore(tmp_path, on_missing="skip")
    assert store.rows == 5 and store.skipped == {"a spike file of another size": 1}
    assert store.sequences[1].spike.names == ("000012.dat", "000013.dat")


def test_a_file_that_changes_later_is_reported_when_it_is_read(tmp_path: Path) -> None:
    make_set(tmp_path)
    with penstock.open(tmp_path) as store:
        store.spike_path(1).write_bytes(b"short")
        with pytest.raises(SpikeError, match=r"cannot reshape 5 bytes to 16×24×32 packed"):
            store.numbers("spike_vox", np.array([1]))


def test_what_is_wrong_with_a_call_is_reported(tmp_path: Path) -> None:
    make_set(tmp_path)
    with pytest.raises(SpikeError, match="17 bins of 16 frames"):
        penstock.open(tmp_path, num_bins=17)
    with pytest.raises(StoreError, match="there is no sequence 2"):
        penstock.open(tmp_path, episodes=[2])
    with pytest.raises(StoreError, match="on_missing='drop'"):
        penstock.open(tmp_path, on_missing="drop")
    with penstock.open(tmp_path) as store:
        with pytest.raises(StoreError, match="row 6 was requested, there are 6"):
            store.numbers("spike_vox", np.array([6]))
        with pytest.raises(StoreError, match="does not hold numbers"):
            store.numbers("blur", np.array([0]))
        with pytest.raises(StoreError, match="holds no images"):
            store.images("spike_vox")


def test_an_unreadable_first_image_is_named_or_its_sequence_left_out(tmp_path: Path) -> None:
    made = make_set(tmp_path)
    broken = made[0].folder / "blur" / "000001.png"
    broken.write_bytes(b"no image at all, but a text")
    with pytest.raises(ImageError, match=r"a/blur/000001\.png: neither JPEG nor PNG"):
        penstock.open(tmp_path)
    store = SpikeStore(tmp_path, on_missing="skip")
    assert [each.name for each in store.sequences] == ["b"] and store.skipped == {"the sequence cannot be read": 3}


def test_a_broken_image_does_not_hide_which_row_comes_first(tmp_path: Path) -> None:
    made = make_set(tmp_path)
    middle = made[0].folder / "blur" / "000002.png"
    middle.write_bytes(middle.read_bytes()[:100])
    store = SpikeStore(tmp_path)
    assert store.flip and "stored upside down" in store.flip_why


def test_nothing_usable_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s", rows=1)
    (made.folder / "sharp" / "000001.png").unlink()
    with pytest.raises(StoreError, match="no valid samples were found") as caught:
        penstock.open(tmp_path, on_missing="skip")
    assert "000001 is missing" in str(caught.value)


def test_ambiguous_files_are_refused_until_declared(tmp_path: Path) -> None:
    made = make_sequence(tmp_path / "s", rows=1)
    spikes = random_spikes(16, 24, 32)
    (made.folder / "spike" / "000001.dat").write_bytes(packed_bytes(spikes))
    with pytest.raises(SpikeError, match="16×24×32 packed or as"):
        penstock.open(tmp_path)
    with penstock.open(tmp_path, flip=False, **PLANE) as store:
        np.testing.assert_array_equal(store.numbers("spike_vox", np.array([0]))[0], spike_to_voxel(spikes, 5))


def test_precomputed_voxels_are_taken_and_checked(tmp_path: Path) -> None:
    made = make_set(tmp_path)
    counted = SpikeStore(tmp_path)
    for row in range(counted.rows):
        path = counted.voxel_path(row)
        path.parent.mkdir(exist_ok=True)
        np.save(path, counted.voxel(row))
    assert (tmp_path / "a" / "spike_vox" / "000001.npy").is_file()
    with penstock.open(tmp_path, voxel_dir="spike_vox") as store:
        assert store.columns["spike_vox"].dtype == "uint8"
        _check_voxels(store, made)
        np.testing.assert_array_equal(
            store.voxel(4, PlaneRegion(1, 2, 3, 4)), counted.voxel(4, PlaneRegion(1, 2, 3, 4))
        )
        np.save(store.voxel_path(1), np.zeros((5, 24, 30), np.uint8))
        with pytest.raises(StoreError, match=r"uint8 \(5, 24, 30\), \(5, 24, 32\) of 16×24×32 packed"):
            store.voxel(1)
        store.voxel_path(2).unlink()
        with pytest.raises(StoreError, match=r"000003\.npy: no such voxel file"):
            store.voxel(2)
    for row in (1, 2):
        np.save(counted.voxel_path(row), counted.voxel(row))
    with pytest.raises(StoreError, match="4 bins were asked for"):
        penstock.open(tmp_path, voxel_dir="spike_vox", num_bins=4)
    np.save(counted.voxel_path(0), counted.voxel(0).astype(np.float32))
    with penstock.open(tmp_path, voxel_dir="spike_vox") as store:
        assert store.columns["spike_vox"].dtype == "float32"


def test_a_store_is_opened_again_in_another_process_without_looking_twice(tmp_path: Path) -> None:
    make_set(tmp_path)
    store = SpikeStore(tmp_path, num_bins=3)
    again = pickle.loads(pickle.dumps(store))
    assert [each.layout for each in again.sequences] == [each.layout for each in store.sequences]
    assert again.flip_why == "declared"
    np.testing.assert_array_equal(again.voxel(5), store.voxel(5))
    assert len(pickle.dumps(store)) < 2000


def test_the_fingerprint_follows_the_files_and_the_bins(tmp_path: Path) -> None:
    make_set(tmp_path)
    store = SpikeStore(tmp_path)
    assert store.fingerprint("blur") == SpikeStore(tmp_path).fingerprint("blur")
    assert store.fingerprint("spike_vox") != SpikeStore(tmp_path, num_bins=4).fingerprint("spike_vox")
    assert store.fingerprint("spike_vox") != SpikeStore(tmp_path, flip=False).fingerprint("spike_vox")
    before = store.fingerprint("sharp")
    store.image_path("sharp", 4).write_bytes(store.image_path("sharp", 0).read_bytes())
    assert store.fingerprint("sharp") != before


def test_spike_files_without_images_are_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "data" / "spike").mkdir(parents=True)
    (tmp_path / "data" / "spike" / "one.dat").write_bytes(bytes(12_500))
    assert formats.by_directory(tmp_path) is None and formats.by_directory(tmp_path / "data") is None
    make_sequence(tmp_path / "set" / "s")
    found = formats.by_directory(tmp_path / "set")
    assert found is not None and found.kind == "spike"
