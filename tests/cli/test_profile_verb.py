"""penstock profile: table and verdict of a saved run, as text and JSON; pages and traces; a loader made again."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import profile
from penstock._src.cli import main
from penstock._src.profile.stats import Snapshot
from tests.lerobot import making
from tests.profile.runs import image, loader_told, run

DECODING = {"03b_image_decode": 100.0, "03c_fetch_bytes": 10.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run whose loader nobody can make again."""
    description = loader_told(
        kind="penstock.Loader", stores=[{"path": "arrays", "kind": "arrays", "open_options": None}]
    )
    return run(61, 38, DECODING, loader=description).save(tmp_path / "run.json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a real loader over a real data set, as `save` wrote it."""
    place = tmp_path_factory.mktemp("profiled")
    making.make(place / "set", (12, 7, 9))
    gc.collect()  # loaders that other tests forgot are no subjects of this run
    profile.enable()
    profile.reset()
    with (
        penstock.open(place / "set") as store,
        penstock.Loader(store, batch_size=2, image_size=(24, 32), view="off", output="numpy", threads=1) as loader,
    ):
        for _ in range(2):
            for _ in loader:
                continue
        return profile.save(place / "run.json")


def called(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main(["profile", *map(str, words)]) == code
    return capsys.readouterr().out


def test_the_table_and_the_verdict_are_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = called(capsys, saved)
    assert "03b_image_decode" in text
    assert "input-bound: the step takes 61 ms, 38 ms of it waiting for data" in text
    assert "note: the run's loader cannot be made again here" in text


def test_chinese_words(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = called(capsys, saved, "--lang", "zh")
    assert "性能分析统计" in text and "数据受限" in text
    assert "注: 无法在此重建这次运行的加载器" in text and "note:" not in text


@pytest.fixture
def gone(tmp_path: Path) -> Path:
    """A run whose data was moved."""
    stores = [{"path": str(tmp_path / "moved"), "kind": "ALOHA episodes", "open_options": {}, "weight": 1.0}]
    description = loader_told(kind="penstock.Loader", images=[image("a"), image("b")], stores=stores)
    return run(61, 38, DECODING, loader=description).save(tmp_path / "run.json")


def test_data_that_was_moved_is_reported_once_and_with_its_place(
    gone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = called(capsys, gone, "--try", code=1)
    assert f"nothing was tried: the data is not there (looked for {gone.parent / 'moved'})" in text
    assert "a view in RAM may make it shorter" in text and "no change" not in text
    assert text.count("note:") == 2
    assert "nothing was tried" not in called(capsys, gone)  # and without --try it is no failure


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_window_needs_a_length(seconds: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["profile", str(saved), "--try", f"--seconds={seconds}"])
    assert caught.value.code == 2 and "--seconds" in capsys.readouterr().err


def test_json_is_one_object(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(called(capsys, saved, "--json", "--try"))
    assert found["verdict"]["bound"] == "input" and found["verdict"]["stage"] == "03b_image_decode"
    assert found["verdict"]["trial"] is None and any("not at hand" in note for note in found["verdict"]["notes"])
    assert {each["name"] for each in found["stages"]} == set(DECODING)


def test_a_page_and_a_trace_are_written(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called(capsys, saved, "--html", tmp_path / "run.html", "--trace", tmp_path / "run.trace.json")
    assert "the step takes 61 ms, 38 ms of it waiting" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "traceEvents" in json.loads((tmp_path / "run.trace.json").read_text(encoding="utf-8"))


def test_a_run_without_steps_has_a_table_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = replace(run(61, 38, DECODING), steps=Snapshot().steps).save(tmp_path / "bare.json")
    text = called(capsys, bare)
    assert "03b_image_decode" in text and "no step was recorded" in text
    assert json.loads(called(capsys, bare, "--json"))["verdict"] is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"penstock_profile": 99}', '{"penstock_profile": 2, "spans": 3}'])
def test_what_is_no_run_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(text)
    assert main(["profile", str(tmp_path / "run.json")]) == 2
    assert "run.json" in capsys.readouterr().err


def saved_with(description: dict[str, Any], folder: Path) -> Path:
    """A run whose file tells this of its loader."""
    path = folder / "run.json"
    whole = {**run(61, 38, DECODING).to_dict(), "loaders": [description]}
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


@pytest.mark.parametrize("description", [{}, {"kind": "penstock.Loader"},
                                  {"kind": "torch.utils.data.DataLoader", "workers": 2}])  # fmt: skip
def test_a_damaged_description_of_the_loader_costs_only_the_loader(
    description: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved_with(description, tmp_path)
    text = called(capsys, path)
    assert "input-bound: the step takes 61 ms" in text and "note: the run's loader" in text


def test_nonsense_about_the_images_is_a_damaged_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description = loader_told(images=[{"column": "cam"}], stores=[])
    saved_with(description, tmp_path)
    assert main(["profile", str(tmp_path / "run.json")]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_the_loader_is_made_again_measured_and_its_best_change_tried(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(called(capsys, trained, "--json"))
    assert {"now", "read", "ram"} <= set(found["verdict"]["calibration"])
    assert found["notes"] == []
    # The same run with a long wait: a change is recommended, and tried.
    whole = json.loads(trained.read_text(encoding="utf-8"))
    for point in whole["steps"]["series"]:
        point[2:] = [500_000_000, 499_000_000]  # beside it nothing that was measured matters
    waits = trained.with_name("waits.json")
    waits.write_text(json.dumps(whole), encoding="utf-8")
    found = json.loads(called(capsys, waits, "--try", "--seconds", "0.01", "--json"))["verdict"]
    assert found["best"] in ("view in RAM", "view on disk", "threads", "scaled decode")
    assert found["trial"]["fix"] == found["best"] and len(found["trial"]["windows_ms"]) == 3
