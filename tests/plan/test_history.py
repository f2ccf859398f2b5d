"""How good predictions were is kept, bounded, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock._src.cli import main
from penstock._src.plan import history
from penstock._src.plan.history import RunOutcome, read_history, record, summaries


def test_runs_come_back_in_order(tmp_path: Path) -> None:
    for number in range(3):
        record(RunOutcome("convert", f"run {number}", 110, 100), tmp_path)
    assert [each.what for each in read_history(tmp_path)] == ["run 0", "run 1", "run 2"]
    with (tmp_path / "predictions.jsonl").open("a") as file:
        file.write('{"half a li\n[]\n{"kind": "x"}\n')
    assert len(read_history(tmp_path)) == 3


def test_the_newest_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 10)
    for number in range(25):
        record(RunOutcome("convert", str(number), 1, 1), tmp_path)
    found = [int(each.what) for each in read_history(tmp_path)]
    assert found == list(range(found[0], 25)) and 5 <= len(found) <= 10


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record(RunOutcome("convert", "run", 1, 1), tmp_path / "file")
    assert read_history(tmp_path / "file") == []


def test_errors_are_reported_by_kind() -> None:
    runs = [RunOutcome("convert", "a", 110, 100), RunOutcome("convert", "b", 80, 100)]
    runs.append(RunOutcome("load", "c", 100, 100, 90, 100))
    convert, load = summaries(runs)
    assert convert.runs == 2 and convert.memory_error == pytest.approx(0.15)
    assert convert.worst_memory_error == pytest.approx(0.2) and convert.rate_error is None
    assert load.rate_error == pytest.approx(0.1)
    assert "predicted 110 B (+10%)" in runs[0].line and "samples/s" in runs[2].line


@pytest.mark.parametrize(
    ("predicted", "text"),
    [(150, "predicted 150 B (between the two)"), (220, "(+10% of 200 B)"), (90, "(-10% of 100 B)")],
)
def test_a_line_names_the_figure_that_a_prediction_is_compared_with(predicted: int, text: str) -> None:
    line = RunOutcome("load", "run", predicted, 200, counted_bytes=100).line
    assert line.startswith("peak memory 100 B counted, 200 B with all of the process, predicted ")
    assert line.endswith(text)


def test_a_conversion_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.stores import hdf5_files as files

    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    files.aloha(tmp_path / "episode_0.hdf5", 6)
    assert main(["plan", "--history"]) == 0
    assert "no run was predicted" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "episode_0.hdf5"), str(tmp_path / "out"), "fps=10", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (outcome,) = read_history(tmp_path / "cache")
    assert (outcome.predicted_peak_bytes, outcome.peak_bytes) == (
        report["predicted_peak_bytes"],
        report["peak_rss_bytes"],
    )
    assert main(["plan", "--history"]) == 0
    assert "convert" in capsys.readouterr().out


def test_the_plan_of_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.stores import hdf5_files as files

    files.aloha(tmp_path / "episode_0.hdf5", 6)
    assert main(["plan", str(tmp_path / "episode_0.hdf5"), "--convert", "fps=10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["video"] for each in found["options"]] == ["copy", "h264", "av1"]
    assert all(each["peak_bytes"] > 0 for each in found["options"])
    assert main(["plan", str(tmp_path / "episode_0.hdf5"), "fps=10", "--memory", "20MiB"]) == 1
    assert "not possible" in capsys.readouterr().out


def test_what_cannot_be_converted_at_all_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.bag").write_text("no recording")
    assert main(["plan", str(tmp_path / "words.bag")]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("not a recording as its name says") == 1 and not shown.out


def test_the_video_that_was_asked_for_is_the_one_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.stores import hdf5_files as files

    files.aloha(tmp_path / "episode_0.hdf5", 6)
    words = ["plan", str(tmp_path / "episode_0.hdf5"), "--convert", "fps=10", "--gpu-memory", "16GiB"]
    words += ["--model-params", "110M"]
    assert main([*words, "video=hevc", "--memory", "1GiB", "--html", str(tmp_path / "plan.html")]) == 0
    shown = capsys.readouterr().out
    assert "video=hevc fps=10 --memory 1GiB" in shown and "GPU " in shown
    assert "encoded as hevc, crf " in shown and "copied" not in shown
    assert "then           penstock plan datasets/episode_0 --batch-size 64" in shown
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "video=hevc" in page and "110M parameters" in page
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["asked"] == "copy" and found["largest_batch_size"] > 0 and "video=copy" in found["commands"][0]


def test_the_output_to_run_is_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.lerobot import making

    monkeypatch.chdir(tmp_path)
    making.make(tmp_path / "datasets/run", (4, 5))
    outputs = []
    for _ in range(3):
        assert main(["plan", "datasets/run", "--convert", "--json"]) == 0
        convert, plan = json.loads(capsys.readouterr().out)["commands"]
        outputs.append(convert.split()[3])
        assert f"penstock plan {outputs[-1]} " in plan
        assert main(convert.split()[1:]) == 0
        capsys.readouterr()
    assert outputs == ["datasets/run_copy", "datasets/run_copy_2", "datasets/run_copy_3"]


def test_the_history_as_json_has_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    record(RunOutcome("load", "a", 110, 120, 50.0, 40.0, counted_bytes=100, waited=0.5), tmp_path)
    assert main(["plan", "--history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kinds"][0]["rate_error"] == pytest.approx(0.25) and found["runs"][0]["waited"] == 0.5
