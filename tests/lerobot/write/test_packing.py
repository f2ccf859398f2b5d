"""A closed data set keeps a small journal: its episodes packed, their statistics in meta/episodes alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.output import copy_for_append
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.write.videos import table_from, table_state
from penstock._src.media.mp4.writer import SampleTable
from penstock.errors import DataSetCorrupt, PenstockError
from tests.lerobot.faults import BreakingDisk
from tests.lerobot.making import digests
from tests.lerobot.stories import undisturbed, write_all

LENGTHS = (5, 3, 9, 4, 6)
KEPT = "penstock/episodes"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests(undisturbed(tmp_path_factory.mktemp("whole") / "set", LENGTHS))


def test_penstock_keeps_less_than_2_kb_per_episode(tmp_path: Path) -> None:
    features = (Feature("observation.state", "float32", (16,)), Feature("action", "float32", (16,)))
    note = {"input": 3, "state": {"next_row": 30}, "outcome": {"streams": {f"topic {n}": [0.1] * 20 for n in range(9)}}}
    with DataSetWriter(tmp_path / "set", fps=30, features=features, fsync=False) as writer:
        for number in range(300):
            values = np.random.default_rng(number).normal(size=(2, 16)).astype(np.float32)
            with writer.episode(rows=2, task="walk") as episode:
                episode.write_rows({"observation.state": values, "action": values})
                episode.commit(note=note, grouped=True)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "set/penstock").iterdir()}
    journal = sizes.pop("journal.jsonl")
    print(f"journal {journal / 300:,.0f} bytes per episode")
    assert journal < 300 * 500
    records = list(Journal.read(tmp_path / "set").episodes())
    assert [record.episode_index for record in records] == list(range(300))
    assert all(record.stats is None and record.note == note for record in records)


def test_a_packed_journal_says_the_same_and_is_packed_once(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:3])
    lines = (root / "penstock/journal.jsonl").read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["record"]["type"] for line in lines]
    assert kinds == ["header", "packed", "closed"]
    writer = DataSetWriter.resume(root, fsync=False)
    assert [record.note for record in writer.journal.episodes()] == [{"number": n} for n in range(3)]
    write_all(writer, LENGTHS[3:], 3)
    writer.close()
    after = (root / "penstock/journal.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:3] == lines  # whoever appends keeps what was there
    kinds = [json.loads(line)["record"]["type"] for line in after[3:]]
    assert kinds == ["reopened", "packed", "closed"]
    assert not (root / KEPT).exists()


@pytest.mark.parametrize("moment", ["moved", "reopened", "written"])
def test_killed_while_a_closed_data_set_is_opened_again(tmp_path: Path, whole: dict[str, str], moment: str) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:3])
    if moment == "moved":  # before the journal says that it is open again
        os.replace(root / "meta/episodes", root / KEPT)
        (root / "meta/info.json").unlink()
    elif moment == "reopened":
        DataSetWriter.resume(root, fsync=False).abandon()
    else:
        writer = DataSetWriter.resume(root, fsync=False)
        write_all(writer, LENGTHS[3:4], 3)
        writer.abandon()
    writer = DataSetWriter.resume(root, fsync=False)
    write_all(writer, LENGTHS[writer.episodes :], writer.episodes)
    writer.close()
    assert digests(root) == whole


def test_a_table_that_was_left_behind_is_not_taken_for_the_new_one(tmp_path: Path, whole: dict[str, str]) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:2])
    old = shutil.copytree(root / "meta/episodes", tmp_path / "old")
    writer = DataSetWriter.resume(root, fsync=False)
    write_all(writer, LENGTHS[2:4], 2)
    writer.close()
    shutil.copytree(old, root / KEPT)  # killed after the journal was written, before the directory was removed
    copy_for_append(root, tmp_path / "copy", fsync=False)
    for continued in (root, tmp_path / "copy"):
        writer = DataSetWriter.resume(continued, fsync=False)
        write_all(writer, LENGTHS[4:], 4)
        writer.close()
        assert digests(continued) == whole and not (continued / KEPT).exists()


def test_a_disk_that_breaks_while_a_closed_data_set_grows(
    tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    source = undisturbed(tmp_path / "source", LENGTHS[:4])

    def grow(root: Path) -> None:
        writer = DataSetWriter.resume(root)
        try:
            write_all(writer, LENGTHS[writer.episodes :], writer.episodes)
            writer.close()
        except BaseException:
            writer.abandon()
            raise

    counting = BreakingDisk()
    shutil.copytree(source, tmp_path / "counted")
    with pytest.MonkeyPatch.context() as patch:
        counting.install(patch)
        grow(tmp_path / "counted")
    for at in range(0, counting.calls, 2):
        root = Path(shutil.copytree(source, tmp_path / "set"))
        with pytest.MonkeyPatch.context() as patch:
            BreakingDisk(at, for_good=True).install(patch)
            with pytest.raises(PenstockError):
                grow(root)
        grow(root)
        assert digests(root) == whole, at
        shutil.rmtree(root)


def test_statistics_that_are_gone_are_named(tmp_path: Path) -> None:
    root = undisturbed(tmp_path / "set", LENGTHS[:2])
    writer = DataSetWriter.resume(root, fsync=False)
    shutil.rmtree(root / KEPT)
    with pytest.raises(DataSetCorrupt, match="statistics of episode 0 are missing"):
        writer.close()


def test_the_table_of_samples_comes_back_from_a_state() -> None:
    offsets = np.array([40, 40, 47, 60, 62, 62, 70], np.int64)
    sizes = np.array([7, 7, 5, 2, 8, 8, 1], np.uint32)
    keys = np.array([1, 1, 0, 0, 1, 1, 0], np.uint8)
    shifts = np.array([0, 2, -1, -1, 0, 0, 0], np.int32)
    table = SampleTable(offsets, sizes, keys, 71, shifts)
    found = table_from(table_state(table), 71)
    assert (found.shifts == shifts).all()
    assert (found.offsets == offsets).all() and (found.sizes == sizes).all() and (found.keys == keys).all()
    with pytest.raises(DataSetCorrupt, match="beyond byte 70"):
        table_from(table_state(table), 70)
