"""The command line from end to end: training, exact resuming after a kill, the files it leaves, refusals, --eval."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import imitate_episodes  # noqa: E402
from act.checkpoint import read_checkpoint  # noqa: E402
from act.curve import draw_curve  # noqa: E402

from tests.examples.running import TINY, start  # noqa: E402
from tests.examples.running import run as _run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def _losses(directory: Path) -> list[list[float]]:
    keys = ("epoch", "step", "train_loss", "train_l1", "train_kl", "val_l1", "val_mean_l1", "val_stay_l1")
    return [[row[key] for key in keys] for row in json.loads((directory / "history.json").read_text())]


_KILLED = """
import os, signal, sys
import imitate_episodes
from act import train
write = train.write_checkpoint

def write_and_die(*words):
    write(*words)
    os.kill(os.getpid(), signal.SIGKILL)

train.write_checkpoint = write_and_die
imitate_episodes.main(sys.argv[1:])
"""


def _killed(reach: Path, directory: Path, *words: str) -> None:
    """A run of its own that is killed when it has saved in the midst of an epoch."""
    process = start(reach, directory, *words, code=_KILLED)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL


def test_a_killed_run_resumes_to_the_same_losses_and_weights(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num_epochs", "2", "--save_every", "3"]
    assert _run(reach, tmp_path / "whole", *words) == 0
    _killed(reach, tmp_path / "cut", *words)
    left = read_checkpoint(tmp_path / "cut" / "policy_last.ckpt")
    assert left["epoch"] < 2
    capsys.readouterr()
    assert _run(reach, tmp_path / "cut", *words, "--resume") == 0
    assert f"resumed {tmp_path / 'cut' / 'policy_last.ckpt'} at epoch {left['epoch']}" in capsys.readouterr().out
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole") and len(_losses(tmp_path / "cut")) == 2
    one, two = (read_checkpoint(tmp_path / name / "policy_last.ckpt") for name in ("whole", "cut"))
    assert one["model"].keys() == two["model"].keys()
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    assert one["step"] == two["step"] == 10 and one["loader"] == two["loader"]


def test_more_epochs_later_are_the_same_as_more_epochs_at_once(reach: Path, tmp_path: Path) -> None:
    assert _run(reach, tmp_path / "whole", "--num_epochs", "2", "--policy_class", "CNNMLP") == 0
    assert _run(reach, tmp_path / "parts", "--num_epochs", "1", "--policy_class", "CNNMLP") == 0
    assert _run(reach, tmp_path / "parts", "--num_epochs", "2", "--policy_class", "CNNMLP", "--resume") == 0
    assert _losses(tmp_path / "parts") == _losses(tmp_path / "whole")


def test_a_run_leaves_what_it_promises(reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import cv2

    from penstock import profile

    out = tmp_path / "run"
    profile.reset()
    words = ["--amp", "--image_size", "32x32", "--profile-out", str(tmp_path / "RUN.json"), "--lang", "zh"]
    assert _run(reach, out, *words) == 0
    printed = capsys.readouterr().out
    assert "Epoch 0 总耗时" in printed and "训练耗时:" in printed and "性能分析统计" in printed
    english = ("million", "samples", "train loss", "val l1 ", "ms/step", "checkpoints", " a step", "best ")
    assert not [word for word in english if word in printed], "one language throughout"
    stages = ("10_val_forward_pass", "20_train_forward_pass", "21_backward", "22_optimizer_step")
    assert all(name in printed for name in stages)
    assert {path.name for path in out.iterdir()} == {
        "dataset_stats.json", "history.json", "policy_best.ckpt", "policy_last.ckpt", "train_val_seed_0.png",
    }  # fmt: skip
    assert cv2.imread(str(out / "train_val_seed_0.png")).shape == (480, 720, 3)
    assert len(json.loads((out / "dataset_stats.json").read_text())["action"]["mean"]) == 14
    report = json.loads((tmp_path / "RUN.json").read_text())
    decoded = sum(span["count"] for span in report["spans"] if span["name"] == "03b_image_decode")
    assert report["steps"]["count"] == 5 and decoded == (24 + 8) * 4  # each sample once, four cameras
    assert _run(reach, out, "--eval", "--tries", "2") == 0
    assert "policy           " in capsys.readouterr().out


def test_what_is_trained_anew_leaves_no_checkpoint_of_before(reach: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    _run(reach, directory, "--num_epochs", "1")
    (directory / "train_val_seed_7.png").touch()
    last = directory / "policy_last.ckpt"
    assert last.exists()
    anew = start(reach, directory, "--num_epochs", "9", "--overwrite", "--lr", "0.002")
    assert anew.stdout is not None and any("million parameters" in line for line in anew.stdout)
    anew.kill()
    anew.communicate()
    assert not (directory / "train_val_seed_7.png").exists()
    assert not last.exists() or read_checkpoint(last)["settings"]["lr"] == 0.002


def test_without_a_data_set_the_demo_task_is_made_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitate_episodes, "_DEMO", {"episodes": 2, "rows": 4, "height": 32, "width": 32})
    words = [*TINY, "--ckpt_dir", str(tmp_path / "ck"), "--lang", "en"]
    assert imitate_episodes.main(words) == 0
    printed = capsys.readouterr().out
    assert "the demo task is in" in printed and "Epoch 0 took" in printed
    made = sorted(path.name for path in (tmp_path / "ck" / "demo_tiny").iterdir())
    assert made == ["episode_0.hdf5", "episode_1.hdf5"]
    assert imitate_episodes.main([*words, "--num_epochs", "2", "--resume"]) == 0
    assert "the demo task is in" not in capsys.readouterr().out


def test_a_demo_task_is_whole_or_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock._src.demo import act as demo

    monkeypatch.setattr(imitate_episodes, "_DEMO", {"episodes": 3, "rows": 4, "height": 32, "width": 32})
    ck, write = tmp_path / "ck", demo._write_episode
    (ck / "demo_tiny.part").mkdir(parents=True)  # of a try that was killed
    (ck / "demo_tiny.part" / "episode_0.hdf5").write_bytes(b"half")

    def fails(directory: Path, script: demo.ReachScript, number: int, scene: Any) -> int:
        assert not (ck / "demo_tiny").exists()  # a kill now leaves nothing that is taken for the task
        if number == 2:
            raise OSError(28, "No space left on device")
        return write(directory, script, number, scene)

    words = [*TINY, "--ckpt_dir", str(ck)]
    monkeypatch.setattr(demo, "_write_episode", fails)
    assert imitate_episodes.main(words) == 1
    assert "demo_tiny: the demo task cannot be written: No space left on device" in capsys.readouterr().err
    assert not list(ck.iterdir())
    monkeypatch.setattr(demo, "_write_episode", write)
    (ck / "demo_tiny.part").mkdir()
    (ck / "demo_tiny.part" / "episode_0.hdf5").write_bytes(b"half")
    assert imitate_episodes.main(words) == 0
    assert len(list((ck / "demo_tiny").iterdir())) == 3 and not (ck / "demo_tiny.part").exists()


def test_trying_without_a_checkpoint_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert imitate_episodes.main([*TINY, "--ckpt_dir", str(tmp_path / "ck"), "--eval"]) == 2
    assert "policy_best.ckpt does not exist" in capsys.readouterr().err and not (tmp_path / "ck").exists()


def test_only_policies_of_the_demos_data_are_tried(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import h5py

    own, ck = tmp_path / "own", tmp_path / "ck"
    shutil.copytree(reach, own)
    for path in own.iterdir():
        with h5py.File(path, "r+") as file:
            del file.attrs["task"], file.attrs["seed"]  # ALOHA's cameras and 14 joints, but another task
    assert _run(own, ck) == 0
    capsys.readouterr()
    assert _run(reach, ck, "--eval", "--tries", "1") == 2
    assert "was not trained on episodes of `penstock demo act`" in capsys.readouterr().err
    best = read_checkpoint(ck / "policy_best.ckpt")
    del best["task"]  # from before it was kept: what the data look like decides
    torch.save(best, ck / "policy_best.ckpt")
    assert _run(own, ck, "--eval", "--tries", "1") == 0


def test_a_data_set_made_of_the_demos_is_the_demos(
    reach: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import penstock

    penstock.convert(reach, tmp_path / "set")
    monkeypatch.setattr("act.rollout._ROWS", 1)
    assert _run(tmp_path / "set", tmp_path / "ck", "--cameras", "cam_high") == 0
    task = read_checkpoint(tmp_path / "ck" / "policy_best.ckpt")["task"]
    assert task == {"name": "reach", "height": 32, "width": 48}
    assert _run(tmp_path / "nowhere", tmp_path / "ck", "--eval", "--tries", "1") == 0  # the data are not needed


def test_refusals_name_what_to_do(reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(reach, tmp_path / "nothing", "--resume") == 2
    assert "policy_last.ckpt does not exist" in capsys.readouterr().err
    assert _run(reach, tmp_path / "odd", "--heads", "3") == 2
    assert "cannot be split into 3 --heads" in capsys.readouterr().err
    (tmp_path / "held").mkdir()
    torch.save({"version": 1, "settings": {"lr": 1.0}}, tmp_path / "held" / "policy_last.ckpt")
    assert _run(reach, tmp_path / "held") == 1
    assert "--resume goes on with it" in capsys.readouterr().err
    assert _run(reach, tmp_path / "held", "--resume") == 2
    assert "was trained otherwise" in capsys.readouterr().err


def test_the_seeds_command_line_is_understood() -> None:
    words = ("--task_name astrobench_dual_arm --ckpt_dir ./ckpt --policy_class ACT --kl_weight 10 --chunk_size 20 "
             "--hidden_dim 512 --batch_size 4 --dim_feedforward 3200 --num_epochs 1 --lr 1e-5 --seed 0")  # fmt: skip
    settings = imitate_episodes.settings_from(imitate_episodes.build_parser().parse_args(words.split()))
    assert (settings.hidden_dim, settings.dim_feedforward, settings.chunk, settings.lr) == (512, 3200, 20, 1e-5)
    assert settings.norm_kind == "batch" and settings.image_size is None


def test_a_curve_of_one_point_and_of_odd_values(tmp_path: Path) -> None:
    rows = [{"epoch": 0, "train_l1": 0.5}, {"epoch": 1, "train_l1": float("nan"), "val_l1": 0.2, "val_mean_l1": 0.8}]
    draw_curve(tmp_path / "a.png", rows, "Grüße")
    draw_curve(tmp_path / "b.png", [], "nothing")
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "b.png").stat().st_size > 0
