"""`penstock check --only steps`: batches of real loaders, their memory, the log lines of a training, a verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock._src.cli import main
from penstock._src.demo.spike import SpikeScript, write_spike_set

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("steps") / "spikes"
    write_spike_set(out, SpikeScript(train=1, test=1, images=6, height=48, width=64, travel_px=6))
    return out / "config.yaml"


def test_a_few_steps_are_measured_over_several_epochs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(config), "DATALOADER.TRAIN_WORKERS=1", "TRAIN.BATCH_SIZE=1", "--steps", "7"]
    assert main([*words, "--only", "steps"]) == 0
    shown = capsys.readouterr().out
    assert "[train] ========== 数据加载配置 ==========" in shown and "num_workers: 1 (每GPU)" in shown
    assert "7 batches as fast as it can · data_time=" in shown
    assert "the loader gives a batch every" in shown and "to make it faster:" in shown


def test_json_has_the_measured_numbers(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(config), "DATALOADER.TOTAL_WORKERS=1", "--steps", "3", "--step-ms", "20", "--json"]
    assert main(words) == 0
    steps = json.loads(capsys.readouterr().out)["parts"]["steps"]
    assert steps["steps"] == 3 and steps["step_ms"] == 20 and steps["workers"] == 1
    assert 0 <= steps["data_ms"] <= steps["slowest_ms"] and steps["first_s"] > 0
    assert steps["cpu_share"] >= 0
    assert steps["predicted_bytes"] > steps["cache_bytes"] >= steps["images_bytes"] > 0
    assert steps["verdict"].startswith(("compute-bound", "input-bound"))


def test_memory_that_is_not_there_is_refused_with_what_would_fit(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["DATALOADER.TOTAL_WORKERS=2", "TRAIN.BATCH_SIZE=10000000"]
    assert main(["check", str(config), *words, "--only", "steps"]) == 1
    shown = capsys.readouterr().err
    assert "loading would take" in shown and "TRAIN.BATCH_SIZE" in shown


def test_clips_that_workers_leave_out_are_a_loss(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "damaged"
    shutil.copytree(config.parent, root)
    image = root / "train" / "DEMO0000_07_00" / "sharp" / "000000.png"
    image.write_bytes(image.read_bytes()[:300])
    words = [f"DATA.ROOT={root}", "DATALOADER.TRAIN_WORKERS=1", "--steps", "3", "--only", "steps"]
    assert main(["check", str(config), *words]) == 1
    assert "000000.png" in capsys.readouterr().err
    assert main(["check", str(config), *words, "DATA.ON_ERROR=skip"]) == 3
    assert "a clip is left out" in capsys.readouterr().out
