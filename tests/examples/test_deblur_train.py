"""train_deblur.py from end to end: what a run leaves, learning, exact resuming after a kill, refusals."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from penstock._src.demo.spike import SpikeScript, write_spike_set

torch = pytest.importorskip("torch")

from deblur.checkpoint import read_checkpoint  # noqa: E402
from deblur.ranks import Ranks  # noqa: E402
from deblur.train import Settings, Trainer  # noqa: E402

import penstock  # noqa: E402
from penstock._src.load.clips.config import load_clip_config  # noqa: E402
from tests.examples.deblur_runs import EXAMPLES, history, run, seen, start_apart, write_config  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def config(spike_clips: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path, spike_clips)


@pytest.fixture(scope="module")
def trained(spike_clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs; copy it before it is changed."""
    directory = tmp_path_factory.mktemp("trained")
    torch.set_num_threads(1)  # as in the tests: sums over other threads have other last digits
    assert run(write_config(directory, spike_clips), directory / "run") == 0
    return directory / "run"


def _same_weights(one: Path, two: Path) -> bool:
    models = [read_checkpoint(each / "last.ckpt")["model"] for each in (one, two)]
    return all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_run_leaves_what_it_promises(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import cv2

    out = tmp_path / "run"
    assert run(config, out, "TRAIN.EPOCHS=1", "TRAIN.BATCH_SIZE=2", "--images", "2") == 0
    printed = capsys.readouterr().out
    assert "[train] ========== 数据加载配置 ==========" in printed
    lines = re.findall(r"^step (\d+) \| loss=0\.\d{4} \| data_time=\d+\.\dms \| step_time=\d+\.\dms$", printed, re.M)
    assert lines == ["1", "2", "3"]  # 9 clips, 2 in a batch, 2 batches in a step, the last of one batch
    assert re.search(
        r"^epoch 0 \| train loss=0\.\d+ \| val PSNR \d+\.\d\d dB \(blur \d+\.\d\d, gain [+-]", printed, re.M
    )
    assert {path.name for path in out.iterdir()} == {"best.ckpt", "last.ckpt", "history.json", "images"}
    (row,) = history(out)
    assert row["step"] == 3 and 10 < row["blur_psnr"] < 40 and 0 < row["blur_ssim"] < 1
    assert cv2.imread(str(out / "images" / "epoch_0000.png")).shape == (22 + 2 * (48 + 4), 3 * (64 + 4), 3)


def test_the_configuration_of_the_guide_trains(
    spike_clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = EXAMPLES.parent / "compat" / "configs" / "deblur" / "vrt_spike_baseline.yaml"
    values = [f"DATA.ROOT={spike_clips}", "DATA.CROP_SIZE=32", "DATA.CACHE_SIZE_GB=0.01", "TRAIN.EPOCHS=1",
              "DATALOADER.TOTAL_WORKERS=1"]  # fmt: skip
    assert run(guide, tmp_path / "run", *values) == 0
    printed = capsys.readouterr().out
    assert "DeblurNet: 0.70 million parameters on cpu" in printed and "step 2 | loss=" in printed  # 6 clips, then 3


def test_training_gains_over_the_blur(tmp_path: Path) -> None:
    scene = SpikeScript(train=4, test=1, images=8, height=64, width=96, travel_px=8, seed=3)
    write_spike_set(tmp_path / "clips", scene)
    config = write_config(tmp_path, tmp_path / "clips")
    values = ["TRAIN.EPOCHS=6", "DATA.CROP_SIZE=64", "TRAIN.GRADIENT_ACCUMULATION_STEPS=1", "TRAIN.OPTIM.LR=0.002"]
    assert run(config, tmp_path / "run", *values) == 0
    best = max(history(tmp_path / "run"), key=lambda row: row["val_psnr"])
    assert best["val_psnr"] > best["blur_psnr"] + 1.2 and best["val_ssim"] > best["blur_ssim"]


def test_a_killed_run_resumes_to_the_same_weights(config: Path, trained: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    # In the midst of the first epoch, while workers have fetched more than was trained on.
    assert start_apart(config, cut, "--save-every", "2", "DATALOADER.TOTAL_WORKERS=2", die_after=2) != 0
    left = read_checkpoint(cut / "last.ckpt")
    assert (left["epoch"], left["step"], left["taken"]) == (0, 4, 8)
    assert run(config, cut, "--resume", "--save-every", "2") == 0
    assert history(cut) == history(trained) and _same_weights(cut, trained)


def test_more_epochs_later_are_the_same_as_more_epochs_at_once(config: Path, trained: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    assert run(config, parts, "TRAIN.EPOCHS=1") == 0
    assert run(config, parts, "--resume") == 0
    assert history(parts) == history(trained) and _same_weights(parts, trained)


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    config: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (out / "last.ckpt").read_bytes()

    def cut(content: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", cut)
    assert run(config, out, "--resume", "TRAIN.EPOCHS=3") == 130
    assert (out / "last.ckpt").read_bytes() == before and not list(out.glob(".*"))


def test_nothing_to_train_is_reported(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, Path(shutil.copytree(trained, tmp_path / "run")), "--resume") == 0
    assert "already at epoch 2 of 2: nothing to train" in capsys.readouterr().out


def test_a_batch_is_the_same_as_its_parts_accumulated(config: Path, tmp_path: Path) -> None:
    assert run(config, tmp_path / "parts", "TRAIN.EPOCHS=1") == 0
    assert run(config, tmp_path / "whole", "TRAIN.BATCH_SIZE=2", "TRAIN.GRADIENT_ACCUMULATION_STEPS=1",
               "TRAIN.EPOCHS=1") == 0  # fmt: skip
    (parts,), (whole,) = history(tmp_path / "parts"), history(tmp_path / "whole")
    assert parts["step"] == whole["step"] == 5
    assert parts["val_psnr"] == pytest.approx(whole["val_psnr"], abs=0.01)
    assert parts["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-3)


def test_gradients_are_clipped_and_k_reaches_the_model(config: Path, tmp_path: Path) -> None:
    norms = []
    found = load_clip_config(config, ["TRAIN.MAX_GRAD_NORM=0.001", "DATA.K=16", "TRAIN.EPOCHS=1"])
    with penstock.clip_loaders(found, log=None) as loaders:
        trainer = Trainer(loaders, Ranks(0, 1, torch.device("cpu")), Settings(tmp_path))
        assert trainer.net.head.in_channels == 16

        def measure(optimizer: object, *words: object) -> None:
            norms.append(torch.stack([each.grad.norm() for each in trainer.parameters]).norm().item())

        trainer.optimizer.register_step_pre_hook(measure)
        trainer.run()
    assert len(norms) == 5 and max(norms) <= 0.001 * 1.01


def test_a_run_that_is_there_is_left_alone(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    assert run(config, out) == 1
    assert "last.ckpt exists: it is left alone" in capsys.readouterr().err
    assert run(config, out, "--overwrite", "TRAIN.EPOCHS=1") == 0 and len(history(out)) == 1


def test_a_run_that_is_trained_anew_forgets_the_old_one(config: Path, trained: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    assert run(config, out, "--overwrite", "TRAIN.OPTIM.LR=1e30") == 1
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_clips_that_are_skipped_are_counted_and_in_the_exit_code(
    spike_clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(spike_clips, tmp_path / "clips"))
    bad = sorted((root / "train").iterdir())[0] / "sharp" / "000000.png"
    bad.write_bytes(bad.read_bytes()[:200])
    config = write_config(tmp_path, root)
    assert run(config, tmp_path / "run", "TRAIN.EPOCHS=1") == 1
    assert str(bad) in capsys.readouterr().err
    assert run(config, tmp_path / "run", "TRAIN.EPOCHS=1", "DATA.ON_ERROR=skip") == 3
    assert "note: process 0 skipped 1 clips, first " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "named"),
    [("DATA.CROP_SIZE=40", "DATA.CROP_SIZE was 32, is 40"), ("DATA.K=16", "DATA.K was 8, is 16"),
     ("TRAIN.BATCH_SIZE=2", "TRAIN.BATCH_SIZE was 1, is 2"), ("SEED=8", "SEED was 7, is 8")],
)  # fmt: skip
def test_another_configuration_is_refused(
    value: str, named: str, config: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, trained, "--resume", value) == 2
    assert named in capsys.readouterr().err


def test_where_data_lie_and_how_they_are_loaded_may_change(
    spike_clips: Path, config: Path, trained: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(spike_clips, tmp_path / "moved")
    values = [f"DATA.ROOT={moved}", "DATA.DTYPE=uint8", "DATA.USE_RAM_CACHE=true", "DATA.CACHE_SIZE_GB=0.01"]
    three = tmp_path / "three"
    assert run(config, three, "TRAIN.EPOCHS=3") == 0
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    assert run(config, out, "--resume", "TRAIN.EPOCHS=3", *values) == 0
    assert history(out)[-1]["val_psnr"] == pytest.approx(history(three)[-1]["val_psnr"], abs=0.01)


@pytest.mark.parametrize("kept", [0, 300, 0.5])
def test_a_cut_checkpoint_is_named(
    kept: float, config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    whole = (out / "last.ckpt").read_bytes()
    (out / "last.ckpt").write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    assert run(config, out, "--resume") == 2
    assert "is cut or is no checkpoint" in capsys.readouterr().err


def test_resuming_nothing_is_refused(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, tmp_path / "none", "--resume") == 2
    assert "last.ckpt does not exist" in capsys.readouterr().err


def test_a_run_that_diverges_says_so_and_saves_nothing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(config, out, "TRAIN.OPTIM.LR=1e30") == 1
    stderr = capsys.readouterr().err
    assert (
        "training has diverged; there is no checkpoint yet" in stderr and "TRAIN.OPTIM.LR=1e+29 --overwrite" in stderr
    )
    assert not list(out.glob("*.ckpt"))


@pytest.fixture(scope="module")
def trained_by_two(spike_clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in two processes."""
    directory = tmp_path_factory.mktemp("two")
    assert start_apart(write_config(directory, spike_clips), directory / "run", processes=2) == 0
    return directory / "run"


def test_two_processes_see_every_clip_exactly_once_per_epoch(trained_by_two: Path) -> None:
    for epoch in (0, 1):
        batches = [each for rank in (0, 1) for each in seen(trained_by_two, rank) if each[0] == epoch]
        pairs = [pair for _, _, clips, weights in batches for pair in zip(clips, weights, strict=True)]
        assert sorted(clip for clip, weight in pairs if weight) == list(range(9))
        assert len(batches) == 10, "nine clips, and both processes have five batches"


def test_two_processes_resume_exactly(config: Path, trained_by_two: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    assert start_apart(config, cut, "--save-every", "1", processes=2, die_after=2) != 0
    assert read_checkpoint(cut / "last.ckpt")["taken"] == 4  # of five batches
    assert start_apart(config, cut, "--save-every", "1", "--resume", processes=2) == 0
    assert history(cut) == history(trained_by_two) and _same_weights(cut, trained_by_two)
    for rank in (0, 1):
        later = [[each for each in seen(out, rank) if each[0] == 1] for out in (cut, trained_by_two)]
        assert later[0] == later[1]


def test_two_processes_learn_what_one_learns_from_twice_the_batch(
    config: Path, trained_by_two: Path, tmp_path: Path
) -> None:
    assert run(config, tmp_path / "one", "TRAIN.BATCH_SIZE=2") == 0
    for two, one in zip(history(trained_by_two), history(tmp_path / "one"), strict=True):
        assert two["step"] == one["step"]
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
        assert two["val_psnr"] == pytest.approx(one["val_psnr"], abs=0.01)
