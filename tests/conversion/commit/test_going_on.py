"""Going on with what is committed: from another directory, after a failed input, beside an older data set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock.errors import DataSetError, Interrupted, OutputExists, RecordingError, UsageError
from tests.conversion.bags import CAM_H, STATE, robot, write
from tests.conversion.datasets import episodes
from tests.faults.jobs import call, contents, leftovers, make_sources
from tests.faults.test_fault_23_other_job import StopAfter

WHOLE_EPISODES = 5


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    (tmp_path / "day1").mkdir()
    return make_sources(tmp_path / "day1")


def another(directory: Path, name: str = "later.bag", seconds: float = 0.3) -> Path:
    return write(directory / name, robot(seconds, hz=50, seed=9, width=32, height=24))


def stopped(words: dict[str, object], rows: int = 20) -> None:
    with pytest.raises(Interrupted):
        penstock.convert(**words, progress=StopAfter(rows))  # type: ignore[arg-type]


def test_an_overwrite_that_was_ended_is_resumed_and_replaces_the_old_one(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(**call(sources, out, task="old"))
    stopped(call(sources, out, task="new", overwrite=True))
    assert episodes(out)[0]["tasks"] == ["old"]
    penstock.convert(**call(sources, out, task="new", resume=True))
    assert [each["tasks"] for each in episodes(out)] == [["new"]] * WHOLE_EPISODES
    assert leftovers(out) == []


@pytest.mark.parametrize("resume", [False, True])
def test_an_append_does_not_throw_away_an_overwrite_that_was_ended(
    resume: bool, sources: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    penstock.convert(**call(sources, out, task="old"))
    stopped(call(sources, out, task="new", overwrite=True))
    with pytest.raises(OutputExists, match="3 episodes committed"):
        penstock.convert(**call([another(tmp_path)], out, append=True, resume=resume))
    penstock.convert(**call(sources, out, task="new", resume=True))
    assert episodes(out)[0]["tasks"] == ["new"]


def test_an_append_that_was_ended_is_not_thrown_away_by_another(sources: list[Path], tmp_path: Path) -> None:
    out, later = tmp_path / "out", another(tmp_path, seconds=0.7)
    penstock.convert(**call(sources, out))
    with pytest.raises(Interrupted) as ended:
        penstock.convert(**call([later], out, append=True), progress=StopAfter(54))
    assert "2 episodes are kept: " in str(ended.value) and "--append --resume continues" in str(ended.value)
    with pytest.raises(OutputExists, match="2 episodes committed") as refused:
        penstock.convert(**call([another(tmp_path, "other.bag")], out, append=True))
    assert "--append --resume" in str(refused.value) and "--overwrite" not in str(refused.value)
    penstock.convert(**call([later], out, append=True, resume=True))
    penstock.convert(**call([*sources, later], tmp_path / "at once"))
    assert contents(out) == contents(tmp_path / "at once")


def test_a_refused_append_says_nothing_of_resuming(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(**call(sources, out))
    misfit = write(tmp_path / "misfit.bag", robot(0.3, hz=50, width=64, height=48))
    with pytest.raises(DataSetError, match="does not fit") as refused:
        penstock.convert(**call([misfit], out, append=True))
    assert "--resume" not in str(refused.value)
    with pytest.raises(UsageError, match="holds all of these inputs") as refused_too:
        penstock.convert(**call(sources, out, append=True))
    assert refused_too.value.hint == "with --append --resume this is no error"


def test_a_job_is_resumed_from_another_directory(
    sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.chdir(sources[0].parent)
    stopped({**call([], out), "sources": [path.name for path in sources]})
    monkeypatch.chdir(tmp_path)
    report = penstock.convert(**{**call([], out, resume=True), "sources": "day1"})
    assert report.sources == tuple(os.path.join("day1", path.name) for path in sources)
    penstock.convert(**call(sources, tmp_path / "undisturbed"))
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_changed_input_is_known_under_every_spelling_of_its_path(
    sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.chdir(sources[0].parent)
    penstock.convert(**{**call([], out), "sources": [path.name for path in sources]})
    monkeypatch.chdir(tmp_path)
    sources[0].unlink()
    another(sources[0].parent, sources[0].name)
    with pytest.raises(DataSetError, match="was converted before and has changed"):
        penstock.convert(**call([sources[0]], out, append=True))


def test_an_input_that_failed_may_be_given_again(sources: list[Path], tmp_path: Path) -> None:
    """With --keep-going it was left out; that it once failed is no reason to say that it is in the data set."""
    out, whole = tmp_path / "out", sources[0].read_bytes()
    sources[0].write_bytes(whole[:100])
    report = penstock.convert(**call(sources, out, keep_going=True))
    assert report.exit_code == 3 and list(report.failed) == [str(sources[0])] and report.episodes == 3
    with pytest.raises(RecordingError, match="no topic"):
        penstock.convert(**call([sources[0]], out, append=True))
    # Another input is appended without a fault: the old failure is still told, and is none of this call.
    report = penstock.convert(**call([another(tmp_path)], out, append=True))
    assert report.exit_code == 0 and list(report.failed) == [str(sources[0])]
    report = penstock.convert(**call([sources[0]], out, append=True, keep_going=True))
    assert report.exit_code == 3 and list(report.failed) == [str(sources[0])] and report.episodes == 4
    sources[0].write_bytes(whole)
    report = penstock.convert(**call([sources[0]], out, append=True))
    assert report.exit_code == 0 and report.failed == {} and report.episodes == 6
    assert penstock.convert(**call([sources[0]], out, append=True, resume=True)).episodes == 6  # whole already


@pytest.mark.parametrize("fault", ["unreadable sidecar", "link into nowhere"])
def test_keep_going_blames_the_input_that_cannot_be_read(fault: str, sources: list[Path], tmp_path: Path) -> None:
    if fault == "unreadable sidecar":
        sources[1].with_suffix(".yaml").write_text("task: [")
    else:
        whole = sources[1].read_bytes()
        sources[1].unlink()
        sources[1].symlink_to(tmp_path / "nowhere.bag")
    words = {**call([], tmp_path / "out", keep_going=True), "sources": str(sources[0].parent)}
    stopped(words, rows=9)
    report = penstock.convert(**words, resume=True)
    assert list(report.failed) == [str(sources[1])] and report.exit_code == 3
    assert report.episodes == 3
    if fault == "link into nowhere":
        (tmp_path / "nowhere.bag").write_bytes(whole)
        assert penstock.convert(**call([sources[1]], tmp_path / "out", append=True)).episodes == WHOLE_EPISODES


def test_a_data_set_that_is_being_built_is_no_input(sources: list[Path], tmp_path: Path) -> None:
    """Killed after it was closed and before it took its place, it looks like a whole one, here among the inputs."""
    directory = sources[0].parent
    words = {**call([], directory / "out"), "sources": str(directory)}
    penstock.convert(**words)
    (directory / "out").rename(directory / "out.penstock-partial")
    report = penstock.convert(**words, resume=True)
    assert report.episodes == WHOLE_EPISODES and len(report.sources) == len(sources)


def test_a_recording_that_is_a_directory_does_not_hold_the_output(tmp_path: Path) -> None:
    recording = write(tmp_path / "run.mcapdir", robot(0.3, hz=50, width=32, height=24))
    with pytest.raises(UsageError, match="lies in the input"):
        penstock.convert(recording, recording / "out")
    assert sorted(path.suffix for path in recording.iterdir()) == [".mcap", ".yaml"]


def test_that_few_inputs_fit_the_budget_at_once_is_reported_once(sources: list[Path], tmp_path: Path) -> None:
    words = {**call(sources, tmp_path / "out", video="h264"), "jobs": 4, "memory": "330MiB"}
    report = penstock.convert(**words)
    named = [note.partition(":")[0] for note in report.notes if " at a time" in note]
    assert named == ["1 instead of 3 inputs at a time"]


def test_an_append_that_names_no_features_follows_the_data_set(sources: list[Path], tmp_path: Path) -> None:
    features = {"observation.images.h": {"topic": CAM_H}, "observation.state": {"topic": STATE}}
    penstock.convert(**call(sources[:2], tmp_path / "out", features=features))
    penstock.convert(**call(sources[2:], tmp_path / "out", append=True))
    penstock.convert(**call(sources, tmp_path / "at once", features=features))
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")
    with pytest.raises(DataSetError, match=r"features\.action is new"):
        more = {**features, "action": {"topic": "/joint_cmd"}}
        penstock.convert(**call([another(tmp_path)], tmp_path / "out", append=True, features=more))
