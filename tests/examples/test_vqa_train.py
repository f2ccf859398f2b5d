"""examples/train_vqa.py learns, and goes on at the exact batch after a stop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from penstock._src.demo.vqa import ShapeScript, write_vqa_set  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("vqa") / "shapes"
    write_vqa_set(directory, ShapeScript(scenes=40, questions=4))
    return directory


def _run(shapes: Path, directory: Path, *words: str) -> int:
    import train_vqa

    tiny = ["--data", str(shapes), "--ckpt_dir", str(directory), "--width", "16", "--batch_size", "16"]
    return train_vqa.main([*tiny, "--epochs", "2", *words])


def _saved(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(directory / "last.pt", weights_only=True)
    return found


@pytest.mark.parametrize("steps", ["3", "9"])
def test_a_run_that_stopped_ends_with_the_same_weights(tmp_path: Path, shapes: Path, steps: str) -> None:
    assert _run(shapes, tmp_path / "whole") == 0
    assert _run(shapes, tmp_path / "parts", "--steps", steps) == 0
    assert _saved(tmp_path / "parts")["step"] == int(steps)
    assert _run(shapes, tmp_path / "parts", "--steps", "2", "--resume") == 0
    assert _run(shapes, tmp_path / "parts", "--resume", "--workers", "2") == 0
    whole, parts = _saved(tmp_path / "whole"), _saved(tmp_path / "parts")
    assert whole["step"] == parts["step"] == 18
    assert whole["history"] == parts["history"]
    assert all(torch.equal(whole["model"][name], parts["model"][name]) for name in whole["model"])


def test_it_learns_what_it_sees(tmp_path: Path, shapes: Path) -> None:
    """Validated on what it was trained on: far above what the questions alone give."""
    from vqa.train import Settings, Trainer

    same = tmp_path / "same"
    same.mkdir()
    (same / "images").symlink_to(shapes / "images")
    for name in ("train", "val"):
        shutil.copy(shapes / "train.jsonl", same / f"{name}.jsonl")
    trainer = Trainer(Settings(str(same), epochs=30, batch_size=32, lr=5e-3, width=32), tmp_path / "ckpt")
    trainer.run()
    trainer.close()
    assert trainer.history[-1]["accuracy"] > trainer.words.question_prior + 0.2
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"] / 2


def test_a_run_is_not_written_over_and_other_words_are_refused(
    tmp_path: Path, shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(shapes, tmp_path / "run", "--resume") == 2
    assert "there is no" in capsys.readouterr().err
    assert _run(shapes, tmp_path / "run", "--steps", "1") == 0
    assert _run(shapes, tmp_path / "run") == 1
    assert "--resume goes on from it" in capsys.readouterr().err
    assert _run(shapes, tmp_path / "run", "--resume", "--lr", "0.1") == 2
    assert "lr was 0.002, and is 0.1 now" in capsys.readouterr().err


def test_answers_that_were_not_seen_are_never_right() -> None:
    from vqa.words import UNKNOWN, UNKNOWN_ANSWER, Words

    words = Words(("is", "there"), ("no", "yes"), 0.5, 0.5)
    assert words("Is there rain?") == [2, 3, UNKNOWN] and words("") == [UNKNOWN]
    assert (words.answer_number("Yes "), words.answer_number("perhaps")) == (1, UNKNOWN_ANSWER)
    assert Words.from_state(words.state()) == words
