"""Fault 15: names with '/', '..', NUL, emoji, 300 characters or <script>: safe names, and none replaces another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock._src.recordings.ros1.writer import BagWriter
from penstock.errors import DataSetError
from tests.conversion import bags, datasets, topics
from tests.conversion.topics import spoken

HOSTILE = (
    "/cam/../../../etc/passwd",
    "/..",
    "/cam\x00era",
    "/🤖",
    "/😀",
    "/" + "a" * 300,
    "/" + "a" * 299 + "b",
    "/<script>alert(1)</script>",
    "/cam era",
    "/Cam_era",
    "C:\\cam|*?",
    "/\x1b[31mred",
    "/.hidden./",
    "",
)
TIMES = bags.times(20, 0.5)


def files(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*")]


def safe(name: str) -> bool:
    parts = name.split("/")
    return (
        all(part not in ("..", ".") and len(part.encode()) <= 255 for part in parts)
        and name.isascii()
        and name.isprintable()
        and not set(name) & set('<>:"|?*\\')
    )


def test_15_cameras_of_any_name_become_files_of_safe_names(tmp_path: Path) -> None:
    tape = [message for n, name in enumerate(HOSTILE) for message in bags.camera(name, TIMES, seed=n)]
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "in" / "out", timeline=HOSTILE[0])
    assert (report.frames, report.lost) == (10, {})
    cameras = {key: entry["topics"][0] for key, entry in report.features.items() if "images" in key}
    assert sorted(cameras.values()) == sorted(HOSTILE)
    assert all(safe(name) for name in files(tmp_path))
    assert {path.split("/")[0] for path in files(tmp_path)} == {"run.bag", "in"}
    for key, name in cameras.items():  # each holds its own images, not those of a namesake
        expected = [bags.jpeg(n, seed=HOSTILE.index(name)) for n in range(10)]
        assert datasets.samples(tmp_path / "in" / "out", key) == expected
    assert datasets.problems(tmp_path / "in" / "out", full=True) == []


def test_15_numbers_of_any_name_become_columns_of_safe_names(tmp_path: Path) -> None:
    tape = bags.camera(bags.CAM_H, TIMES) + bags.joints(bags.STATE, TIMES)
    many = [
        note for name in HOSTILE for note in spoken(name, {n / 20: float(n) for n in range(10)}, "std_msgs/msg/Float64")
    ]
    report = penstock.convert(topics.write(tmp_path / "run.bag", tape, many), tmp_path / "out")
    keys = [key for key in report.features if key not in ("observation.state", "observation.images.cam_h")]
    assert len(keys) == len(HOSTILE)
    assert all(safe(key) and "/" not in key for key in keys)
    assert len({key.casefold() for key in keys}) == len(keys)
    assert datasets.problems(tmp_path / "out") == []


def test_15_joints_and_tasks_keep_their_names_as_data(tmp_path: Path) -> None:
    names = ("../../x", "nul\x00", "🤖", "<script>alert(1)</script>", "j" * 300)
    state = bags.messages(bags.STATE, TIMES, lambda n: bags.Joints(names, bags.angles(n, 5)))
    tape = bags.camera(bags.CAM_H, TIMES) + state
    task = "</script><script>alert('🤖')</script>\x00" + "t" * 300
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", task=task)
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["features"]["observation.state"]["names"] == list(names)
    assert datasets.episodes(tmp_path / "out")[0]["tasks"] == [task]
    assert all(safe(name) for name in files(tmp_path / "out"))


@pytest.mark.parametrize("key", ["../x", "a/b", "nul\x00", "a" * 300, "<script>", "..", "index"])
def test_15_a_name_that_the_user_wrote_is_refused_with_a_better_one(tmp_path: Path, key: str) -> None:
    path = bags.write(tmp_path / "run.bag", bags.camera(bags.CAM_H, TIMES))
    with pytest.raises(DataSetError, match="feature name") as caught:
        penstock.convert(path, tmp_path / "out", features={key: bags.CAM_H})
    assert "use for example" in (caught.value.hint or "")
    assert {name for name in files(tmp_path) if not name.startswith("out.")} == {"run.bag"}


def test_15_a_recording_of_any_name_is_read(tmp_path: Path) -> None:
    name = "🤖 <script> ..bag" + "x" * 180 + ".bag"
    path = bags.write(tmp_path / name, bags.camera(bags.CAM_H, TIMES))
    assert penstock.convert(path, tmp_path / "out").frames == 10


def test_15_a_type_of_any_name_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "run.bag") as bag:
        odd = bag.add_topic("/odd", "<script>/..", "float64 x\n", "0" * 32)
        text, md5 = bags._store(1).generate_msgdef("sensor_msgs/msg/CompressedImage", ros_version=1)
        camera = bag.add_topic(bags.CAM_H, "sensor_msgs/CompressedImage", text, md5)
        for message in bags.camera(bags.CAM_H, TIMES):
            bag.write(camera, message.time_ns, bags.payload(message, 1))
            bag.write(odd, message.time_ns, b"\0" * 8)
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "out")
    assert report.frames == 10
    assert any("/odd left out: " in note for note in report.notes)
