"""Reads LeRobot v2.0 and v2.1: one file per episode and camera, metadata as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.formats.content import foreign_content
from penstock._src.lerobot import layout
from penstock._src.lerobot.metadata import LARGEST_JSON_BYTES, EpisodeArrays
from penstock.errors import DataSetCorrupt, LimitExceeded

TASKS_PATH = "meta/tasks.jsonl"
EPISODES_PATH = "meta/episodes.jsonl"


def read_tasks(root: Path) -> list[str]:
    """The texts of meta/tasks.jsonl; the position is the task_index."""
    tasks: dict[int, str] = {}
    for number, entry in json_lines(root, TASKS_PATH, "task_index"):
        text = entry.get("task")
        if not isinstance(text, str):
            raise _bad_line(root / TASKS_PATH, number, f"task is {text!r}, not a text")
        if tasks.setdefault(entry["task_index"], text) != text:
            raise _bad_line(root / TASKS_PATH, number, f"task_index {entry['task_index']} has two texts")
    if sorted(tasks) != list(range(len(tasks))):
        raise DataSetCorrupt(
            f"{root / TASKS_PATH}: task_index is not 0…{len(tasks) - 1} but {sorted(tasks)[:10]}",
            hint="number the lines from 0 without a gap",
        )
    return [tasks[number] for number in range(len(tasks))]


def read_episodes(root: Path) -> EpisodeArrays:
    """meta/episodes.jsonl; places in files stay zero, for every episode has files of its own."""
    index: list[int] = []
    length: list[int] = []
    tasks: list[tuple[str, ...]] = []
    seen: dict[int, int] = {}
    for number, entry in json_lines(root, EPISODES_PATH, "episode_index", "length"):
        episode = entry["episode_index"]
        if episode in seen:
            raise _bad_line(root / EPISODES_PATH, number, f"episode {episode} stands in line {seen[episode]}, too")
        seen[episode] = number
        named = entry.get("tasks", [])
        if not isinstance(named, list) or not all(isinstance(task, str) for task in named):
            raise _bad_line(root / EPISODES_PATH, number, "tasks is not a list of texts")
        index.append(episode)
        length.append(entry["length"])
        tasks.append(tuple(named))
    lengths = np.array(length, dtype=np.int64)
    end_row = np.cumsum(lengths)
    zeros = np.zeros_like(lengths)
    return EpisodeArrays(
        np.array(index, dtype=np.int64), lengths, end_row - lengths, end_row, zeros, zeros, tasks=tasks, videos={}
    )


def json_lines(root: Path, relative: str, *whole: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a .jsonl file; the entries named by `whole` must be whole numbers from 0."""
    path = layout.path_in(root, relative)
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON_BYTES:
            raise LimitExceeded(f"{path}: {size:,} bytes of JSON lines", size=size, limit=LARGEST_JSON_BYTES)
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _parsed(path, number, line, whole)
    except OSError as error:
        raise DataSetCorrupt(
            f"{path}: cannot be read: {error.strerror}", hint="a v2.x data set needs it; fetch the data set again"
        ) from error


def _parsed(path: Path, number: int, line: bytes, whole: tuple[str, ...]) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if (foreign := foreign_content(path, "json")) is not None:
            raise DataSetCorrupt(f"{path} is {foreign.what}, not JSON", hint=foreign.hint) from None
        raise _bad_line(path, number, f"not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise _bad_line(path, number, f"a {type(entry).__name__} instead of an object")
    for name in whole:
        value = entry.get(name)
        if type(value) is not int or not 0 <= value < 2**53:
            raise _bad_line(path, number, f"{name} is {value!r}, not a whole number, 0 or more")
    return entry


def _bad_line(path: Path, number: int, problem: str) -> DataSetCorrupt:
    return DataSetCorrupt(f"{path}: line {number} cannot be used: {problem}")
