"""What --resume refuses before it writes anything: other data, damaged checkpoints; what it says when all is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._src.demo.act import ReachScript, write_episodes
from penstock.errors import UsageError

torch = pytest.importorskip("torch")

from act.checkpoint import read_checkpoint  # noqa: E402
from act.data import Stats, split_episodes  # noqa: E402
from act.same_data import check_same, facts_of  # noqa: E402
from act.train import Trainer  # noqa: E402

from tests.examples.running import TINY, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(reach: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch; copy it before it is changed."""
    directory = tmp_path_factory.mktemp("trained") / "ck"
    assert run(reach, directory) == 0
    return directory


@pytest.fixture
def ckpt(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "ck"))


def _content(directory: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_other_data_of_the_same_shape_are_refused_and_nothing_is_written(
    ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_episodes(tmp_path / "other", ReachScript(episodes=4, rows=8, height=32, width=48, seed=77))
    before = _content(ckpt)
    assert run(tmp_path / "other", ckpt, "--resume", "--num_epochs", "2") == 2
    stderr = capsys.readouterr().err
    assert "was trained on other data than" in stderr and "observations/qpos of the training episodes: " in stderr
    assert "→ --dataset with the data of that run" in stderr and "Traceback" not in stderr
    assert _content(ckpt) == before


def test_another_validation_episode_is_other_data(
    reach: Path, ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Path(shutil.copytree(reach, tmp_path / "changed"))
    write_episodes(tmp_path / "other", ReachScript(episodes=4, rows=8, height=32, width=48, seed=77))
    (number,) = split_episodes(4, 0.2, 0).val
    shutil.copy(tmp_path / "other" / f"episode_{number}.hdf5", changed)
    assert run(changed, ckpt, "--resume", "--num_epochs", "2") == 2
    stderr = capsys.readouterr().err
    assert "of the validation episodes" in stderr and "training episodes" not in stderr


def test_other_columns_are_named_in_a_few_words(
    reach: Path, ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_episodes(tmp_path / "large", ReachScript(episodes=4, rows=8, height=48, width=64))
    assert run(tmp_path / "large", ckpt, "--resume", "--num_epochs", "2") == 2
    stderr = capsys.readouterr().err
    assert "cam_high is 48×64×3 uint8, was 32×48×3 uint8" in stderr and "and 1 more" in stderr and "{" not in stderr


def test_the_same_data_elsewhere_go_on(
    reach: Path, ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(reach, tmp_path / "moved"))
    assert run(moved, ckpt, "--resume", "--num_epochs", "2") == 0
    assert [row["epoch"] for row in json.loads((ckpt / "history.json").read_text())] == [0, 1]


def _data(rows: list[int], mean: float = 0.5, shape: str = "1 float32") -> Any:
    stats = {"action": Stats(sum(rows), [mean], [0.1], [0.0], [1.0])}
    return SimpleNamespace(path="here", shapes={"action": shape}, episode_rows=rows, stats=stats, val_stats=stats)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (_data([3, 4, 5]), "3 episodes, were 2"),
        (_data([3, 5]), "episode 1 has 5 rows, had 4\n"),
        (_data([9, 5]), r"episode 0 has 9 rows, had 3 \(2 of 2 episodes differ\)"),
        (_data([3, 4], mean=0.500001), "mean of number 0 is 0.500001, was 0.5"),
        (_data([3, 4], shape="1 float64"), "action is 1 float64, was 1 float32\n"),
    ],
)
def test_what_differs_is_reported(now: Any, message: str) -> None:
    was = _data([3, 4])
    saved = {"stats": {name: each.to_dict() for name, each in was.stats.items()}, "data": facts_of(was)}
    with pytest.raises(UsageError, match=message) as caught:
        check_same(Path("ck"), saved, now)
    assert caught.value.message.startswith("ck was trained on other data than here: ")


def test_the_last_digits_of_a_sum_are_no_difference() -> None:
    was = _data([3, 4], mean=float("nan"))
    check_same(Path("ck"), {"stats": {}, "data": facts_of(was)}, was)
    was, now = _data([3, 4]), _data([3, 4], mean=0.5 + 1e-15)
    check_same(Path("ck"), {"stats": {}, "data": facts_of(was)}, now)


def test_resuming_without_a_data_set_makes_no_demo(ckpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import imitate_episodes

    before = _content(ckpt)
    assert imitate_episodes.main([*TINY, "--ckpt_dir", str(ckpt), "--resume", "--num_epochs", "2"]) == 2
    assert "--resume without --dataset" in capsys.readouterr().err and _content(ckpt) == before


def test_nothing_to_train_is_reported_and_the_profile_stays(
    reach: Path, ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "RUN.json"
    kept.write_text("of the first run")
    assert run(reach, ckpt, "--resume", "--profile-out", str(kept)) == 0
    stdout = capsys.readouterr().out
    assert "already at epoch 1 of 1: nothing to train" in stdout and "no profile is written to" in stdout
    assert "will cover" not in stdout and kept.read_text() == "of the first run"


def test_a_resumed_profile_says_what_it_covers(
    reach: Path, ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock import profile

    profile.reset()
    assert run(reach, ckpt, "--resume", "--num_epochs", "2", "--profile-out", str(tmp_path / "RUN.json")) == 0
    assert "RUN.json will cover the steps from 6 on, not those before" in capsys.readouterr().out
    assert json.loads((tmp_path / "RUN.json").read_text())["steps"]["count"] == 5


@pytest.mark.parametrize("kept", [0, 300, 0.5, 0.99])
def test_a_cut_checkpoint_is_reported_in_a_line(
    kept: float, reach: Path, ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (ckpt / "policy_last.ckpt").read_bytes()
    (ckpt / "policy_last.ckpt").write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    assert run(reach, ckpt, "--resume", "--num_epochs", "2") == 2
    stderr = capsys.readouterr().err
    assert "policy_last.ckpt (" in stderr and "is cut or is no checkpoint" in stderr
    assert "policy_best.ckpt beside it can still be tried with --eval" in stderr


def test_a_checkpoint_for_acting_is_none_to_go_on_from(
    reach: Path, ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ckpt / "policy_best.ckpt", ckpt / "policy_last.ckpt")
    assert run(reach, ckpt, "--resume", "--num_epochs", "2") == 2
    assert "it has no optimizer, random, loader" in capsys.readouterr().err


def test_a_best_checkpoint_of_junk_is_reported_in_a_line(
    reach: Path, ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ckpt / "policy_best.ckpt").write_bytes(b"hello junk" * 50)
    assert run(reach, ckpt, "--eval") == 2
    assert "policy_best.ckpt (500 bytes) is cut or is no checkpoint" in capsys.readouterr().err


def _changed(ckpt: Path, name: str, **parts: Any) -> None:
    path = ckpt / name
    content = torch.load(path, weights_only=True)
    torch.save({**content, **parts}, path)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"odd": torch.zeros(2)}},
        {"model": 7},
        {"optimizer": {}},
        {"optimizer": {"param_groups": [], "state": {}}},
        {"random": {}},
        {"sums": None},
        {"stats": {"action": {}}, "data": {}},
    ],
)
def test_content_that_does_not_fit_is_reported_in_a_line(
    parts: dict[str, Any], reach: Path, ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _changed(ckpt, "policy_last.ckpt", **parts)
    assert run(reach, ckpt, "--resume", "--num_epochs", "2") == 2
    stderr = capsys.readouterr().err
    assert "policy_last.ckpt: what it holds does not fit: " in stderr and len(stderr) < 900
    assert "→ put a whole copy in its place, or train anew with --overwrite; policy_best.ckpt beside it" in stderr


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"odd": torch.zeros(2)}},
        {"shape": {"sides": 3}},
        {"columns": {}},
        {"stats": {"action": {"mean": 1}}},
        {"task": {"name": "reach"}},
    ],
)
def test_a_policy_that_does_not_fit_is_reported_in_a_line(
    parts: dict[str, Any], reach: Path, ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _changed(ckpt, "policy_best.ckpt", **parts)
    assert run(reach, ckpt, "--eval", "--tries", "1") == 2
    stderr = capsys.readouterr().err
    assert "policy_best.ckpt: what it holds does not fit: " in stderr and "→ put a whole copy in its place" in stderr


def test_whether_steps_are_fused_is_no_matter_of_the_checkpoint(reach: Path, ckpt: Path) -> None:
    last = read_checkpoint(ckpt / "policy_last.ckpt")
    groups = [{**group, "fused": True} for group in last["optimizer"]["param_groups"]]  # of a run on CUDA
    _changed(ckpt, "policy_last.ckpt", optimizer={**last["optimizer"], "param_groups": groups})
    assert run(reach, ckpt, "--resume", "--num_epochs", "2") == 0
    saved = read_checkpoint(ckpt / "policy_last.ckpt")["optimizer"]["param_groups"]
    assert [group["fused"] for group in saved] == [False, False]


def test_losses_that_were_not_written_any_more_are_written(reach: Path, ckpt: Path) -> None:
    before = _content(ckpt)
    for name in ("history.json", "train_val_seed_0.png"):
        (ckpt / name).unlink()  # stopped after the checkpoint of the last epoch, before these
    assert run(reach, ckpt, "--resume") == 0
    assert _content(ckpt) == before


@pytest.mark.parametrize("words", [[], ["--save_every", "2"]])
def test_a_run_that_is_done_has_a_best(
    words: list[str], reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ck, train_step = tmp_path / "ck", Trainer._train_step

    def stops(self: Trainer, batch: Any) -> None:
        if self.step == 8:  # of the second epoch's five, one or two after what is saved
            raise KeyboardInterrupt
        train_step(self, batch)

    monkeypatch.setattr(Trainer, "_train_step", stops)
    assert run(reach, ck, "--num_epochs", "9", "--val_every", "7", *words) == 130
    monkeypatch.undo()
    assert not (ck / "policy_best.ckpt").exists()
    capsys.readouterr()
    assert run(reach, ck, "--resume", "--num_epochs", "1", "--val_every", "7") == 0
    stdout = capsys.readouterr().out
    assert "already at epoch 1 of 1: nothing to train" in stdout and "inf" not in stdout
    best, last = (read_checkpoint(ck / f"policy_{name}.ckpt") for name in ("best", "last"))
    assert best["step"] == last["step"] == (8 if words else 5) and 0 < last["best_l1"] < 9
    assert ("val_l1" in last["history"][-1]) is not bool(words)  # of weights in the midst of an epoch it tells nothing
    assert [*last["history"]] == json.loads((ck / "history.json").read_text())


def test_a_validation_at_the_end_changes_nothing_in_what_comes_next(reach: Path, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        assert run(reach, tmp_path / name, "--num_epochs", "1") == 0
    last = read_checkpoint(tmp_path / "cut" / "policy_last.ckpt")
    rows = [{key: value for key, value in row.items() if not key.startswith("val")} for row in last["history"]]
    _changed(tmp_path / "cut", "policy_last.ckpt", history=rows, best_l1=float("inf"))
    assert run(reach, tmp_path / "cut", "--resume", "--num_epochs", "1") == 0
    for name in ("whole", "cut"):
        assert run(reach, tmp_path / name, "--resume", "--num_epochs", "2") == 0
    one, two = (read_checkpoint(tmp_path / name / "policy_last.ckpt") for name in ("whole", "cut"))
    assert one["best_l1"] == two["best_l1"] and one["loader"] == two["loader"]
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
