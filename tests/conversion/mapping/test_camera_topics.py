"""Which topics become cameras: colour and depth told apart by what they hold, one of twins, short names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from penstock import recordings
from penstock._src.conversion.mapping.topics import MappedTopics, map_topics
from penstock._src.conversion.settings import read_settings
from tests.conversion import bags
from tests.conversion.bags import CAM_H, STATE, Jpeg, Raw
from tests.media import depths

RAW = "/cam_h/depth/image_raw"
PACKED, SHOWN = f"{RAW}/compressedDepth", f"{RAW}/compressed"


def plane(encoding: str, samples: int = 2) -> Callable[[int], Raw]:
    def content(number: int) -> Raw:
        return Raw(bytes([number % 200]) * (6 * 8 * samples), 6, 8, encoding, 8 * samples)

    return content


def png(values: str = "16UC1") -> Callable[[int], Jpeg]:
    pack = depths.packed_png if values == "16UC1" else depths.packed_inverse
    pixels: Any = depths.millimetres() if values == "16UC1" else depths.metres()
    return lambda number: Jpeg(pack(pixels), f"{values}; compressedDepth png")


def topic(name: str, content: Callable[[int], Any], hz: float = 30) -> bags.Tape:
    return bags.messages(name, bags.times(hz, 1.0), content)


def mapped(path: Path, *tapes: bags.Tape, **asked: Any) -> MappedTopics:
    tape = [message for each in tapes for message in each]
    number = len(list(path.iterdir()))
    with recordings.open(bags.write(path / f"run{number}.bag", tape)) as recording:
        return map_topics(recording, read_settings(None, (), asked))


def features_of(found: MappedTopics) -> dict[str, str]:
    return {
        key.removeprefix("observation.images."): each.sources[0].topic
        for key, each in found.settings.features.items()
        if "images" in key
    }


def test_depth_is_reported_by_its_encoding_and_named_after_its_camera(tmp_path: Path) -> None:
    found = mapped(
        tmp_path,
        topic("/cam_l/aligned/image_raw", plane("16UC1")),
        topic("/cam_r/depth/image_rect_raw", plane("32FC1", 4)),
        topic("/cam_b/depth/image", plane("mono16")),
        topic("/thermal/image_raw", plane("mono16")),
        topic(PACKED, png()),
        bags.robot(),
    )
    assert features_of(found) == {
        "cam_h": CAM_H,
        "cam_l": bags.CAM_L,
        "thermal": "/thermal/image_raw",
        "cam_l_aligned_depth": "/cam_l/aligned/image_raw",
        "cam_r_depth": "/cam_r/depth/image_rect_raw",
        "cam_b_depth": "/cam_b/depth/image",
        "cam_h_depth": PACKED,
    }
    assert found.settings.timeline == "/thermal/image_raw" or found.settings.timeline == CAM_H


def test_of_twins_the_one_that_is_exact_and_cheap_is_taken(tmp_path: Path) -> None:
    found = mapped(tmp_path, bags.camera(CAM_H, bags.times(30, 1)), topic(RAW, plane("16UC1")), topic(PACKED, png()))
    assert features_of(found) == {"cam_h": CAM_H, "cam_h_depth": PACKED}
    assert any(f"{RAW} left out: {PACKED} is the same depth" in note for note in found.notes)


def test_floats_are_taken_raw_since_their_compressed_twin_was_quantised(tmp_path: Path) -> None:
    colour = bags.camera(CAM_H, bags.times(30, 1))
    found = mapped(tmp_path, colour, topic(RAW, plane("32FC1", 4)), topic(PACKED, png("32FC1")))
    assert features_of(found)["cam_h_depth"] == RAW
    assert any(f"{PACKED} left out: {RAW}" in note for note in found.notes)


def test_a_jpeg_of_a_depth_topic_is_no_camera_beside_the_depth_itself(tmp_path: Path) -> None:
    colour = bags.camera(CAM_H, bags.times(30, 1))
    shown = bags.camera(SHOWN, bags.times(30, 1))
    found = mapped(tmp_path, colour, shown, topic(PACKED, png()))
    assert features_of(found) == {"cam_h": CAM_H, "cam_h_depth": PACKED}
    assert any(SHOWN in note and "left out" in note for note in found.notes)
    alone = mapped(tmp_path, colour, shown)
    assert features_of(alone) == {"cam_h": CAM_H, "cam_h_depth": SHOWN}
    assert any(f"{SHOWN} has ordinary images" in note for note in alone.notes)


def test_depth_that_is_off_is_left_out_and_named(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.camera(SHOWN, bags.times(30, 1))
    found = mapped(tmp_path, tape, topic("/cam_l/aligned/image_raw", plane("16UC1")), depth="off")
    assert features_of(found) == {"cam_h": CAM_H}
    (note,) = [note for note in found.notes if "depth left out" in note]
    assert SHOWN in note and "/cam_l/aligned/image_raw" in note


def test_two_depth_topics_of_one_camera_keep_their_whole_names(tmp_path: Path) -> None:
    found = mapped(
        tmp_path,
        bags.camera("/camera/color/image_raw/compressed", bags.times(30, 1)),
        topic("/camera/depth/image_rect_raw", plane("16UC1")),
        topic("/camera/aligned_depth_to_color/image_raw", plane("16UC1")),
    )
    assert features_of(found) == {
        "camera": "/camera/color/image_raw/compressed",
        "camera_depth": "/camera/depth/image_rect_raw",
        "aligned_depth_to_color": "/camera/aligned_depth_to_color/image_raw",
    }
    found = mapped(
        tmp_path, topic("/camera/depth/image", plane("16UC1")), topic("/camera/depth/image_raw", plane("16UC1"))
    )
    assert set(features_of(found)) == {"camera_depth_image", "camera_depth_image_raw"}


def test_a_depth_topic_with_few_messages_does_not_cost_the_rows_of_the_others(tmp_path: Path) -> None:
    colour = bags.camera(CAM_H, bags.times(30, 1))
    found = mapped(tmp_path, colour, topic(RAW, plane("16UC1"), hz=3))
    assert features_of(found) == {"cam_h": CAM_H}
    assert any(f"{RAW} left out: too sparse" in note for note in found.notes)


def test_depth_alone_makes_the_timeline(tmp_path: Path) -> None:
    found = mapped(tmp_path, topic(PACKED, png()), bags.joints(STATE, bags.times(60, 1)))
    assert features_of(found) == {"cam_h_depth": PACKED} and found.settings.timeline == PACKED


def test_images_that_nothing_can_read_are_left_out_with_the_reason(tmp_path: Path) -> None:
    colour = bags.camera(CAM_H, bags.times(30, 1))
    rubbish = topic("/cam_l/color/image_raw/compressedDepth", lambda n: Jpeg(b"rubbish" * 9, "bgr8; compressedDepth"))
    found = mapped(tmp_path, colour, rubbish, topic("/cloud/normals", plane("32FC3", 12)))
    assert features_of(found) == {"cam_h": CAM_H}
    text = "\n".join(found.notes)
    assert "unknown image encoding '32FC3'" in text and "holds neither PNG nor RVL" in text
    assert str(tmp_path) not in text


def test_the_first_messages_may_be_broken(tmp_path: Path) -> None:
    tape = topic(PACKED, png()) + bags.camera(CAM_H, bags.times(30, 1))
    tape = bags.change(tape, PACKED, 0, bags.with_content(Jpeg(b"", "16UC1; compressedDepth png")))
    assert np.isin("cam_h_depth", list(features_of(mapped(tmp_path, tape))))
