"""`penstock check`: what it says of a good set, and how it ends for each kind of bad input; torch is not needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.demo.spike import SpikeScript, write_spike_set
from penstock._src.load.clips.config import load_clip_config
from penstock._src.prepare.check import StepTimes, advice

NO_STEPS = ["--only", "configuration,files,sample"]
SEQUENCE = "train/DEMO0000_07_00"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check") / "spikes"
    write_spike_set(out, SpikeScript(train=2, test=1, images=6, height=48, width=64, travel_px=6))
    return out


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "spikes")
    return tmp_path / "spikes"


def check(root: Path, *words: str) -> int:
    return main(["check", str(root / "config.yaml"), f"DATA.ROOT={root}", *words, *NO_STEPS])


def test_a_good_set_is_fine_and_every_part_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root) == 0
    shown = capsys.readouterr().out
    for text in (
        "5 bins, counted while loading",
        "2 sequences · 12 images · 4 clips",
        "1 sequences · 6 images · 2 clips",
        "upside down",
        "train     blur       (5, 3, 32, 32) float32, 0",
        "train     spike_vox  (5, 5, 16, 16) float32, 0…",
        "val       sharp      (5, 3, 48, 64) float32",
        "val       spike_vox  (5, 5, 24, 32) float32",
        "fine: ",
    ):
        assert text in shown, text


def test_json_has_every_number(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root, "--json", "DATALOADER.TOTAL_WORKERS=6", "--gpus", "3") in (0, 3)
    found = json.loads(capsys.readouterr().out)
    assert found["clean"] is True
    assert found["parts"]["configuration"]["train_workers"] == 2 and found["parts"]["configuration"]["gpus"] == 3
    assert found["parts"]["files"]["train"]["clips"] == 4
    blur = found["parts"]["sample"]["train"]["blur"]
    assert blur["shape"] == [5, 3, 32, 32] and 0 <= blur["low"] < blur["high"] <= 1
    assert found["parts"]["sample"]["val"]["spike_vox"]["share_above_0"] > 0.5


def test_one_part_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(root / "config.yaml"), f"DATA.ROOT={root / 'gone'}", "--only", "configuration"]) == 0
    assert "files" not in capsys.readouterr().out.splitlines()


def test_a_wrong_key_is_named_with_the_right_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root, "DATA.CROPSIZE=128") == 2
    assert "CROP_SIZE" in capsys.readouterr().err
    assert check(root, "DATA.CROP_SIZE=4096") != 0
    assert main(["check", str(root / "config.yaml"), "--steps", "0"]) == 2
    assert main(["check", str(root / "config.yaml"), "--only", "sample,stpes"]) == 2
    assert "no part 'stpes'" in capsys.readouterr().err


def test_a_folder_without_samples_says_what_makes_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "train")
    assert check(root) == 1
    assert "penstock prepare gopro-spike" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["short", "long", "no sharp", "unequal", "damaged"])
def test_bad_files_are_named_or_counted(root: Path, capsys: pytest.CaptureFixture[str], change: str) -> None:
    spike, sharp = root / SEQUENCE / "spike" / "000003.dat", root / SEQUENCE / "sharp" / "000003.png"
    if change == "short":
        spike.write_bytes(spike.read_bytes()[:-1])
    elif change == "long":
        spike.write_bytes(spike.read_bytes() + b"\0")
    elif change == "no sharp":
        sharp.unlink()
    elif change == "unequal":
        spike.unlink()
    else:
        sharp.write_bytes(sharp.read_bytes()[:300])
    code = check(root)
    shown = capsys.readouterr()
    assert code == 1
    assert "000003" in shown.out + shown.err
    if change == "damaged":
        assert "000003" in shown.out and "000003" in shown.err  # by the look at files, and by the sample
        assert check(root, "DATA.ON_ERROR=skip") == 3
        shown = capsys.readouterr()
        assert "a clip is left out: DEMO0000_07_00 from 000000.png" in shown.out and "000003.png" in shown.out
        return
    assert "files" not in shown.out.splitlines()
    assert check(root, "DATA.ON_MISSING=skip") == 3
    shown = capsys.readouterr()
    assert "1 rows left out" in shown.out and "000003" in shown.out and "NOT fine" in shown.out


def test_spikes_that_are_all_zero_are_a_loss_with_the_likely_cause(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (root / SEQUENCE / "spike").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert check(root) == 3
    shown = capsys.readouterr().out
    assert "every bit is 0" in shown and "the voxels are all zero" in shown and "penstock doctor" in shown


def test_precomputed_voxels_that_are_not_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root, "DATA.USE_PRECOMPUTED_VOXELS=true") == 1
    assert "penstock prepare voxels" in capsys.readouterr().err
    assert main(["prepare", "voxels", str(root)]) == 0
    assert check(root, "DATA.USE_PRECOMPUTED_VOXELS=true") == 0
    assert "from spike_vox/*.npy" in capsys.readouterr().out


def test_clips_longer_than_every_sequence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(root, "DATA.CLIP_LEN=7") == 1
    assert "no sequence of train has the 7 images of a clip" in capsys.readouterr().err


# The verdict


def times(**changes: object) -> StepTimes:
    values = {
        "steps": 20, "step_ms": 100.0, "data_ms": 40.0, "slowest_ms": 60.0, "first_s": 1.0, "cpu_share": 0.4,
        "cpus": 40.0, "gpus": 3, "workers": 8, "grown_bytes": 0, "predicted_bytes": 0,
        "images_bytes": 10**10, "cache_bytes": 0,
    }  # fmt: skip
    return StepTimes(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "verdict", "knob"),
    [
        ({"data_ms": 3.0}, "compute-bound: the step of 100 ms waits 3.0 ms (3%)", None),
        ({}, "input-bound: the step of 100 ms waits 40.0 ms more (29%)", 'TOTAL_WORKERS: "cpu*0.9"'),
        ({"workers": 14}, "input-bound", "CACHE_SIZE_GB: 10 keep every image decoded"),
        ({"cpu_share": 0.95}, "input-bound", "CACHE_SIZE_GB: 10"),
        ({"cpu_share": 0.95, "cache_bytes": 10**10}, "input-bound", "DTYPE: uint8"),
        ({"step_ms": None}, "the loader gives a batch every 40.0 ms", "to make it faster"),
    ],
)  # fmt: skip
def test_the_verdict_names_the_key_to_change(changes: dict[str, object], verdict: str, knob: str) -> None:
    text, change = advice(times(**changes))
    assert text.startswith(verdict)
    assert change is None if knob is None else knob in str(change)


def test_voxels_of_a_sample_are_counts(made: Path) -> None:
    from penstock._src.prepare.check import first_sample

    words = ["DATA.CROP_SIZE=null", "DATA.AUGMENT=false"]
    clips, facts = first_sample(load_clip_config(made / "config.yaml", words))
    assert facts["blur"].shape == (5, 3, 48, 64) and len(clips) == 4
    assert facts["spike_vox"].high == np.ceil(facts["spike_vox"].high) <= 12
