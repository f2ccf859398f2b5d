"""The budget is kept, or the conversion is refused with parts that add up and with ways out that help."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.conversion.inputs import store_episode
from penstock._src.demo.recording import Script, write_recording
from penstock._src.lerobot.stats import WIDEST_VALUES
from penstock._src.plan import conversion_memory
from penstock._src.plan.conversion_memory import CameraDemand, MemoryDemand, Reads, VectorDemand, plan_memory
from penstock._src.stores.lerobot import packets
from penstock._src.system.memory import arrow_from_system
from penstock.errors import BudgetExceeded, ConfigError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, COMMAND, STATE

MIB = 2**20
CLOUD = "/cloud"


def convert(*words: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The report of a conversion in a process of its own, whose memory nothing else is in."""
    command = [sys.executable, "-m", "penstock", "convert", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **(env or {})})
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# ── long recordings of small rows ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("budget")
    made = {}
    for name, seconds in (("short", 20), ("long", 500)):
        made[name] = folder / f"{name}.bag"
        write_recording(
            made[name], Script(seconds=seconds, width=64, height=48, joint_hz=30, distinct_images=30, quality=20)
        )
    return made


@pytest.mark.parametrize("chunk_size", [0, "auto", 1000])
def test_what_more_rows_take_is_in_the_prediction(
    chunk_size: int | str, recordings: dict[str, Path], tmp_path: Path
) -> None:
    """15,000 rows in one flush took 51 MiB more than 600, and were predicted to take 11 MiB more."""
    short, long = (
        convert(recordings[name], tmp_path / name, f"rosbag.chunk_size={chunk_size}") for name in ("short", "long")
    )
    assert long["frames"] > 20 * short["frames"]
    grown = long["peak_rss_bytes"] - short["peak_rss_bytes"]
    predicted = long["predicted_peak_bytes"] - short["predicted_peak_bytes"]
    assert grown <= predicted + 6 * MIB, (grown / MIB, predicted / MIB)


def test_what_more_episodes_take_is_in_the_prediction(tmp_path: Path) -> None:
    """600 episodes took 15 MiB more than 5, and were predicted to take as much."""
    for count in (5, 600):
        with h5py.File(tmp_path / f"{count}.hdf5", "w") as file:
            for number in range(count):
                file[f"data/demo_{number}/actions"] = np.ones((4, 7))
                file[f"data/demo_{number}/obs/robot0_eef_pos"] = np.ones((4, 3))
    few, many = (convert(tmp_path / f"{count}.hdf5", tmp_path / f"{count}", "fps=20") for count in (5, 600))
    assert (few["episodes"], many["episodes"]) == (5, 600)
    grown = many["peak_rss_bytes"] - few["peak_rss_bytes"]
    predicted = many["predicted_peak_bytes"] - few["predicted_peak_bytes"]
    assert grown <= predicted + 6 * MIB, (grown / MIB, predicted / MIB)


def test_rows_that_are_read_in_pieces_make_the_same_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(2))
    features = {
        "observation.state": {"topic": STATE, "policy": "linear"},
        "action": {"topic": COMMAND, "relative_start": True},
        "observation.images.cam_h": CAM_H,
    }
    words: dict[str, Any] = {"features": features, "timeline": "fixed", "fps": 47, "rosbag": {"chunk_size": 40}}
    penstock.convert(bag, tmp_path / "whole", **words)
    monkeypatch.setattr(conversion_memory, "READ_ROWS", 7)
    penstock.convert(bag, tmp_path / "pieces", **words)
    assert datasets.digests(tmp_path / "pieces") == datasets.digests(tmp_path / "whole")


def test_arrow_takes_memory_from_the_system_only_while_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    with arrow_from_system():
        assert os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "system"
    assert "ARROW_DEFAULT_MEMORY_POOL" not in os.environ
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mimalloc")
    with arrow_from_system():
        assert os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "mimalloc"


def test_buffers_of_an_hdf5_episode_are_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited for the garbage collector: every file of a directory added its images to the peak."""
    made: list[weakref.ref[object]] = []
    begin = store_episode._StorePass.__init__

    def noted(self: store_episode._StorePass, *given: Any) -> None:
        begin(self, *given)
        made.append(weakref.ref(self._buffers))

    monkeypatch.setattr(store_episode._StorePass, "__init__", noted)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations/images/cam"] = np.random.default_rng(0).integers(0, 255, (5, 48, 64, 3), dtype=np.uint8)
        file["action"] = np.zeros((5, 2))
    gc.disable()
    try:
        penstock.convert(tmp_path / "a.h5", tmp_path / "out", fps=10)
        assert made and all(each() is None for each in made)
    finally:
        gc.enable()


def test_a_block_of_moved_frames_is_gone_before_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of every camera were held, and one was in the prediction."""
    bag = bags.write(
        tmp_path / "run.bag", [*bags.camera(CAM_H, bags.times(30, 1)), *bags.joints(STATE, bags.times(50, 1))]
    )
    penstock.convert(bag, tmp_path / "first")
    held: list[weakref.ref[memoryview]] = []
    read = packets._read

    def noted(*asked: Any) -> list[memoryview]:
        assert all(block() is None for block in held)
        found = read(*asked)
        held.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(packets, "_read", noted)
    monkeypatch.setattr(packets, "_block_end", lambda offsets, sizes, at, block_bytes: at + 1)
    report = penstock.convert(tmp_path / "first", tmp_path / "second")
    assert report.frames == len(held) > 20


# ── chunk_size=auto ──────────────────────────────────────────────────────────────────────────────────────────────────


def demand(**changed: Any) -> MemoryDemand:
    asked: dict[str, Any] = {
        "cameras": (CameraDemand(64, 48, "copy", 1000),),
        "vectors": (VectorDemand("observation.state", 64), VectorDemand("action", 64)),
        "rows": 100_000,
        "index_bytes": MIB,
        "reads": Reads(message_bytes=2000),
        "chunk_size": 1000,
        "threads": 2,
        "streams": 3,
    }
    return MemoryDemand(**{**asked, **changed})


def least(demand: MemoryDemand) -> int:
    """The smallest budget that is not refused."""
    with pytest.raises(BudgetExceeded) as refused:
        plan_memory(demand, MIB)
    return refused.value.size


def test_auto_takes_as_many_rows_as_the_budget_holds() -> None:
    small, large = least(demand(chunk_size=1000)), 1024 * MIB
    tight = plan_memory(demand(chunk_size="auto"), small)
    assert 500 < tight.rows_per_flush < 2000 and tight.peak_bytes <= small
    assert plan_memory(demand(chunk_size="auto"), large).rows_per_flush == conversion_memory.FLUSH_ROWS
    between = plan_memory(demand(chunk_size="auto"), small + 4 * MIB)
    assert tight.rows_per_flush < between.rows_per_flush < conversion_memory.FLUSH_ROWS


@pytest.mark.parametrize("chunk_size", [1, 100, 1000, 5000, 0])
def test_auto_runs_wherever_a_number_runs(chunk_size: int) -> None:
    budget = least(demand(chunk_size=chunk_size))
    assert plan_memory(demand(chunk_size="auto"), budget).peak_bytes <= budget


@pytest.mark.parametrize("chunk_size", [0, 500, 1000])
def test_row_groups_of_a_given_size_do_not_depend_on_the_budget(chunk_size: int) -> None:
    small, large = (plan_memory(demand(chunk_size=chunk_size), size * MIB) for size in (320, 4096))
    assert small.rows_per_flush == large.rows_per_flush


def test_episodes_that_are_cut_by_auto_do_not_depend_on_the_budget() -> None:
    tight, roomy = (plan_memory(demand(chunk_size="auto"), size) for size in (least(demand()), 4096 * MIB))
    assert tight.rows_per_flush < roomy.rows_per_flush
    assert tight.rows_per_split == roomy.rows_per_split == conversion_memory.FLUSH_ROWS


# ── what a refusal says ──────────────────────────────────────────────────────────────────────────────────────────────

LOADS = {
    "one flush": demand(chunk_size=0, rows=400_000),
    "encoders": demand(cameras=(CameraDemand(1280, 720, "h264", 90_000),) * 4),
    "images in the table": demand(cameras=(CameraDemand(640, 480, "images", 90_000),) * 3),
    "wide": demand(vectors=(VectorDemand("observation.cloud", 2_000_000),), rows=50),
    "auto": demand(chunk_size="auto"),
    "a large chunk": demand(reads=Reads(MIB, 64 * MIB, 40 * MIB)),
}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("budget_mib", [64, 110, 128, 140])
def test_the_parts_of_a_refusal_add_up_and_its_ways_out_help(name: str, budget_mib: int) -> None:
    asked, budget = LOADS[name], budget_mib * MIB
    try:
        plan_memory(asked, budget)
        return
    except BudgetExceeded as error:
        refused = error
    text = re.search(r"needs ([\d,]+) MiB and the budget is (\d+) MiB \(in MiB: (.*?)\)", refused.message)
    assert text is not None
    parts = [int(part.rsplit(" ", 1)[1].replace(",", "")) for part in text[3].split(" + ")]
    assert sum(parts) == int(text[1].replace(",", "")) == refused.size // MIB > budget_mib == int(text[2])
    hint = str(refused.hint)
    enough = re.search(r"--memory (\d+)MiB", hint)
    assert enough is not None
    plan_memory(asked, int(enough[1]) * MIB)
    if "rosbag.chunk_size=auto" in hint:
        plan_memory(asked._replace(chunk_size="auto"), budget)
    if "video=copy" in hint:
        copied = tuple(camera._replace(stored_as="mjpeg") for camera in asked.cameras)
        plan_memory(asked._replace(cameras=copied), budget)


def test_only_ways_out_that_help_are_named() -> None:
    def hint(name: str, budget_mib: int) -> str:
        with pytest.raises(BudgetExceeded) as refused:
            plan_memory(LOADS[name], budget_mib * MIB)
        return str(refused.value.hint)

    assert "rosbag.chunk_size=auto" in hint("one flush", 180) and "video=copy" not in hint("one flush", 180)
    assert "video=copy" in hint("encoders", 200) and "chunk_size" not in hint("encoders", 200)
    assert "video=copy" not in hint("encoders", 64) and "chunk_size" not in hint("auto", 64)
    assert "observation.cloud" in hint("wide", 128) and "ranges[0:1000]" in hint("wide", 128)


# ── a peak above the budget ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_ends_above_its_budget_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIBRARIES_BYTES", "IMAGE_LIBRARY_BYTES", "ARROW_KEPT_BYTES"):
        monkeypatch.setattr(conversion_memory, name, 0)
    bag = bags.write(tmp_path / "run.bag", bags.robot(1))
    report = penstock.convert(bag, tmp_path / "out", memory="32MiB")
    assert report.over_budget_bytes == report.peak_rss_bytes - 32 * MIB > 0
    (note,) = [note for note in report.notes if "above the budget" in note]
    assert "the budget of 32 MiB" in note and "predicted" in note
    stored = json.loads((tmp_path / "out/penstock/report.json").read_text())
    assert stored["over_budget_bytes"] == report.over_budget_bytes and note in stored["notes"]


def test_a_run_within_its_budget_says_nothing(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(1))
    report = penstock.convert(bag, tmp_path / "out", memory="8GiB")
    assert report.over_budget_bytes == 0
    assert not [note for note in report.notes if "above the budget" in note]


# ── wide features ────────────────────────────────────────────────────────────────────────────────────────────────────


def cloud(folder: Path, values: int, messages: int) -> tuple[Path, np.ndarray]:
    rows = np.random.default_rng(0).normal(3, 2, (messages, values))
    tape = bags.messages(CLOUD, bags.times(10, messages / 10), lambda n: bags.Array(tuple(rows[n])))
    return bags.write(folder / f"cloud-{values}.bag", tape), rows


def test_a_wide_feature_stays_within_its_budget_and_is_small_in_journal_and_statistics(tmp_path: Path) -> None:
    """200,000 numbers in a row took 573 MiB, 42 MB of journal and 57 MB of statistics for a prediction of 130 MiB."""
    bag, rows = cloud(tmp_path, 200_000, 3)
    out = tmp_path / "out"
    report = convert(bag, out, "--memory", "160MiB", f"features[observation.cloud]={CLOUD}", f"timeline={CLOUD}")
    assert report["frames"] == 3
    assert report["peak_rss_bytes"] <= report["predicted_peak_bytes"] + 4 * MIB <= 164 * MIB
    small = ("penstock/journal.jsonl", "meta/stats.json", "meta/info.json", "penstock/report.json")
    assert all((out / name).stat().st_size < 32_000 for name in small)
    assert sum(path.stat().st_size for path in (out / "meta/episodes").rglob("*.parquet")) < 64_000
    np.testing.assert_array_equal(datasets.values(out, "observation.cloud"), rows.astype(np.float32))
    assert datasets.problems(out, full=True) == []


def test_the_statistics_of_a_wide_feature_are_those_of_all_its_values(tmp_path: Path) -> None:
    bag, rows = cloud(tmp_path, WIDEST_VALUES + 1, 30)
    out = tmp_path / "out"
    penstock.convert(bag, out, features={"observation.cloud": CLOUD}, timeline=CLOUD)
    feature = datasets.info(out)["features"]["observation.cloud"]
    assert feature["shape"] == [WIDEST_VALUES + 1] and feature["names"] is None
    stats = json.loads((out / "meta/stats.json").read_text())["observation.cloud"]
    stored = rows.astype(np.float32)
    assert stats["min"] == [stored.min()] and stats["max"] == [stored.max()] and stats["count"] == [30]
    np.testing.assert_allclose([stats["mean"], stats["std"]], [[stored.mean()], [stored.std()]], rtol=1e-5)
    np.testing.assert_allclose(stats["q50"], [np.median(stored)], atol=0.05)
    (episode,) = datasets.episodes(out)
    assert episode["stats/observation.cloud/mean"] == stats["mean"]
    assert datasets.problems(out, full=True) == []


def test_a_feature_of_as_many_values_as_have_statistics_of_their_own(tmp_path: Path) -> None:
    bag, _ = cloud(tmp_path, WIDEST_VALUES, 4)
    penstock.convert(bag, tmp_path / "out", features={"observation.cloud": CLOUD}, timeline=CLOUD)
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.cloud"]
    assert len(stats["mean"]) == len(stats["q50"]) == WIDEST_VALUES
    assert len(datasets.info(tmp_path / "out")["features"]["observation.cloud"]["names"]) == WIDEST_VALUES


def test_a_wide_feature_too_large_for_the_budget_is_refused_with_its_width(tmp_path: Path) -> None:
    bag, _ = cloud(tmp_path, 2_000_000, 2)
    with pytest.raises(BudgetExceeded) as refused:
        penstock.convert(bag, tmp_path / "out", memory="128MiB", features={"observation.cloud": CLOUD}, timeline=CLOUD)
    assert "observation.cloud has 2,000,000 numbers in a row" in refused.value.message
    assert "features.observation.cloud.field, such as ranges[0:1000]" in str(refused.value.hint)
    part = {"observation.cloud": {"topic": CLOUD, "field": "data[0:2000000:1000]"}}
    report = penstock.convert(bag, tmp_path / "out", memory="256MiB", features=part, timeline=CLOUD)
    assert report.frames == 2


def test_wide_numbers_beside_joints_that_go_by_name_are_a_feature_of_their_own(tmp_path: Path) -> None:
    rows = np.zeros((10, WIDEST_VALUES + 1))
    tape = [
        *bags.messages(CLOUD, bags.times(10, 1), lambda n: bags.Array(tuple(rows[n]))),
        *bags.joints(STATE, bags.times(10, 1)),
    ]
    bag = bags.write(tmp_path / "run.bag", tape)
    sources = [{"topic": STATE}, {"topic": CLOUD}]
    with pytest.raises(ConfigError, match="2,049 numbers without names beside named ones"):
        penstock.convert(bag, tmp_path / "out", features={"observation.state": sources}, timeline=CLOUD)


def test_wide_rows_of_an_hdf5_file(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 5000)).astype(np.float32)
    rows[2, 7] = np.nan
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file["observations/qpos"] = rows
        file["action"] = np.zeros((6, 2))
    features = {"observation.state": "observations/qpos", "action": "action"}
    report = penstock.convert(tmp_path / "wide.h5", tmp_path / "out", fps=10, features=features)
    assert datasets.info(tmp_path / "out")["features"]["observation.state"]["names"] is None
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.state"]
    assert len(stats["mean"]) == 1 and stats["max"] == [np.nanmax(rows)]
    assert any("observation.state (all values): 1 nan" in note for note in report.notes)
    np.testing.assert_array_equal(datasets.values(tmp_path / "out", "observation.state"), rows)


def test_wide_rows_of_several_episodes_are_joined_within_what_one_flush_takes(tmp_path: Path) -> None:
    """Arrow's own count of its memory: a row group that is read at once took 28 MiB here for rows of 8 MiB."""
    with h5py.File(tmp_path / "wide.hdf5", "w") as file:
        file["observations/touch"] = np.random.default_rng(0).normal(size=(40, 100_000)).astype(np.float32)
        file["actions"], file["rewards"] = np.zeros((40, 2), np.float32), np.zeros(40, np.float32)
        file["terminals"] = np.arange(40) % 20 == 19
    program = (
        "import pyarrow as pa, penstock\n"
        "pool = pa.proxy_memory_pool(pa.system_memory_pool())\n"
        "pa.set_memory_pool(pool)\n"
        "penstock.convert('wide.hdf5', 'out', fps=20, features={'observation.touch': 'observations/touch'})\n"
        "print(pool.max_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 2 * 20 * 400_000 + 2 * MIB
    found = datasets.values(tmp_path / "out", "observation.touch")
    with h5py.File(tmp_path / "wide.hdf5") as file:
        assert np.array_equal(found, file["observations/touch"][:])


def test_a_wide_feature_of_a_data_set_or_hdf5_file_is_refused_with_words_that_help(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "wide.hdf5", "w") as file:
        file["observations/touch"] = np.zeros((4, 300_000), np.float32)
        file["observations/state"] = file["actions"] = np.zeros((4, 2), np.float32)
        file["rewards"], file["terminals"] = np.zeros(4, np.float32), np.arange(4) == 3
    features = {"observation.touch": "observations/touch", "action": "actions"}
    with pytest.raises(BudgetExceeded, match="300,000 numbers in a row") as refused:
        penstock.convert(tmp_path / "wide.hdf5", tmp_path / "out", fps=20, memory="100MiB", features=features)
    assert "features.observation.touch.field, such as [0:1000]" in str(refused.value.hint)
    penstock.convert(tmp_path / "wide.hdf5", tmp_path / "out", fps=20, features=features)
    with pytest.raises(BudgetExceeded, match="300,000 numbers in a row") as refused:
        penstock.convert(tmp_path / "out", tmp_path / "new", memory="100MiB")
    hint = str(refused.value.hint)
    assert ".field" not in hint and "'leave_out=[observation.touch]'" in hint
    penstock.convert(tmp_path / "out", tmp_path / "new", memory="120MiB", leave_out=["observation.touch"])
