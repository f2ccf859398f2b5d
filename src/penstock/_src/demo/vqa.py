"""Questions about shapes: images of coloured circles, squares and triangles, and what can be asked of them.

write_vqa_set(Path("shapes"), ShapeScript(scenes=2000))      # images/*.jpg, train.jsonl, val.jsonl

Five kinds of questions: a colour, a shape, a count, a position, yes or no. Most have several answers that are about
equally likely: who does not look at the image is right in less than half of the cases.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.demo import check_ranges
from penstock._src.media.image.codec import encode_jpeg
from penstock.errors import OutputExists, UsageError

COLOURS = {"red": (214, 48, 40), "green": (40, 160, 70), "blue": (45, 80, 215), "yellow": (235, 200, 40)}
SHAPES = ("circle", "square", "triangle")
SPLITS = ("train", "val")
_GRID = 3  # cells of a side; a shape lies in a cell of its own
_MOST_SHAPES = 5
_BLOCK = 256  # scenes drawn at a time
_MOST_SCENES = 10_000_000


@dataclass(frozen=True)
class ShapeScript:
    """How many scenes, how many questions about each, and how large the images are."""

    scenes: int = 2000
    questions: int = 6
    height: int = 64
    width: int = 64
    val_share: float = 0.1
    seed: int = 0

    def check(self) -> None:
        check_ranges(
            scenes=(self.scenes, 2, _MOST_SCENES),
            questions=(self.questions, 1, 100),
            height=(self.height, 32, 4096),
            width=(self.width, 32, 4096),
            seed=(self.seed, 0, 1 << 62),
        )
        if not 0 < self.val_share < 1:
            raise UsageError(f"val_share {self.val_share:g} is not between 0 and 1")

    @property
    def val_scenes(self) -> int:
        return max(1, min(self.scenes - 1, round(self.scenes * self.val_share)))


@dataclass(frozen=True)
class SceneShape:
    """One shape of a scene; its place as parts of the image, from the left and from the top."""

    colour: str
    shape: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class SceneQuestion:
    """A question about a scene."""

    question: str
    answer: str
    kind: str


def scene_of(script: ShapeScript, number: int) -> tuple[list[SceneShape], list[SceneQuestion]]:
    """The shapes of a scene and the questions about it: the same for the same seed and number."""
    rng = np.random.default_rng([script.seed, number])
    cells = rng.permutation(_GRID * _GRID)[: rng.integers(1, _MOST_SHAPES + 1)]
    things = []
    for cell in cells.tolist():
        radius = rng.uniform(0.26, 0.4) / _GRID
        x, y = ((place + 0.5 + rng.uniform(-0.1, 0.1)) / _GRID for place in (cell % _GRID, cell // _GRID))
        things.append(SceneShape(str(rng.choice(list(COLOURS))), str(rng.choice(SHAPES)), x, y, radius))
    kinds = (_colour, _shape, _count, _position, _presence)
    questions: dict[str, SceneQuestion] = {}
    for _ in range(20 * script.questions):
        question = kinds[rng.integers(len(kinds))](things, rng)
        if question is not None:
            questions.setdefault(question.question, question)
        if len(questions) == script.questions:
            break
    return things, list(questions.values())


def _only_match(things: list[SceneShape], name: str, value: str) -> SceneShape | None:
    matching = [thing for thing in things if getattr(thing, name) == value]
    return matching[0] if len(matching) == 1 else None


def _colour(things: list[SceneShape], rng: np.random.Generator) -> SceneQuestion | None:
    shape = str(rng.choice(SHAPES))
    shape_found = _only_match(things, "shape", shape)
    return None if shape_found is None else SceneQuestion(f"What colour is the {shape}?", shape_found.colour, "colour")


def _shape(things: list[SceneShape], rng: np.random.Generator) -> SceneQuestion | None:
    colour = str(rng.choice(list(COLOURS)))
    shape_found = _only_match(things, "colour", colour)
    return (
        None
        if shape_found is None
        else SceneQuestion(f"What shape is the {colour} object?", shape_found.shape, "shape")
    )


def _count(things: list[SceneShape], rng: np.random.Generator) -> SceneQuestion:
    if rng.random() < 0.5:
        colour = str(rng.choice(list(COLOURS)))
        count = sum(thing.colour == colour for thing in things)
        return SceneQuestion(f"How many {colour} objects are there?", str(count), "count")
    shape = str(rng.choice(SHAPES))
    count = sum(thing.shape == shape for thing in things)
    return SceneQuestion(f"How many {shape}s are there?", str(count), "count")


def _position(things: list[SceneShape], rng: np.random.Generator) -> SceneQuestion | None:
    shape = str(rng.choice(SHAPES))
    shape_found = _only_match(things, "shape", shape)
    if shape_found is None:
        return None
    if rng.random() < 0.5:
        names, place = ("left", "right"), shape_found.x
    else:
        names, place = ("top", "bottom"), shape_found.y
    if abs(place - 0.5) < 0.5 / _GRID:  # in the middle: neither
        return None
    return SceneQuestion(f"Is the {shape} at the {names[0]} or at the {names[1]}?", names[place > 0.5], "position")


def _presence(things: list[SceneShape], rng: np.random.Generator) -> SceneQuestion:
    there = {(thing.colour, thing.shape) for thing in things}
    if rng.random() < 0.5:
        thing = things[rng.integers(len(things))]
        colour, shape = thing.colour, thing.shape
    else:  # a colour and a shape that are there, though perhaps not together
        colour, shape = things[rng.integers(len(things))].colour, str(rng.choice(SHAPES))
    answer = "yes" if (colour, shape) in there else "no"
    return SceneQuestion(f"Is there a {colour} {shape}?", answer, "yes or no")


def draw(script: ShapeScript, number: int, things: list[SceneShape]) -> NDArray[np.uint8]:
    """RGB of a scene: shapes on a light ground with some noise."""
    import cv2

    rng = np.random.default_rng([script.seed, number, 1])
    height, width = script.height, script.width
    ground = np.linspace(rng.uniform(190, 235), rng.uniform(190, 235), height)[:, None, None]
    image = np.broadcast_to(ground, (height, width, 3)).astype(np.uint8)
    image = np.ascontiguousarray(image)
    for thing in things:
        at = (round(thing.x * width), round(thing.y * height))
        radius = max(2, round(thing.radius * min(height, width)))
        colour = COLOURS[thing.colour]
        if thing.shape == "circle":
            cv2.circle(image, at, radius, colour, -1, cv2.LINE_AA)
        elif thing.shape == "square":
            corner = (at[0] - radius, at[1] - radius), (at[0] + radius, at[1] + radius)
            cv2.rectangle(image, *corner, colour, -1)
        else:
            tips = [(0, -radius), (radius, radius), (-radius, radius)]
            points = np.array([(at[0] + x, at[1] + y) for x, y in tips], np.int32)
            cv2.fillPoly(image, [points], colour, cv2.LINE_AA)
    noise = rng.normal(0, 6, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def write_vqa_set(directory: Path, script: ShapeScript) -> int:
    """Images and records of all scenes; the last of them are for validation. Returns the bytes written."""
    script.check()
    for split in SPLITS:
        if (directory / f"{split}.jsonl").exists():
            raise OutputExists(
                f"{directory / f'{split}.jsonl'} exists: it is left alone", hint="choose another directory"
            )
    images = directory / "images"
    images.mkdir(parents=True, exist_ok=True)
    total = 0
    first_val = script.scenes - script.val_scenes
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for split, scenes in zip(SPLITS, (range(first_val), range(first_val, script.scenes)), strict=True):
            with (directory / f"{split}.jsonl").open("wb") as file:
                for data in _records(directory, script, scenes, pool):
                    total += len(data[0]) + data[1]
                    file.write(data[0])
    return total


def _records(
    directory: Path, script: ShapeScript, scenes: range, pool: ThreadPoolExecutor
) -> Iterator[tuple[bytes, int]]:
    """(lines, bytes of the image) of one scene after the other."""

    def make(number: int) -> tuple[bytes, int]:
        things, questions = scene_of(script, number)
        name = f"images/{number:07d}.jpg"
        data = encode_jpeg(draw(script, number, things), quality=92, subsampling="4:4:4")
        (directory / name).write_bytes(data)
        lines = []
        for place, each in enumerate(questions):
            numbers = {"question_id": number * script.questions + place, "image_id": number}
            record = {**numbers, "image": name, "question": each.question, "answer": each.answer, "type": each.kind}
            lines.append(json.dumps(record).encode() + b"\n")
        return b"".join(lines), len(data)

    for first in range(0, len(scenes), _BLOCK):
        yield from pool.map(make, scenes[first : first + _BLOCK])
