"""`penstock prepare voxels`: the counts of every spike file as `.npy`, whole or absent, resumed, and never stale."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.demo.spike import SpikeScript, write_spike_set
from penstock._src.prepare.voxels import VoxelTask, prepare_voxels
from penstock._src.stores.spike.store import SpikeStore
from penstock.errors import LimitExceeded, OutputExists, OutputFailed, StoreError

SCRIPT = SpikeScript(train=2, test=1, images=4, height=48, width=64, travel_px=6)
FILES = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("voxels") / "spikes"
    write_spike_set(out, SCRIPT)
    return out


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A set of one's own."""
    shutil.copytree(made, tmp_path / "spikes")
    config = tmp_path / "spikes" / "config.yaml"
    config.write_text(config.read_text().replace(str(made), str(tmp_path / "spikes")))
    return tmp_path / "spikes"


def voxels(root: Path) -> dict[str, int]:
    """Every voxel file with the time of its last change."""
    return {str(path.relative_to(root)): path.stat().st_ctime_ns for path in root.rglob("*.npy")}


def test_voxels_from_files_equal_those_that_are_counted(root: Path) -> None:
    report = prepare_voxels([SpikeStore(root)], "spike_vox", jobs=2)
    assert report.exit_code == 0
    assert report.counted == {
        "sequences": 3, "made": FILES, "kept": 0, "stale": 0, "bytes": FILES * (128 + 5 * 24 * 32),
    }  # fmt: skip
    counted, stored = SpikeStore(root), SpikeStore(root, voxel_dir="spike_vox")
    rows = np.arange(counted.rows)
    assert stored.columns["spike_vox"].dtype == "uint8"
    np.testing.assert_array_equal(stored.numbers("spike_vox", rows), counted.numbers("spike_vox", rows))
    assert not list(root.rglob("*.part"))


def test_a_second_run_makes_nothing_and_a_stopped_one_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, calls = VoxelTask.make, []

    def stopped(task: VoxelTask) -> int:
        calls.append(task)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return make(task)

    monkeypatch.setattr(VoxelTask, "make", stopped)
    assert main(["prepare", "voxels", str(root), "--jobs", "1"]) == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.undo()
    there = voxels(root)
    assert 4 <= len(there) < FILES
    report = prepare_voxels([SpikeStore(root)], "spike_vox")
    assert (report.counted["made"], report.counted["kept"]) == (FILES - len(there), len(there))
    before = voxels(root)
    assert there.items() <= before.items()
    again = prepare_voxels([SpikeStore(root)], "spike_vox")
    assert (again.counted["made"], again.counted["kept"], voxels(root)) == (0, FILES, before)


@pytest.mark.parametrize("change", ["newer", "older", "cut", "gone"])
def test_a_voxel_whose_spike_file_changed_is_refused_and_made_again(root: Path, change: str) -> None:
    prepare_voxels([SpikeStore(root)], "spike_vox")
    spike = root / "train" / "DEMO0000_07_00" / "spike" / "000001.dat"
    voxel = spike.parents[1] / "spike_vox" / "000001.npy"
    before = voxels(root)
    if change in ("newer", "older"):
        spike.write_bytes(b"\x55" * spike.stat().st_size)
        if change == "older":  # a copy from a backup keeps its old time
            os.utime(spike, (1, 1))
    elif change == "cut":
        voxel.write_bytes(voxel.read_bytes()[:200])
    else:
        voxel.unlink()
    if change != "cut":
        words = {"newer": "older than the spike file", "older": "not the counts of the spike file", "gone": "not there"}
        with pytest.raises(
            StoreError, match=rf"of 12 voxel files 1 {words[change]}; first: .*000001\.npy\n.*penstock prepare voxels"
        ):
            SpikeStore(root, voxel_dir="spike_vox")
    report = prepare_voxels([SpikeStore(root)], "spike_vox")
    assert (report.counted["made"], report.counted["stale"]) == (1, 0 if change == "gone" else 1)
    assert {name for name, time in voxels(root).items() if before.get(name) != time} == {str(voxel.relative_to(root))}
    row = SpikeStore(root, voxel_dir="spike_vox")
    np.testing.assert_array_equal(
        row.numbers("spike_vox", np.arange(12)), SpikeStore(root).numbers("spike_vox", np.arange(12))
    )


def test_a_copied_data_set_that_lost_its_times_is_taken(root: Path) -> None:
    prepare_voxels([SpikeStore(root)], "spike_vox")
    for path in root.rglob("*.dat"):
        os.utime(path, (1, 1))
    stored = SpikeStore(root, voxel_dir="spike_vox")
    np.testing.assert_array_equal(stored.voxel(3), SpikeStore(root).voxel(3))


def test_voxels_of_others_are_not_compared(root: Path) -> None:
    prepare_voxels([SpikeStore(root)], "spike_vox")
    for path in root.rglob("penstock.json"):
        path.unlink()
    for path in root.rglob("*.npy"):
        np.save(path, np.load(path).astype(np.float32) / 2)
    assert SpikeStore(root, voxel_dir="spike_vox").voxel(3).dtype == np.float32


@pytest.mark.parametrize("words", [{"num_bins": 7}, {"flip": False}])
def test_other_bins_or_another_layout_make_all_of_them_anew(root: Path, words: dict[str, int]) -> None:
    prepare_voxels([SpikeStore(root)], "spike_vox")
    with pytest.raises(StoreError, match="12 made with other bins or another layout"):
        SpikeStore(root, voxel_dir="spike_vox", **words)  # type: ignore[arg-type]
    other = SpikeStore(root, **words)  # type: ignore[arg-type]
    report = prepare_voxels([other], "spike_vox")
    assert (report.counted["made"], report.counted["stale"]) == (FILES, FILES)
    stored = SpikeStore(root, voxel_dir="spike_vox", **words)  # type: ignore[arg-type]
    np.testing.assert_array_equal(stored.voxel(3), other.voxel(3))


@pytest.mark.parametrize("where", ["pathlib.Path.unlink", "penstock._src.prepare.voxels.write_record"])
def test_killed_between_old_and_new_voxels_no_old_one_counts_as_new(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    prepare_voxels([SpikeStore(root)], "spike_vox")

    def killed(*args: object, **words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, killed)
    with pytest.raises(KeyboardInterrupt):
        prepare_voxels([SpikeStore(root, flip=False)], "spike_vox")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="voxel files"):
        SpikeStore(root, flip=False, voxel_dir="spike_vox")
    assert prepare_voxels([SpikeStore(root, flip=False)], "spike_vox").counted["made"] == FILES


def test_voxels_of_others_are_read_and_left_alone(root: Path) -> None:
    counted = SpikeStore(root)
    for row in range(counted.rows):
        path = counted.voxel_path(row)
        path.parent.mkdir(exist_ok=True)
        np.save(path, counted.voxel(row).astype(np.float32))
    np.testing.assert_array_equal(SpikeStore(root, voxel_dir="spike_vox").voxel(2), counted.voxel(2))
    with pytest.raises(OutputExists, match="was not made by"):
        prepare_voxels([counted], "spike_vox")


def test_a_spike_file_that_cannot_be_read_is_a_counted_loss(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spike = root / "test" / "DEMO0002_07_00" / "spike" / "000002.dat"
    spike.write_bytes(spike.read_bytes()[:-100])
    assert main(["prepare", "voxels", str(root)]) == 3
    shown = capsys.readouterr().out
    assert "1 rows left out" in shown and "000002.dat: cannot reshape" in shown and "11 voxel files" in shown
    assert main(["prepare", "voxels", str(root / "config.yaml")]) == 1  # ON_MISSING: raise
    assert "000002.dat: cannot reshape" in capsys.readouterr().err
    store = SpikeStore(root, split="train")
    first = store.spike_path(0)
    first.write_bytes(first.read_bytes()[:-100])  # cut after the store was opened
    report = prepare_voxels([store], "other_vox")
    assert (report.exit_code, report.counted["made"]) == (3, 7)
    assert report.problems[0].where == str(first)


def test_a_disk_without_room_is_refused_before_anything_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(
        LimitExceeded, match=r"needs 47\.6 kB more, 1 kB are free there\n.*USE_PRECOMPUTED_VOXELS: false"
    ):
        prepare_voxels([SpikeStore(root)], "spike_vox")
    assert not list(root.rglob("spike_vox"))


def test_a_disk_that_fills_up_leaves_whole_files_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, calls = np.save, []

    def filled(file: object, counts: object, **words: object) -> None:
        calls.append(file)
        if len(calls) > 3:
            raise OSError(28, "No space left on device", "x.npy")
        save(file, counts, **words)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(np, "save", filled)
    with pytest.raises(OutputFailed, match=r"No space left on device\n.*df -h"):
        prepare_voxels([SpikeStore(root)], "spike_vox")
    monkeypatch.undo()
    assert len(voxels(root)) == 3 and not list(root.rglob("*.part"))


def test_the_command_takes_a_configuration_or_a_directory(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "voxels", str(root / "config.yaml"), "DATA.NUM_VOXEL_BINS=4", "--jobs", "1"]) == 0
    assert "12 voxel files, " in capsys.readouterr().out
    assert SpikeStore(root, voxel_dir="spike_vox", num_bins=4).voxel(0).shape == (4, 24, 32)
    assert main(["prepare", "voxels", str(root), "--num-bins", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counted"]["kept"] == FILES
    assert main(["prepare", "voxels", str(root), "--voxel-dir", "vox3", "--num-bins", "3"]) == 0
    assert (root / "train" / "DEMO0000_07_00" / "vox3" / "000000.npy").exists()
    assert main(["prepare", "voxels", str(root / "nowhere.yaml")]) == 2
    assert main(["prepare", "voxels", str(root), "--num-bins", "99"]) == 1
    assert "99 bins" in capsys.readouterr().err


def test_links_get_voxels_beside_them_and_not_in_the_raw_data(root: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    root.rename(raw)
    for path in list(raw.glob("*/*/motion.csv")):
        path.unlink()
    out = tmp_path / "linked"
    assert main(["prepare", "gopro-spike", str(raw), "--out", str(out), "--use_symlinks"]) == 0
    assert main(["prepare", "voxels", str(out)]) == 0
    assert len(voxels(out)) == FILES and not voxels(raw)
