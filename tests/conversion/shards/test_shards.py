"""Shards and their commit: the data set of one machine, however the work was shared and whatever was killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.commit import output
from penstock._src.conversion.shards import take
from penstock._src.conversion.shards.commit import commit
from penstock._src.conversion.shards.directory import DirectoryShardStorage, shards_of
from penstock._src.conversion.shards.plan import read_plan
from penstock._src.conversion.shards.shard_storage import new_attempt
from penstock._src.conversion.shards.write import GroupRequest, write_group
from penstock._src.conversion.stop import StopSignals
from penstock._src.lerobot import layout
from penstock.errors import DataSetError, Interrupted, OutputExists, RecordingError, UsageError
from tests.conversion import datasets
from tests.conversion.sharing import FILES, FRAMES, SETTINGS, StopAfter, local, make_recordings, run_shard, share_out
from tests.faults.jobs import contents, leftovers
from tests.stores.hdf5_files import aloha

KEYS = ("observation.images.cam_h", "observation.images.cam_l")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_recordings(tmp_path_factory.mktemp("shards") / "in")


@pytest.fixture(scope="module")
def whole(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversion on one machine, with the same rule for files."""
    out = tmp_path_factory.mktemp("shards-whole") / "out"
    penstock.convert(**local(sources, out))
    return out


@pytest.mark.parametrize("shards", [1, 2, 3, 9])
def test_any_number_of_shards_gives_the_bytes_of_one_machine(
    shards: int, sources: list[Path], whole: Path, tmp_path: Path
) -> None:
    report = share_out(sources, tmp_path / "out", shards)
    assert contents(tmp_path / "out") == contents(whole)
    assert report.exit_code == 0 and report.frames == sum(FRAMES) and report.inputs == len(FRAMES)
    assert leftovers(tmp_path / "out") == []
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_rows_and_frames_are_those_of_a_run_without_groups(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    penstock.convert(**local(sources, tmp_path / "plain", files={"data_mb": 1}))
    assert datasets.table(whole).equals(datasets.table(tmp_path / "plain"))
    for key in KEYS:
        assert datasets.samples(whole, key) == datasets.samples(tmp_path / "plain", key)
    assert len(datasets.video_files(whole, KEYS[0])) == 5 > len(datasets.video_files(tmp_path / "plain", KEYS[0]))
    assert [len(path.parent.name) for path in datasets.video_files(whole, KEYS[0])] == [len("chunk-000")] * 5


def test_no_byte_of_a_video_is_copied(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_shard(sources, out, "0/1")
    written = {path.stat().st_ino for path in shards_of(out).rglob("*.mp4")}
    commit(out)
    assert {path.stat().st_ino for path in out.rglob("*.mp4")} == written


def test_a_system_without_second_names_moves_the_videos(
    sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_shard(sources, tmp_path / "out", "0/1")
    monkeypatch.setattr(layout.os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links")))
    commit(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("more", [{"video": "h264"}, {"video": "images"}, {"output": "v2.1", "video": "copy"}])
def test_encoded_videos_images_in_rows_and_v21_are_the_same_too(
    more: dict[str, Any], sources: list[Path], tmp_path: Path
) -> None:
    share_out(sources[:3], tmp_path / "out", 2, **more)
    penstock.convert(**local(sources[:3], tmp_path / "local", **more))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


def test_a_local_run_follows_the_rule_with_several_processes_and_after_a_stop(
    sources: list[Path], whole: Path, tmp_path: Path
) -> None:
    penstock.convert(**local(sources, tmp_path / "jobs", jobs=2))
    assert contents(tmp_path / "jobs") == contents(whole)
    for rows in (3, 15, 31):
        out = tmp_path / f"stopped{rows}"
        with pytest.raises(Interrupted):
            penstock.convert(**local(sources, out), progress=StopAfter(rows))
        penstock.convert(**local(sources, out, resume=True))
        assert contents(out) == contents(whole)


def test_hdf5_files_are_shared_too(tmp_path: Path) -> None:
    files = [tmp_path / f"episode_{number}.hdf5" for number in range(5)]
    for number, path in enumerate(files):
        aloha(path, seed=number)
    share_out(files, tmp_path / "out", 2, split_episodes=False)
    penstock.convert(**local(files, tmp_path / "local", split_episodes=False))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


def test_data_sets_with_tasks_of_their_own_are_shared_too(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    penstock.convert(**local(sources[:2], tmp_path / "other", task="unfold"))
    sets, plain = [whole, tmp_path / "other"], {"split_episodes": False, "fps": None, "task": "unspecified"}
    share_out(sets, tmp_path / "merged", 2, **plain)
    report = penstock.convert(**local(sets, tmp_path / "alone", **plain))
    assert contents(tmp_path / "merged") == contents(tmp_path / "alone")
    assert report.frames == sum(FRAMES) + sum(FRAMES[:2])


# What is missing, and what does not fit


def test_commit_names_what_is_missing_and_the_command(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataSetError, match="no shard of a conversion is there"):
        commit(out)
    run_shard(sources, out, "1/3")
    with pytest.raises(DataSetError, match=r"\d of 5 groups are missing, \d inputs: .*run_") as refused:
        commit(out)
    assert f"run `penstock convert in {out} --shard 0/3`, and so on for the shards 2" in str(refused.value)
    run_shard(sources, out, "0/1")  # any division finishes it
    commit(out)
    assert commit(out).frames == sum(FRAMES)  # twice is once


def test_a_shard_takes_part_in_one_conversion_only(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_shard(sources, out, "0/2", task="other")
    with pytest.raises(DataSetError, match="task: 'fold' instead of 'other'"):
        run_shard(sources, out, "1/2")
    with pytest.raises(DataSetError, match=r"run_6.bag is not given any more"):
        run_shard(sources[:-1], out, "1/2", task="other")
    run_shard(sources, out, "1/2", overwrite=True)
    run_shard(sources, out, "0/2", overwrite=True)
    commit(out)
    assert contents(out) == contents(whole)
    with pytest.raises(OutputExists):
        run_shard(sources, out, "0/2")
    share_out(sources[:2], out, 1, overwrite=True)
    assert len(datasets.video_files(out, KEYS[0])) == 2


def test_an_input_that_changed_since_the_plan_is_refused(sources: list[Path], tmp_path: Path) -> None:
    mine = [Path(shutil.copy(path, tmp_path)) for path in sources[:4]]
    run_shard(mine, tmp_path / "out", "0/2")
    for path in mine:
        path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataSetError, match=r"has changed .* since the conversion was shared out"):
        run_shard(mine, tmp_path / "out", "1/2")


@pytest.mark.parametrize("word", ["3/3", "-1/3", "1", "a/b", "0/0"])
def test_a_shard_is_counted_from_zero(word: str, sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="numbered from 0"):
        run_shard(sources, tmp_path / "out", word)


# What fails and what is killed


def test_an_input_that_fails_is_left_out_as_on_one_machine(sources: list[Path], tmp_path: Path) -> None:
    mine = [Path(shutil.copy(path, tmp_path)) for path in sources]
    mine[1].write_bytes(b"#ROSBAG V2.0\nno bag at all")
    mine[3].write_bytes(mine[3].read_bytes()[:300_000])
    with pytest.raises(RecordingError, match="--keep-going leaves out"):
        run_shard(mine, tmp_path / "out", "0/1")
    with pytest.raises(DataSetError, match="are missing"):
        commit(tmp_path / "out")
    shared = share_out(mine, tmp_path / "out", 2, keep_going=True)
    alone = penstock.convert(**local(mine, tmp_path / "local", keep_going=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")
    assert dict(shared.failed) == dict(alone.failed) and dict(shared.lost) == dict(alone.lost)
    assert shared.exit_code == alone.exit_code == 3


def test_the_first_whole_attempt_counts_and_a_late_one_changes_nothing(
    sources: list[Path], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_shard(sources, out, "0/1")
    plan = read_plan(DirectoryShardStorage(out))
    assert plan is not None
    work, group = shards_of(out) / plan.work, plan.groups[1]
    (work / "000002.killed" / "videos").mkdir(parents=True)  # what a killed attempt leaves
    request = GroupRequest(
        group,
        plan.found(group),
        plan.spec,
        str(out),
        new_attempt(plan.work, group.number),
        2**30,
        1,
        False,
        False,
        7,
        node="late",
    )
    before = contents(work / "000001")
    result = write_group(GroupRequest.from_json(request.to_json()), StopSignals(), lambda *_: None)
    assert contents(work / "000001") == before and result.node != "late"
    assert not (shards_of(out) / request.attempt).exists()
    commit(out)
    assert contents(out) == contents(whole) and leftovers(out) == []


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", range(5))
def test_a_commit_that_was_killed_goes_on(
    moment: int, sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, calls = tmp_path / "out", take.join, []
    run_shard(sources, out, "0/1")

    def killed(*words: Any) -> Any:
        for each in real(*words):
            calls.append(each)
            if len(calls) > moment:
                raise Killed
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(take, "join", killed)
        with pytest.raises(Killed):
            commit(out)
    assert not out.exists()
    commit(out)
    assert contents(out) == contents(whole) and leftovers(out) == []


def test_a_commit_that_was_killed_after_a_video_came_goes_on(
    sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, taken = tmp_path / "out", layout.take_over, []
    run_shard(sources, out, "0/1")

    def killed(source: Path, target: Path) -> None:
        real(source, target)
        taken.append(target)
        if len(taken) == 5:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(layout, "take_over", killed)
        with pytest.raises(Killed):
            commit(out)
    assert output.partial_of(out).exists()
    commit(out)
    assert contents(out) == contents(whole) and leftovers(out) == []


def test_a_commit_that_was_killed_at_its_end_is_whole(
    sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_shard(sources, out, "0/1")
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryShardStorage, "remove_all", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            commit(out)
    assert leftovers(out) == [f"{out.name}.penstock-shards"]
    commit(out)
    assert contents(out) == contents(whole) and leftovers(out) == []


# More inputs


def test_shards_append_to_a_data_set(sources: list[Path], tmp_path: Path) -> None:
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    share_out(sources[:3], shared, 2)
    report = share_out(sources[2:], shared, 2, append=True)
    penstock.convert(**local(sources[:3], alone))
    penstock.convert(**local(sources[3:], alone, append=True))
    assert contents(shared) == contents(alone)
    assert report.inputs == len(FRAMES) and datasets.problems(shared, full=True) == []
    assert datasets.table(shared).column("index").to_pylist() == list(range(sum(FRAMES)))
    with pytest.raises(UsageError, match="nothing to append"):
        run_shard(sources, shared, "0/2", append=True)


def test_shards_append_to_a_data_set_without_groups(sources: list[Path], tmp_path: Path) -> None:
    for out in (tmp_path / "shared", tmp_path / "alone"):
        penstock.convert(**local(sources[:3], out, files={"data_mb": 1}))
    share_out(sources[3:], tmp_path / "shared", 2, append=True, files={"data_mb": 1})
    penstock.convert(**local(sources[3:], tmp_path / "alone", append=True, files={"data_mb": 1}))
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_shards_of_a_data_set_that_changed_meanwhile_are_refused(sources: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(**local(sources[:3], out))
    run_shard(sources[4:], out, "0/1", append=True)
    penstock.convert(**local(sources[3:4], out, append=True))
    with pytest.raises(DataSetError, match="has changed since its shards were planned"):
        commit(out)


# The command


def test_shards_that_start_at_once_agree_on_one_plan(sources: list[Path], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "convert",
        *map(str, sources),
        str(out),
        "task=fold",
        "split_episodes=true",
        "rosbag.chunk_size=5",
        "fps=30",
    ]
    words += [f"files.{key}={value}" for key, value in FILES.items()]
    command = [sys.executable, "-m", "penstock", *words]
    started = [subprocess.Popen([*command, "--shard", f"{number}/3"]) for number in range(3)]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert len(list(shards_of(out).glob("plan.json*"))) == 1
    commit(out)
    assert contents(out) == contents(whole)


def test_the_command_line_shares_and_commits(
    sources: list[Path],
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = str(tmp_path / "out")
    words = [
        "convert",
        str(sources[0].parent),
        out,
        "task=fold",
        "split_episodes=true",
        "rosbag.chunk_size=5",
        "fps=30",
    ]
    words += [f"files.{key}={value}" for key, value in FILES.items()]
    assert set(SETTINGS) == {"task", "split_episodes", "rosbag", "fps"}
    monkeypatch.setattr("sys.argv", ["penstock", *words, "--shard", "0/2"])
    assert main([*words, "--shard", "0/2"]) == 0
    assert f"penstock commit {out}" in capsys.readouterr().out
    assert main(["commit", out]) == 1
    assert "--shard 1/2`; then commit again" in capsys.readouterr().err
    assert main([*words, "--shard", "1/2", "--json"]) == 0
    assert main(["commit", out, "--json"]) == 0
    assert contents(Path(out)) == contents(whole)
    assert main([*words, "--shard", "1/2", "--on", "ray"]) == 2


def test_a_shard_of_a_complete_data_set_is_resumed_as_on_one_machine(
    sources: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    words = ["convert", *map(str, sources[:2]), out, "task=fold", "split_episodes=true", "fps=30", "--shard", "0/1"]
    assert main([*words, "--resume"]) == main(["commit", out]) == 0
    assert main(words) == 1 and main([*words, "--append"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, "--resume"]) == main([*words, "--append", "--resume"]) == 0
    assert "is complete already: nothing to do" in capsys.readouterr().err
    words[1:3] = [str(sources[2])]
    assert main([*words, "--resume"]) == 1
    assert "was made with other inputs" in capsys.readouterr().err
