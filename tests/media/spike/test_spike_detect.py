"""Which layout a file has, and why: by size, values, folder and image; two readings are refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.media.spike.detect import find_layout
from penstock._src.media.spike.files import image_beside, read_rows, read_spikes
from penstock._src.media.spike.intensity import spike_to_tfi, spike_to_tfp
from penstock._src.media.spike.layout import SpikeLayout, SpikeSettings
from penstock._src.media.spike.voxel import spike_to_voxel
from penstock.errors import SpikeError
from tests.media.spikes import packed_bytes, random_spikes, scene, spikes_of, write_png

REAL = Path(__file__).parents[3] / ".." / "shared" / "data" / "spike" / "200_part1_key_id151.dat"


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def gopro(tmp_path: Path) -> Path:
    """As large as 88 packed frames of 360×640, and as 10 frames of 396×640 bytes."""
    return _write(tmp_path / "000001.dat", np.random.default_rng(0).bytes(2_534_400))


def test_values_above_1_are_packed_bits(gopro: Path) -> None:
    layout, why = find_layout(gopro)
    assert layout == SpikeLayout("packed", 360, 640, 88)
    assert "2,534,400 bytes with values above 1 are 88×360×640 packed" in why
    assert "public GoPro-spike set" in why
    named = find_layout(gopro, name_hint="GOPR0372_11_00")
    assert named[0] == layout and "as GOPR0372_11_00 says (11 images of 8 frames)" in named[1]


def test_the_same_bytes_declared_as_bytes_are_ten_frames_in_bins_of_two(gopro: Path) -> None:
    frames = read_spikes(gopro, layout="uint8", height=396, width=640, frames=10)
    assert frames.shape == (10, 396, 640)
    pairs = frames.reshape(5, 2, 396, 640).astype(np.int64).sum(1)
    np.testing.assert_array_equal(spike_to_voxel(frames, num_bins=5), pairs)


@pytest.mark.parametrize(("images", "n_bytes"), [(7, 1_612_800), (11, 2_534_400), (13, 2_995_200)])
def test_every_size_of_the_public_set_is_known(tmp_path: Path, images: int, n_bytes: int) -> None:
    path = _write(tmp_path / "a.dat", np.random.default_rng(0).bytes(n_bytes))
    assert find_layout(path)[0] == SpikeLayout("packed", 360, 640, images * 8)
    assert "says" in find_layout(path, name_hint=f"GOPR0001_{images:02}_00")[1]


def test_the_folder_decides_between_readings(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", np.random.default_rng(0).bytes(28_800 * 72))
    assert find_layout(path, name_hint="REDS_09_01")[0] == SpikeLayout("packed", 360, 640, 72)
    with pytest.raises(SpikeError, match="72×360×640 packed or as 288×180×320 packed") as caught:
        find_layout(path)
    assert "layout=packed height=360 width=640" in str(caught.value)
    layout, why = find_layout(path, SpikeSettings(height=360, width=640), "GOPR0001_11_00")
    assert layout.frames == 72 and "though GOPR0001_11_00 would have 88 frames" in why


def test_bytes_of_0_and_1_are_one_per_pixel(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", random_spikes(7, 250, 400).tobytes())
    layout, why = find_layout(path)
    assert layout == SpikeLayout("uint8", 250, 400, 7) and "of 0 and 1" in why
    path = _write(tmp_path / "b.dat", random_spikes(10, 396, 640).tobytes())
    with pytest.raises(SpikeError, match="11×360×640 uint8 or as 44×180×320 uint8 or as 10×396×640 uint8"):
        find_layout(path)


def test_a_file_of_zeros_has_no_values_that_tell(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", bytes(12_500 * 8))
    with pytest.raises(SpikeError, match="8×250×400 packed or as 1×250×400 uint8"):
        find_layout(path)
    assert find_layout(path, SpikeSettings(layout="packed"))[0].frames == 8


@pytest.mark.parametrize("flip", [False, True])
def test_an_image_of_the_scene_reports_the_plane_and_which_row_comes_first(tmp_path: Path, flip: bool) -> None:
    image = scene(60, 80)
    path = _write(tmp_path / "a.dat", packed_bytes(spikes_of(image, 40), flip))
    beside = write_png(tmp_path / "a.png", image, (120, 160))
    assert image_beside(path) == str(beside)
    layout, why = find_layout(path, image=beside)  # 120×160, 60×80 and 30×40 fit
    assert layout == SpikeLayout("packed", 60, 80, 40, flip)
    assert "by the image" in why and ("stored upside down" in why) is flip
    np.testing.assert_array_equal(read_spikes(path), spikes_of(image, 40))


def test_a_file_of_a_sequence_is_read_by_its_folder_and_its_image(tmp_path: Path) -> None:
    image = scene(60, 80)
    sequence = tmp_path / "GOPR0001_05_00"
    for kind in ("blur", "spike"):
        (sequence / kind).mkdir(parents=True)
    path = _write(sequence / "spike" / "000001.dat", packed_bytes(spikes_of(image, 40), True))
    write_png(sequence / "blur" / "000001.png", image, (120, 160))
    np.testing.assert_array_equal(read_spikes(path), spikes_of(image, 40))


@given(st.integers(1, 40_000), st.integers(0, 255), st.sampled_from(["", "GOPR0372_01_00", "a_2_b"]))
def test_a_layout_has_the_bytes_of_the_file_or_is_refused(n_bytes: int, value: int, name: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes([value]) * n_bytes)
        file.flush()
        for settings in (None, SpikeSettings("packed"), SpikeSettings(width=32, frames=5), SpikeSettings("uint8", 7)):
            try:
                layout, why = find_layout(file.name, settings, name)
            except SpikeError as error:
                assert error.hint and file.name in error.message
            else:
                assert layout.n_bytes == n_bytes and str(layout) in why


def test_without_an_image_that_shows_it_rows_stay_as_they_are(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", packed_bytes(random_spikes(9, 60, 80), True))
    settings = SpikeSettings(height=60, width=80)
    layout, why = find_layout(path, settings)
    assert not layout.flip and "flip=true turns them" in why
    layout, why = find_layout(path, settings, image=write_png(tmp_path / "a.png", scene(60, 80)))
    assert not layout.flip and "does not show which comes first" in why
    assert find_layout(path, SpikeSettings(height=60, width=80, flip=True))[0].flip


def test_two_of_three_settings_give_the_third(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", np.random.default_rng(0).bytes(1_612_800))
    layout = find_layout(path, SpikeSettings("uint8", width=640, frames=10))[0]
    assert layout == SpikeLayout("uint8", 252, 640, 10)
    assert find_layout(path, SpikeSettings(height=360, frames=56))[0].width == 640


def test_a_wrong_size_is_reported_with_what_is_there_and_what_would_fit(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.dat", np.random.default_rng(0).bytes(28_800 * 87 + 5))
    with pytest.raises(SpikeError, match=r"a\.dat: 2,505,605 bytes are not a whole number of frames") as caught:
        find_layout(path)
    assert "height=… width=…" in str(caught.value)
    with pytest.raises(SpikeError, match="cannot reshape 2,505,605 bytes to 88×360×640 packed") as caught:
        read_rows(path, SpikeLayout("packed", 360, 640, 88))
    assert "which are 2,534,400 bytes: the file has 87 whole frames and 5 bytes" in str(caught.value)
    whole = _write(tmp_path / "b.dat", np.random.default_rng(0).bytes(1_612_800))
    with pytest.raises(SpikeError, match="cannot reshape 1,612,800 bytes to 10×396×640 uint8") as caught:
        find_layout(whole, SpikeSettings("uint8", 396, 640, 10))
    assert "it would fit 56×360×640 packed" in str(caught.value)


def test_an_empty_file_and_words_that_are_no_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpikeError, match="is empty"):
        find_layout(_write(tmp_path / "a.dat", b""))
    with pytest.raises(SpikeError, match="cannot be opened"):
        read_spikes(tmp_path / "none.dat")
    with pytest.raises(SpikeError, match="layout='bits' is not a layout"):
        read_spikes(tmp_path / "a.dat", layout="bits")
    with pytest.raises(SpikeError, match="height='360'"):
        SpikeSettings(height="360")  # type: ignore[arg-type]
    with pytest.raises(SpikeError, match="no whole bytes"):
        find_layout(_write(tmp_path / "b.dat", b"ab"), SpikeSettings("packed", 3, 5))


@pytest.mark.skipif(not REAL.is_file(), reason="the shared data are not here")
def test_a_real_recording_looks_like_its_ground_truth() -> None:
    import cv2

    layout, why = find_layout(REAL, image=image_beside(REAL))
    assert layout == SpikeLayout("packed", 250, 400, 301, flip=True)
    assert "stored upside down" in why
    spikes = read_spikes(REAL)
    truth = cv2.imread(str(REAL).replace(".dat", "_gt.png"), cv2.IMREAD_GRAYSCALE)
    assert truth is not None

    def likeness(image: np.ndarray) -> float:
        return float(np.corrcoef(image.reshape(-1), truth.reshape(-1))[0, 1])

    assert likeness(spike_to_tfp(spikes)) > 0.985
    assert likeness(spike_to_tfi(spikes)) > 0.90
    assert find_layout(REAL)[0] == SpikeLayout("packed", 250, 400, 301)  # nothing shows which row comes first
