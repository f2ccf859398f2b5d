"""A recording of another package, in one file and with one registration: opened, inspected, converted and loaded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src import formats
from penstock._src.cli import main
from penstock._src.recordings.recovery.report import DamageLog, RecoveryReport
from penstock.errors import NotARecording
from tests.conversion import bags, datasets
from tests.formats import toy_recording
from tests.formats.installed import install, penstock_with

ROWS = 30
TIMES = [1_700_000_000_000_000_000 + number * 33_333_333 for number in range(ROWS)]
CAMERA, STATE = "observation.images.cam", "observation.arm"
TOPICS = {"/cam/image": "foxglove.CompressedImage", "/arm": "Arm"}


def messages() -> list[tuple[int, str, Any]]:
    found: list[tuple[int, str, Any]] = []
    for number, time_ns in enumerate(TIMES):
        stamp = {"sec": time_ns // 10**9, "nsec": time_ns % 10**9}
        image = base64.b64encode(bags.jpeg(number)).decode()
        found.append((time_ns, "/cam/image", {"timestamp": stamp, "frame_id": "c", "data": image, "format": "jpeg"}))
        found.append((time_ns, "/arm", {"position": [number, number / 2]}))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return toy_recording.write(tmp_path / "a.toylog", TOPICS, messages())


@pytest.fixture
def known() -> Iterator[None]:
    formats.register(toy_recording.FORMAT)
    yield
    formats.unregister(toy_recording.FORMAT.kind)


FEATURES = {CAMERA: {"topic": "/cam/image"}, STATE: {"topic": "/arm", "field": "position[0:2]"}}


def test_it_is_opened(path: Path, known: None) -> None:
    with recordings.open(path) as recording:
        assert recording.kind == "toylog" and [topic.count for topic in recording.topics] == [ROWS, ROWS]
        assert recording.times_ns(recording.topic("/arm")).tolist() == TIMES
    renamed = path.rename(path.with_name("log.bin"))
    with recordings.open(renamed) as recording:
        assert recording.kind == "toylog"


def test_without_the_plugin_it_is_no_recording(path: Path) -> None:
    with pytest.raises(NotARecording):
        recordings.open(path)


def test_it_is_inspected_and_checked(path: Path, known: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "toy log" in out and "/cam/image" in out and "30.0 Hz" in out
    assert main(["inspect", str(path), "--fields", "/arm"]) == 0
    assert "position" in capsys.readouterr().out
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counted"]["messages"] == 2 * ROWS


def test_it_is_found_in_a_directory(path: Path, known: None) -> None:
    toy_recording.write(path.with_name("b.toylog"), TOPICS, messages())
    assert [each.name for each in recordings.find([path.parent])] == ["a.toylog", "b.toylog"]


def test_it_is_converted_and_loaded(path: Path, known: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = penstock.convert(path, out, features=FEATURES, video="copy")
    assert (report.exit_code, report.frames) == (0, ROWS)
    assert datasets.samples(out, CAMERA) == [bags.jpeg(number) for number in range(ROWS)]
    assert datasets.values(out, STATE).tolist() == [[number, number / 2] for number in range(ROWS)]
    assert datasets.problems(out, full=True) == []
    store = penstock.open(out)
    with penstock.Loader(store, batch_size=10, shuffle=False, output="numpy", memory="512MiB") as loader:
        states = np.concatenate([np.copy(batch[STATE]) for batch in loader])
    assert states[:, 0].tolist() == list(range(ROWS))


def test_what_is_cut_is_reported_and_cannot_be_recovered(
    path: Path, known: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(path.read_bytes()[:-3])
    assert main(["doctor", str(path)]) == 1
    assert "the last message is cut" in capsys.readouterr().err
    assert main(["recover", str(path), str(tmp_path / "new.toylog")]) == 2
    assert "is a toy log, which cannot be recovered" in capsys.readouterr().err
    assert not (tmp_path / "new.toylog").exists()


def test_an_installed_package_is_known_to_the_processes_of_a_conversion(path: Path, tmp_path: Path) -> None:
    place = install(tmp_path / "site", "toy-log", log="tests.formats.toy_recording:FORMAT")
    toy_recording.write(path.with_name("b.toylog"), TOPICS, messages())
    inputs = [str(path), str(path.with_name("b.toylog"))]
    words = ["--jobs", "2", "--memory", "1500MiB", f'features={{"{CAMERA}": {{"topic": "/cam/image"}}}}']
    done = penstock_with(place, "convert", *inputs, str(tmp_path / "out"), *words)
    assert done.returncode == 0, done.stderr
    assert datasets.info(tmp_path / "out")["total_frames"] == 2 * ROWS


def test_its_own_recover_is_asked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formats.register(replace(toy_recording.FORMAT, recover=f"{__name__}:recover_toy"))
    try:
        report = recordings.recover(path, path.with_name("new.toylog"), keep_suspect=True)
        assert (report.kind, report.notes) == ("toylog", ("False True",))
        assert main(["recover", str(path), str(path.with_name("new.toylog")), "--overwrite"]) == 0
        assert "True False" in capsys.readouterr().out
    finally:
        formats.unregister(toy_recording.FORMAT.kind)


def recover_toy(broken: Path, new: Path, *, overwrite: bool, keep_suspect: bool) -> RecoveryReport:
    log = DamageLog(notes=[f"{overwrite} {keep_suspect}"])
    return log.report(source=str(broken), output=str(new), kind="toylog", bytes_in=1, bytes_out=1)
