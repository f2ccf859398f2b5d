"""`penstock demo spike`: images, spikes and motion agree with each other, and the same seed makes the same set."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from penstock._src.cli import main
from penstock._src.demo.spike import GAIN, SpikeCamera, SpikeScript, write_spike_set
from penstock.errors import OutputExists, UsageError

SMALL = SpikeScript(train=2, test=1, images=3, height=48, width=64, travel_px=6)
SEQUENCES = {"train/DEMO0000_07_00": 56, "train/DEMO0001_11_00": 88, "test/DEMO0002_07_00": 56}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "spikes"
    n_bytes = write_spike_set(out, SMALL)
    assert n_bytes == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return out


def gray(path: Path) -> NDArray[np.uint8]:
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    return np.asarray(image, np.uint8)


def spikes(path: Path, frames: int) -> NDArray[np.uint8]:
    bits = np.unpackbits(np.fromfile(path, np.uint8), bitorder="little")
    return bits.reshape(frames, 24, 32)[:, ::-1]


def test_every_image_has_its_sharp_one_and_its_spikes(made: Path) -> None:
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    expected = {
        f"{name}/{part}/{image:06d}.png" for name in SEQUENCES for part in ("blur", "sharp") for image in range(3)
    }
    expected |= {f"{name}/spike/{image:06d}.dat" for name in SEQUENCES for image in range(3)}
    assert found == expected | {f"{name}/motion.csv" for name in SEQUENCES} | {"config.yaml"}
    for name, frames in SEQUENCES.items():
        assert {path.stat().st_size for path in (made / name / "spike").iterdir()} == {frames * 24 * 32 // 8}
        assert gray(made / name / "blur" / "000000.png").shape == (48, 64)


@pytest.mark.parametrize("name", SEQUENCES)
def test_spikes_count_the_light_that_blurred_the_image(made: Path, name: str) -> None:
    """A pixel has fired once for every unit of light: nothing is lost between frames and images."""
    frames = SEQUENCES[name]
    for image in range(3):
        counts = spikes(made / name / "spike" / f"{image:06d}.dat", frames).sum(0, dtype=np.int64)
        blurred = cv2.resize(gray(made / name / "blur" / f"{image:06d}.png"), (32, 24), interpolation=cv2.INTER_AREA)
        light = blurred.astype(np.float64) * GAIN / 255 * frames
        assert np.abs(counts - light).max() < 1 + 1.5 * GAIN / 255 * frames  # 1 spike, and 8 bits rounded
        assert np.corrcoef(counts.ravel(), light.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("name", SEQUENCES)
def test_images_are_blurred_by_motion_and_spikes_show_the_sharp_one(made: Path, name: str) -> None:
    blur, sharp = gray(made / name / "blur" / "000001.png"), gray(made / name / "sharp" / "000001.png")
    edges = [float(cv2.Laplacian(image, cv2.CV_64F).var()) for image in (blur, sharp)]
    assert edges[0] < 0.5 * edges[1]
    frames = SEQUENCES[name]
    middle = spikes(made / name / "spike" / "000001.dat", frames)[frames // 2 - 5 : frames // 2 + 6].mean(0)
    small = [cv2.resize(image, (32, 24), interpolation=cv2.INTER_AREA).ravel() for image in (blur, sharp)]
    near = [np.corrcoef(middle.ravel(), image)[0, 1] for image in small]
    assert near[1] > near[0]


def test_the_motion_is_written_frame_by_frame(made: Path) -> None:
    with open(made / "train" / "DEMO0001_11_00" / "motion.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 88 and rows[88]["image"] == "1" and rows[88]["frame"] == "0"
    x = np.array([float(row["background_x_px"]) for row in rows])
    steps = np.abs(np.diff(x)) * 88  # pixels per image
    assert steps.max() < 2 * np.pi / 4 * 1.3 * SMALL.travel_px + 0.2 and steps.max() > 1


def test_a_still_scene_is_sharp(tmp_path: Path) -> None:
    write_spike_set(tmp_path / "still", SpikeScript(train=1, test=1, images=2, height=32, width=32, travel_px=0))
    folder = tmp_path / "still" / "train" / "DEMO0000_07_00"
    assert (gray(folder / "blur" / "000001.png") == gray(folder / "sharp" / "000001.png")).all()


def test_the_same_seed_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    write_spike_set(tmp_path / "again", SMALL)
    for name in SEQUENCES:
        for path in (made / name).rglob("*"):
            if path.is_file():
                assert path.read_bytes() == (tmp_path / "again" / path.relative_to(made)).read_bytes(), path


def test_a_pixel_fires_as_often_as_its_light_says() -> None:
    camera = SpikeCamera((2, 8), np.random.default_rng(0))
    view = np.full((4, 16, 3), 128, np.uint8)
    fired = sum(np.unpackbits(camera.take(view)).astype(int) for _ in range(1000))
    assert np.abs(fired - 1000 * GAIN * 128 / 255).max() <= 1


def test_the_configuration_is_the_seeds_with_the_sizes_of_the_set(made: Path) -> None:
    config = yaml.safe_load((made / "config.yaml").read_text(encoding="utf-8"))
    assert config["DATA"]["ROOT"] == str(made)
    assert config["DATA"]["CROP_SIZE"] == 32 and config["DATA"]["CLIP_LEN"] == 3
    assert config["DATALOADER"]["TOTAL_WORKERS"] == "auto" and config["TRAIN"]["OPTIM"]["LR"] > 0


def test_the_command_says_what_to_run_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "demo",
        "spike",
        "--out",
        str(tmp_path / "s"),
        "--train",
        "1",
        "--test",
        "1",
        "--images",
        "2",
        "--size",
        "32x48",
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "1 + 1 sequences of 2 images 32×48 · spikes 16×24" in shown
    assert f"penstock check {tmp_path / 's' / 'config.yaml'}" in shown
    assert main(words) == 1
    assert "exists: it is left alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"height": 47}, "whole bytes"),
        ({"width": 40}, "whole bytes"),
        ({"images": 0}, "images 0"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_makes_no_data_is_refused(tmp_path: Path, words: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_spike_set(tmp_path / "out", SpikeScript(**words))
    assert not (tmp_path / "out").exists()


def test_a_set_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    with pytest.raises(OutputExists):
        write_spike_set(tmp_path, SMALL)
