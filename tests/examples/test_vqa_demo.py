"""`penstock demo vqa`: the answers are those of the scenes, and looking at the image is what helps."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.demo.vqa import COLOURS, SHAPES, ShapeScript, draw, scene_of, write_vqa_set
from penstock.errors import OutputExists, UsageError

SCRIPT = ShapeScript(scenes=400, questions=4)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_vqa_set(tmp_path / name, ShapeScript(scenes=6, questions=3))
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 8
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    assert scene_of(ShapeScript(seed=1), 0) != scene_of(ShapeScript(), 0)


def test_answers_are_true_of_the_scene() -> None:
    for number in range(200):
        things, asked = scene_of(SCRIPT, number)
        assert len({each.question for each in asked}) == len(asked)
        for each in asked:
            words = each.question.rstrip("?").split()
            colours = [word for word in words if word in COLOURS]
            shapes = [word.rstrip("s") for word in words if word.rstrip("s") in SHAPES]
            fitting = [
                thing for thing in things if thing.colour in (colours or COLOURS) and thing.shape in (shapes or SHAPES)
            ]
            if each.kind == "count":
                assert each.answer == str(len(fitting))
            elif each.kind == "yes or no":
                assert each.answer == ("yes" if fitting else "no")
            else:
                (thing,) = fitting
                sides = {"left": thing.x < 0.5, "right": thing.x > 0.5, "top": thing.y < 0.5, "bottom": thing.y > 0.5}
                assert each.answer in (thing.colour, thing.shape) or sides[each.answer]


def test_images_show_the_colours() -> None:
    things, _ = next(scene for scene in (scene_of(SCRIPT, n) for n in range(50)) if len(scene[0]) == 1)
    image = draw(SCRIPT, 0, things)
    at = image[round(things[0].y * 64), round(things[0].x * 64)].astype(int)
    assert np.abs(at - COLOURS[things[0].colour]).max() < 40


def test_who_does_not_look_is_right_in_half_of_the_cases() -> None:
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(400):
        for each in scene_of(SCRIPT, number)[1]:
            answers[each.question][each.answer] += 1
    total = sum(sum(each.values()) for each in answers.values())
    assert sum(each.most_common(1)[0][1] for each in answers.values()) / total < 0.55


def test_the_verb_makes_a_data_set_that_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shapes"
    assert main(["demo", "vqa", "--out", str(out), "--scenes", "20", "--questions", "3", "--size", "48x64"]) == 0
    assert "next: penstock inspect" in capsys.readouterr().out
    with penstock.open(out / "train.jsonl") as train, penstock.open(out / "val.jsonl") as val:
        assert train.rows == 54 and val.rows == 6
        assert train.columns["image"].shape == (48, 64, 3)
        assert int(val.numbers("image_id", np.array([0]))[0]) == 18
    with pytest.raises(OutputExists, match="is left alone"):
        write_vqa_set(out, SCRIPT)
    for words in (["--scenes", "1"], ["--size", "big"]):
        assert main(["demo", "vqa", "--out", str(tmp_path / "no"), *words]) == UsageError.exit_code
