"""Crops of images and spike plane show the same field, whatever the scale; flips and rotations go to both alike."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.load.clips import crop
from penstock._src.load.clips.crop import Planes, planes_for, turned
from penstock._src.load.sampling.permutation import key_of
from penstock._src.media.spike.layout import PlaneRegion
from penstock.errors import ConfigError


def test_the_usual_planes_are_cropped_exactly() -> None:
    planes = planes_for((720, 1280), (360, 640), 256, "seq")
    assert planes.plane_crop == (128, 128) and planes.may_transpose
    for sample in range(200):
        found = planes.crop(key_of(0, 0, sample), True)
        assert (found.image.top, found.image.left) == (2 * found.plane.top, 2 * found.plane.left)
        assert 0 <= found.plane.top <= 232 and 0 <= found.plane.left <= 512


def test_a_scale_of_396_to_720_works() -> None:
    planes = planes_for((720, 1280), (396, 640), 256, "seq")
    assert planes.plane_crop == (141, 128)  # 140.8
    assert not planes.may_transpose
    assert {planes.crop(key_of(sample), True).symmetry for sample in range(100)} == {0, 1, 2, 3}


def test_all_positions_and_all_eight_symmetries_come() -> None:
    planes = planes_for((8, 12), (4, 6), 4, "seq")
    found = [planes.crop(key_of(7, sample), True) for sample in range(2000)]
    assert {(each.plane.top, each.plane.left) for each in found} == {(y, x) for y in range(3) for x in range(5)}
    assert {each.symmetry for each in found} == set(range(8))


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_both_crops_lie_within_their_planes_and_have_one_centre(
    image_px: int, plane_px: int, data: st.DataObject
) -> None:
    crop_px = data.draw(st.integers(1, image_px))
    plane_crop_px = crop.crop_length(image_px, plane_px, crop_px)
    assert 1 <= plane_crop_px <= plane_px
    sides = image_px, crop_px, plane_px, plane_crop_px
    count = crop.positions(*sides)
    assert count >= 1
    fine_px, coarse_px = max(image_px, plane_px), min(image_px, plane_px)
    for chosen in (0, count // 2, count - 1):
        image_start, plane_start = crop.starts(*sides, chosen)
        assert 0 <= image_start <= image_px - crop_px and 0 <= plane_start <= plane_px - plane_crop_px
        image_centre = (image_start + Fraction(crop_px, 2)) / image_px
        plane_centre = (plane_start + Fraction(plane_crop_px, 2)) / plane_px
        if crop_px * plane_px * 2 >= image_px:  # else a crop of one spike pixel shows more than the images do
            most = Fraction(1, 2) / fine_px + Fraction(1, 4) / coarse_px
            assert abs(image_centre - plane_centre) <= most
        if image_px % plane_px == 0 and crop_px % (image_px // plane_px) == 0:
            assert image_start * plane_px == plane_start * image_px  # exactly the same field
            assert crop_px * plane_px == plane_crop_px * image_px


@given(st.integers(0, 2**63), st.sampled_from([True, "crop", False]))
def test_equal_keys_give_equal_crops(key: int, augment: crop.Augment) -> None:
    planes = planes_for((18, 32), (9, 16), (6, 8), "seq")
    assert planes.crop(key, augment) == planes.crop(key, augment)
    if augment is not True:
        assert planes.crop(key, augment).symmetry == 0


def test_without_augmentation_the_centre_is_taken() -> None:
    planes = planes_for((720, 1280), (360, 640), 256, "seq")
    assert planes.crop(key_of(3), False) == crop.Crop(
        PlaneRegion(232, 512, 256, 256), PlaneRegion(116, 256, 128, 128), 0
    )


def test_no_crop_takes_the_whole() -> None:
    planes = planes_for((720, 1280), (360, 640), None, "seq")
    assert planes == Planes((720, 1280), (360, 640), (720, 1280), (360, 640))
    assert planes.crop(key_of(3), True).image == PlaneRegion(0, 0, 720, 1280)


def test_a_crop_that_does_not_fit_says_what_does() -> None:
    with pytest.raises(ConfigError, match=r"GOPR_1: a crop of 256×256 .* 180×320") as error:
        planes_for((180, 320), (90, 160), 256, "GOPR_1")
    assert "CROP_SIZE: 180" in str(error.value)


def test_a_symmetry_moves_image_and_plane_alike() -> None:
    image = np.arange(64).reshape(1, 8, 8)
    plane = image[:, ::2, ::2]
    seen = set()
    for symmetry in range(8):
        both = turned(image, symmetry), turned(plane, symmetry)
        # Of every 2×2 block of the image one pixel is that of the plane.
        blocks = both[0].reshape(1, 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(1, 4, 4, 4)
        assert (blocks == both[1][..., None]).any(axis=3).all()
        seen.add(both[0].tobytes())
    assert len(seen) == 8


def test_a_tensor_is_turned_as_an_array_is() -> None:
    torch = pytest.importorskip("torch")
    values = np.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    for symmetry in range(8):
        found = turned(torch.from_numpy(values), symmetry)
        np.testing.assert_array_equal(found.numpy(), turned(values, symmetry))
