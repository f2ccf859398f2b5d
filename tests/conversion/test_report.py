"""The report: its keys, its numbers, its memory; and the budget that is refused with both numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock._src.conversion.job import NoProgress
from penstock._src.conversion.report import MemoryStage
from penstock._src.plan.conversion_memory import (
    CameraDemand,
    MemoryDemand,
    MemoryPlan,
    Reads,
    VectorDemand,
    plan_memory,
)
from penstock.errors import BudgetExceeded, ConfigError, UsageError
from tests.conversion import bags, datasets
from tests.threads import penstock_threads

# What the issue names; everything else in the report is additional.
PROMISED = ["episodes", "frames", "lost", "seconds", "bytes_in", "bytes_out", "peak_rss_bytes", "alignment", "notes"]
MIB = 2**20


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("report") / "run.bag", bags.robot(1))


def test_the_report_has_the_promised_keys_and_lies_in_the_output(bag: Path, tmp_path: Path) -> None:
    report = penstock.convert(bag, tmp_path / "out")
    tree = report.to_json()
    assert [key for key in PROMISED if key not in tree] == []
    assert json.loads((tmp_path / "out" / datasets.REPORT).read_text()) == json.loads(report.dumps())
    assert tree["episodes"] == 1 and tree["frames"] == 30 and tree["lost"] == {}
    assert tree["bytes_in"] == bag.stat().st_size
    written = sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert tree["bytes_out"] == written - (tmp_path / "out" / datasets.REPORT).stat().st_size
    assert 0 < tree["seconds"] < 600
    assert tree["penstock"] == penstock.__version__
    assert repr(report) and len(repr(report)) < 300


def test_the_alignment_names_every_stream_with_its_skew(bag: Path, tmp_path: Path) -> None:
    (aligned,) = penstock.convert(bag, tmp_path / "out").to_json()["alignment"]
    assert aligned["source"] == str(bag)
    assert set(aligned["streams"]) == {
        "observation.images.cam_h",
        "observation.images.cam_l",
        "observation.state",
        "action",
    }
    for stream in aligned["streams"].values():
        assert {"skew_ms", "repeats", "unused", "gaps"} <= set(stream)


def test_memory_is_measured_and_reported_at_start_after_each_chunk_and_at_the_end(bag: Path, tmp_path: Path) -> None:
    reported: list[MemoryStage] = []

    class Listens(NoProgress):
        def stage(self, stage: MemoryStage) -> None:
            reported.append(stage)

    report = penstock.convert(bag, tmp_path / "out", rosbag={"chunk_size": 10}, progress=Listens())
    assert [stage.at for stage in report.memory] == ["start", "row 10", "row 20", "row 30", "end"]
    assert tuple(reported) == report.memory
    assert all(stage.rss_bytes > 10 * MIB for stage in report.memory)
    # The meter reads the kernel's own high-water mark, which is never below a value seen on the way.
    assert report.peak_rss_bytes >= max(stage.rss_bytes for stage in report.memory) * 0.98


def test_a_long_run_keeps_a_bounded_number_of_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._src.conversion.job._STAGES_KEPT", 20)
    tape = bags.joints(bags.STATE, bags.times(100, 1))
    bag = bags.write(tmp_path / "run.bag", tape)
    report = penstock.convert(bag, tmp_path / "out", timeline=bags.STATE, rosbag={"chunk_size": 1})
    assert report.frames == 100 and 10 <= len(report.memory) <= 20
    assert report.memory[0].at == "start" and report.memory[-1].at == "end"


def test_progress_reaches_the_whole_and_never_goes_back(bag: Path, tmp_path: Path) -> None:
    moved: list[tuple[int, int]] = []

    class Listens(NoProgress):
        def moved(self, done_bytes: int, total_bytes: int) -> None:
            moved.append((done_bytes, total_bytes))

    other = bags.write(tmp_path / "other.bag", bags.robot(1, seed=5))
    penstock.convert([bag, other], tmp_path / "out", progress=Listens())
    total = bag.stat().st_size + other.stat().st_size
    assert {each[1] for each in moved} == {total}
    assert [done for done, _ in moved] == sorted(done for done, _ in moved)
    assert 0 < moved[-1][0] <= total


def test_no_thread_and_no_file_is_left_open(bag: Path, tmp_path: Path) -> None:
    import psutil

    threads, before = penstock_threads(), {file.path for file in psutil.Process().open_files()}
    penstock.convert(bag, tmp_path / "out", video="h264")
    assert not penstock_threads() - threads
    after = {file.path for file in psutil.Process().open_files()}
    assert not {path for path in after - before if str(tmp_path) in path or path == str(bag)}


# ── the budget ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_that_cannot_hold_the_conversion_is_refused_with_both_numbers(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded) as caught:
        penstock.convert(bag, tmp_path / "out", memory="64MiB")
    assert caught.value.limit == 64 * MIB and caught.value.size > 64 * MIB
    text = str(caught.value)
    assert "64 MiB" in text and f"{caught.value.size / MIB:.0f} MiB" in text and "--memory" in text
    assert list(tmp_path.iterdir()) == []


def test_the_budget_of_the_hint_suffices(bag: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded) as caught:
        penstock.convert(bag, tmp_path / "out", memory="64MiB")
    size = str(caught.value.hint).split("--memory ")[1].split(" ")[0]
    report = penstock.convert(bag, tmp_path / "out", memory=size)
    assert report.predicted_peak_bytes <= report.budget_bytes


@pytest.mark.parametrize("memory", ["lots", "-1", "12 parsecs"])
def test_a_budget_that_is_no_size_is_a_wrong_call(memory: str, bag: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        penstock.convert(bag, tmp_path / "out", memory=memory)


def plan(*, budget_bytes: int = 512 * MIB, **changed: object) -> MemoryPlan:
    asked: dict[str, object] = {
        "cameras": (CameraDemand(640, 480, "images", 90_000),),
        "vectors": (VectorDemand("observation.state", 16), VectorDemand("action", 16)),
        "rows": 100_000,
        "index_bytes": MIB,
        "reads": Reads(message_bytes=MIB // 8),
        "chunk_size": 1000,
        "threads": 4,
    }
    return plan_memory(MemoryDemand(**{**asked, **changed}), budget_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk_size", [0, 1000, "auto"])
def test_the_row_groups_of_a_data_set_do_not_depend_on_the_memory(chunk_size: int | str) -> None:
    rows = 5000 if chunk_size else 100
    small, large = (plan(chunk_size=chunk_size, rows=rows, budget_bytes=size * MIB) for size in (256, 4096))
    assert small.rows_per_flush == large.rows_per_flush
    assert small.peak_bytes <= 256 * MIB


def test_images_in_tables_are_flushed_early() -> None:
    assert plan().rows_per_flush < 1000


def test_auto_is_never_more_than_the_rows_there_are() -> None:
    assert plan(chunk_size="auto", rows=5).rows_per_flush == 5


def test_zero_means_one_flush_per_episode_or_a_refusal() -> None:
    numbers = (CameraDemand(640, 480, "copy", 90_000),)
    assert plan(chunk_size=0, cameras=numbers, rows=5000).rows_per_flush == 5000
    with pytest.raises(BudgetExceeded):
        plan(chunk_size=0)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_encoders_are_part_of_the_prediction(codec: str) -> None:
    assert plan(cameras=(CameraDemand(640, 480, codec, 90_000),)).encoders_bytes > 10 * MIB


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"fpss": 30}, ["fpss", "fps"]),
        ({"fps": 0}, ["fps"]),
        ({"fps": 29.97}, ["fps", "whole"]),
        ({"video": "mpeg"}, ["video", "mpeg", "mjpeg"]),
        ({"resize": [0, 5]}, ["resize"]),
        ({"resize": "axb"}, ["resize"]),
        ({"rosbag": {"chunk_size": -1}}, ["rosbag.chunk_size"]),
        ({"rosbag": {"chunksize": 5}}, ["chunksize", "chunk_size"]),
        ({"tolerance": "soon"}, ["tolerance", "soon"]),
        ({"encoding": {"quality": 101}}, ["encoding.quality"]),
        ({"sample_drop": -1}, ["sample_drop"]),
        ({"features": [1]}, ["features"]),
        ({"features": {"a": {"field": "x"}}}, ["topic"]),
        ({"features": {"a": {"topic": "/x", "scale": "big"}}}, ["features.a", "scale"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_expected(
    asked: dict[str, object], words: list[str], bag: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        penstock.convert(bag, tmp_path / "out", **asked)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_words_win_over_keywords_and_keywords_over_the_file(bag: Path, tmp_path: Path) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text("task: from the file\nrobot_type: kuavo\nrosbag:\n  chunk_size: 7\nfps: 10\n")
    report = penstock.convert(
        bag, tmp_path / "out", config=config, task="from a keyword", fps=15, overrides=["task=from a word"]
    )
    assert datasets.episodes(tmp_path / "out")[0]["tasks"] == ["from a word"]
    assert report.fps == 15 and datasets.info(tmp_path / "out")["robot_type"] == "kuavo"
    assert len(report.memory) == 2 + 3  # chunks of 7 rows
