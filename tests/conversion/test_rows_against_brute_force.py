"""Every row of a data set holds what the brute-force aligner names: images byte for byte, numbers value for value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from tests.align.brute import BruteAlignment, BruteStream, Choice, brute_align
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, COMMAND, STATE, Message

MS = 1_000_000


def position(message: Message) -> list[float]:
    return list(message.content.position)


def data(message: Message) -> list[float]:
    return list(message.content.data)


def pose(message: Message) -> list[float]:
    return [*message.content.position, *message.content.orientation]


@dataclass(frozen=True)
class Part:
    """One topic's share of a feature, as the test understands it; `value` is None for a camera."""

    topic: str
    value: Callable[[Message], Sequence[float]] | None = position
    policy: str = "nearest"
    offset: int = 0
    tolerance: int | None = None
    missing: str = "trim"
    clock: str = "log"


@dataclass(frozen=True)
class Case:
    """A configuration, and the same thing said to the brute-force aligner."""

    features: dict[str, list[Part]]
    settings: dict[str, Any]
    timeline: str | None = CAM_H
    brute: dict[str, Any] = field(default_factory=dict)


CAMERA = "observation.images.h"
OTHER = "observation.images.l"
BOTH = {CAMERA: [Part(CAM_H, None)], OTHER: [Part(CAM_L, None)]}
WRITTEN = {CAMERA: CAM_H, OTHER: CAM_L}


def case(
    parts: dict[str, list[Part]], written: dict[str, Any], *, brute: dict[str, Any] | None = None, **more: Any
) -> Case:
    timeline = more.pop("brute_timeline", CAM_H)
    return Case({**BOTH, **parts}, {"features": {**WRITTEN, **written}, **more}, timeline, brute or {})


S = "observation.state"
PERMUTED = ["joint_2", "joint_0"]

CASES = {
    "nearest": case({S: [Part(STATE)]}, {S: STATE}),
    "hold": case({S: [Part(STATE, policy="hold")]}, {S: {"topic": STATE, "policy": "hold"}}),
    "linear": case({S: [Part(STATE, policy="linear")]}, {S: {"topic": STATE, "policy": "linear"}}),
    "slerp": case({S: [Part("/pose", pose, policy="slerp")]}, {S: {"topic": "/pose", "policy": "slerp"}}),
    "tight tolerance loses rows": case({S: [Part(STATE, tolerance=3 * MS)]}, {S: {"topic": STATE, "tolerance": "3ms"}}),
    "hold missing": case(
        {S: [Part("/slow", data, policy="hold", tolerance=20 * MS, missing="hold")]},
        {S: {"topic": "/slow", "policy": "hold", "tolerance": "20ms", "missing": "hold"}},
    ),
    "time offset": case({S: [Part(STATE, offset=-37 * MS)]}, {S: {"topic": STATE, "time_offset": "-37ms"}}),
    "degrees, scale and offset": case(
        {S: [Part(STATE, lambda m: [math.radians(x) * 2.5 + 1 for x in m.content.position])]},
        {S: {"topic": STATE, "unit": "deg", "scale": 2.5, "offset": 1}},
    ),
    "scale per dimension": case(
        {S: [Part(STATE, lambda m: [x * k for x, k in zip(m.content.position, (1, 2, 3, 4), strict=True)])]},
        {S: {"topic": STATE, "scale": [1, 2, 3, 4]}},
    ),
    "names in another order": case(
        {S: [Part(STATE, lambda m: [m.content.position[2], m.content.position[0]])]},
        {S: {"topic": STATE, "names": PERMUTED}},
    ),
    "slices": case(
        {S: [Part("/array", lambda m: m.content.data[2:5])]}, {S: {"topic": "/array", "field": "data[2:5]"}}
    ),
    "three topics in one vector, each in its own way": case(
        {S: [Part(STATE), Part("/array", data, policy="linear"), Part(COMMAND, policy="hold", offset=5 * MS)]},
        {
            S: [
                {"topic": STATE},
                {"topic": "/array", "policy": "linear"},
                {"topic": COMMAND, "policy": "hold", "time_offset": "5ms"},
            ]
        },
    ),
    "one topic twice in one vector": case(
        {S: [Part(STATE), Part(STATE, lambda m: m.content.velocity)]},
        {S: [{"topic": STATE, "field": "position"}, {"topic": STATE, "field": "velocity"}]},
    ),
    "stride": case({S: [Part(STATE)]}, {S: STATE}, stride=3, brute={"stride": 3}),
    "target fps by stride": case({S: [Part(STATE)]}, {S: STATE}, fps=10, brute={"fps": 10}),
    "target fps on a grid": case({S: [Part(STATE)]}, {S: STATE}, fps=13, brute={"fps": 13}),
    "fixed timeline slower than the cameras": case(
        {S: [Part(STATE)]}, {S: STATE}, timeline="fixed", fps=7, brute={"fps": 7}, brute_timeline=None
    ),
    "fixed timeline faster than the cameras": case(
        {S: [Part(STATE, policy="linear")]},
        {S: {"topic": STATE, "policy": "linear"}},
        timeline="fixed",
        fps=80,
        brute={"fps": 80},
        brute_timeline=None,
    ),
    "sample_drop": case({S: [Part(STATE)]}, {S: STATE}, sample_drop=4, brute={"sample_drop": 4}),
    "timeline of a vector": case(
        {S: [Part("/array", data)]}, {S: "/array"}, timeline="/array", brute_timeline="/array"
    ),
}


@pytest.fixture(scope="module")
def tape() -> list[Message]:
    return [
        *bags.robot(1.5),
        *bags.arrays("/array", bags.times(45, 1.4, offset_s=0.05, jitter_s=0.004, seed=9)),
        *bags.arrays("/slow", bags.times(8, 1.3, offset_s=0.1, seed=11), count=2),
        *bags.poses("/pose", bags.times(40, 1.5, jitter_s=0.003, seed=12)),
    ]


@pytest.fixture(scope="module")
def moving(tape: list[Message]) -> list[Message]:
    """The tape, with joint velocities too."""
    joints = bags.joints(STATE, [m.time_ns for m in bags.of(tape, STATE)], velocity=True)
    return [m for m in tape if m.topic != STATE] + joints


@pytest.fixture(scope="module")
def bag(moving: list[Message], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("brute") / "run.bag", moving)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_brute_force_aligner(name: str, moving: list[Message], bag: Path, tmp_path: Path) -> None:
    chosen = CASES[name]
    report = penstock.convert(bag, tmp_path / "out", **chosen.settings)
    expected, messages = brute(moving, chosen)
    assert report.frames == len(expected.times) > 0
    assert report.fps == expected.fps
    assert dict(report.lost) == {cause: n for cause, n in renamed(expected.lost_by_cause, chosen).items() if n}
    compare(tmp_path / "out", chosen, expected, messages)


def test_header_time_pairs_by_the_stamps_inside_the_messages(tmp_path: Path) -> None:
    """The joints are received 50 ms late; by their stamps they belong to other images."""
    tape = [
        *bags.camera(CAM_H, bags.times(30, 1), stamp_late_ns=3 * MS),
        *bags.camera(CAM_L, bags.times(30, 1, offset_s=0.01), stamp_late_ns=0),
        *bags.joints(STATE, bags.times(100, 1, offset_s=0.05), stamp_late_ns=50 * MS),
    ]
    bag = bags.write(tmp_path / "run.bag", tape)
    images = {CAMERA: [Part(CAM_H, None, clock="header")], OTHER: [Part(CAM_L, None, clock="header")]}
    stamped = Case({**images, S: [Part(STATE, clock="header")]}, {})
    received = Case({**BOTH, S: [Part(STATE)]}, {})
    results = []
    for chosen, clock in ((stamped, "header"), (received, "log")):
        out = tmp_path / clock
        penstock.convert(bag, out, features={**WRITTEN, S: STATE}, time=clock)
        compare(out, chosen, *brute(tape, chosen))
        results.append(datasets.values(out, S))
    assert results[0].shape != results[1].shape or not np.array_equal(results[0], results[1])


def test_time_can_be_chosen_for_one_topic(tmp_path: Path) -> None:
    tape = [*bags.camera(CAM_H, bags.times(30, 1)), *bags.joints(STATE, bags.times(100, 1), stamp_late_ns=200 * MS)]
    bag = bags.write(tmp_path / "run.bag", tape)
    chosen = Case({CAMERA: [Part(CAM_H, None)], S: [Part(STATE, clock="header")]}, {})
    penstock.convert(bag, tmp_path / "out", features={CAMERA: CAM_H, S: {"topic": STATE, "time": "header"}})
    compare(tmp_path / "out", chosen, *brute(tape, chosen))


def test_messages_out_of_order_in_the_file_are_paired_by_their_stamps(tmp_path: Path) -> None:
    """Receive times are in order; the stamps are not, and two are the same."""
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.joints(STATE, bags.times(100, 1))
    swapped = [m.stamp_ns for m in bags.of(tape, STATE)]
    swapped[20], swapped[21], swapped[50] = swapped[21], swapped[20], swapped[49]
    stamps = iter(swapped)
    tape = [m if m.topic != STATE else bags.replace(m, stamp_ns=next(stamps)) for m in bags.in_file_order(tape)]
    bag = bags.write(tmp_path / "run.bag", tape)
    chosen = Case({CAMERA: [Part(CAM_H, None, clock="header")], S: [Part(STATE, clock="header")]}, {})
    report = penstock.convert(bag, tmp_path / "out", features={CAMERA: CAM_H, S: STATE}, time="header")
    compare(tmp_path / "out", chosen, *brute(tape, chosen))
    assert any("backwards" in note for note in report.notes)


# ── the expectation ──────────────────────────────────────────────────────────────────────────────────────────────────


def stream_key(key: str, place: int) -> str:
    return f"{key}#{place}"


def brute(tape: list[Message], chosen: Case) -> tuple[BruteAlignment, dict[str, list[Message]]]:
    streams, messages = [], {}
    timeline = None
    for key, parts in chosen.features.items():
        for place, part in enumerate(parts):
            name = stream_key(key, place)
            messages[name] = bags.of(tape, part.topic)
            at = [m.stamp_ns if part.clock == "header" else m.time_ns for m in messages[name]]
            streams.append(BruteStream(name, at, part.policy, part.tolerance, part.offset, part.missing))
            if part.topic == chosen.timeline and timeline is None:
                timeline = name
    assert (timeline is None) == (chosen.timeline is None)
    return brute_align(streams, timeline=timeline, **chosen.brute), messages


def renamed(lost: dict[str, int], chosen: Case) -> dict[str, int]:
    names = {}
    for key, parts in chosen.features.items():
        for place, part in enumerate(parts):
            names[f"gap:{stream_key(key, place)}"] = f"gap:{key}" if len(parts) == 1 else f"gap:{key} ← {part.topic}"
    return {names[cause]: count for cause, count in lost.items()}


def compare(out: Path, chosen: Case, expected: BruteAlignment, messages: dict[str, list[Message]]) -> None:
    for key, parts in chosen.features.items():
        if parts[0].value is None:
            name = stream_key(key, 0)
            wanted = [messages[name][choice.left].content.data for choice in expected.choices[name]]
            assert datasets.samples(out, key) == wanted
            continue
        columns = []
        for place, part in enumerate(parts):
            name = stream_key(key, place)
            columns.append([blend(part, messages[name], choice) for choice in expected.choices[name]])
        wanted_values = np.concatenate([np.array(column) for column in columns], axis=1)
        found = datasets.values(out, key)
        assert found.shape == wanted_values.shape
        if all(part.policy in ("nearest", "hold") for part in parts):
            assert np.array_equal(found, wanted_values.astype(np.float32))
        else:
            np.testing.assert_allclose(found, wanted_values, rtol=0, atol=2e-6)


def blend(part: Part, messages: list[Message], choice: Choice) -> np.ndarray:
    assert part.value is not None
    left, right = (np.array(part.value(messages[n]), dtype=np.float64) for n in (choice.left, choice.right))
    weight = float(choice.weight)
    mixed = left + weight * (right - left)
    if part.policy == "slerp":
        # The test's quaternions turn about z alone: half-angles are added as numbers.
        half = [math.atan2(q[5], q[6]) for q in (left, right)]
        turned = half[0] + weight * (half[1] - half[0])
        mixed[3:] = [0.0, 0.0, math.sin(turned), math.cos(turned)]
    return mixed
