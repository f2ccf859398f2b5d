"""`penstock inspect`, `doctor` and `bench load` of a spike data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock._src.cli import main
from tests.media.spikes import packed_bytes, random_spikes
from tests.stores.spike_sets import make_sequence, make_set


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_inspect_shows_columns_layouts_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path)
    code, found = _json(capsys, "inspect", str(tmp_path))
    assert code == 0 and found["kind"] == "spike"
    load = found["load"]
    assert (load["rows"], load["episodes"]) == (6, 2)
    assert [column["name"] for column in load["columns"]] == ["blur", "sharp", "spike_vox"]
    assert any("16×24×32 packed, upside down" in note and "by the image" in note for note in load["notes"])
    assert main(["inspect", str(tmp_path)]) == 0
    assert "spike data set" in capsys.readouterr().out


def test_inspect_shows_the_layout_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sequence(tmp_path / "s")
    path = made.folder / "spike" / "000001.dat"
    code, found = _json(capsys, "inspect", str(path))
    assert code == 0 and found["kind"] == "spike file" and found["odd"] is None
    assert (found["frames"], found["height"], found["width"], found["flip"]) == (16, 24, 32, True)
    assert main(["inspect", str(path), "height=48", "width=16", "flip=false"]) == 0
    assert "layout         16×48×16 packed\n" in capsys.readouterr().out
    path.write_bytes(bytes(1536))
    assert main(["inspect", str(path)]) == 1
    assert "and nothing tells which" in capsys.readouterr().err
    assert main(["inspect", str(path), "layout=packed", "height=24", "width=32"]) == 0
    assert "every bit is 0" in capsys.readouterr().out


def test_spike_files_beside_an_image_are_no_vqa_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sequence(tmp_path / "s")
    place = tmp_path / "loose"
    place.mkdir()
    (place / "000001.dat").write_bytes((made.folder / "spike" / "000001.dat").read_bytes())
    (place / "000001.png").write_bytes((made.folder / "blur" / "000001.png").read_bytes())
    code, found = _json(capsys, "inspect", str(place), "height=24", "width=32")
    assert (code, found["kind"], found["path"]) == (0, "spike file", str(place / "000001.dat"))
    assert main(["convert", str(place), str(tmp_path / "out"), "fps=20"]) == 1
    assert "no recording" in capsys.readouterr().err
    (place / "000001.dat").unlink()
    assert _json(capsys, "inspect", str(place))[1]["kind"] == "vqa"


def test_what_cannot_be_found_is_declared_to_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sequence(tmp_path / "s", rows=1)
    (made.folder / "spike" / "000001.dat").write_bytes(packed_bytes(random_spikes(16, 24, 32)))
    assert main(["inspect", str(tmp_path)]) == 1
    assert "16×24×32 packed" in (stderr := capsys.readouterr().err) and "layout=packed height=" in stderr
    code, found = _json(capsys, "inspect", str(tmp_path), "height=24", "width=32", "num_bins=4")
    assert code == 0 and found["load"]["columns"][2]["shape"] == [4, 24, 32]
    assert main(["inspect", str(tmp_path), "hight=24"]) == 2
    assert "height" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--suggest-config"]) == 2


def test_the_size_is_that_of_the_files_that_links_lead_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sequence(tmp_path / "raw")
    for name in ("one", "two"):
        linked = tmp_path / "sets" / name / "train" / "s"
        linked.mkdir(parents=True)
        for kind in ("blur", "sharp", "spike"):
            (linked / kind).symlink_to(made.folder / kind)
    expected = sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file())
    assert _json(capsys, "inspect", str(tmp_path / "sets" / "one"))[1]["bytes"] == expected
    assert [each["bytes"] for each in _json(capsys, "inspect", str(tmp_path / "sets"))[1]] == [expected, expected]


def test_a_whole_set_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path)
    code, found = _json(capsys, "doctor", str(tmp_path), "--full")
    assert code == 0 and found["clean"]
    assert found["counted"]["images decoded"] == 12 and found["counted"]["spike files read"] == 6


def test_every_damage_is_found_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path, rows=6)
    (tmp_path / "a" / "sharp" / "000001.png").unlink()
    (tmp_path / "a" / "spike" / "000002.dat").write_bytes(b"cut")
    (tmp_path / "a" / "spike" / "000003.dat").write_bytes(bytes(1536))
    (tmp_path / "a" / "spike" / "000004.dat").write_bytes(b"\xff" * 1536)
    image = tmp_path / "b" / "blur" / "000012.png"
    image.write_bytes(image.read_bytes()[:50])
    code, found = _json(capsys, "doctor", str(tmp_path), "--full")
    assert code == 1
    reported = {(each["severity"], Path(each["where"]).name): each["message"] for each in found["problems"]}
    told_all = " ".join(each["message"] for each in found["problems"])
    assert "no sharp file of that name" in told_all and "000002.dat: cannot reshape 3 bytes" in told_all
    assert "every bit is 0" in reported["loss", "000003.dat"] and "camera was off" in reported["loss", "000003.dat"]
    assert "every bit is 1" in reported["loss", "000004.dat"] and "over-exposed" in reported["loss", "000004.dat"]
    assert ("error", "000012.png") in reported


def test_a_set_that_cannot_be_opened_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_sequence(tmp_path / "s", rows=1)
    (made.folder / "spike" / "000001.dat").write_bytes(b"cut")
    code, found = _json(capsys, "doctor", str(tmp_path))
    assert code == 1 and "no valid samples" in found["problems"][0]["message"]
    assert "3 bytes" in found["problems"][0]["hint"]


def test_a_loader_over_it_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_set(tmp_path)
    words = ["--seconds", "0.05", "--batch-sizes", "2", "--image-size", "full", "--view", "off", "--threads", "1"]
    code, found = _json(capsys, "bench", "load", str(tmp_path), *words)
    assert code == 0 and found["store"]["kind"] == "spike clips"
