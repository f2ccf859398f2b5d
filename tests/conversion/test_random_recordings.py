"""Any recording, any configuration: the data set is the brute-force aligner's, or both refuse."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import AlignError
from tests.align.brute import BruteAlignment, Refused
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, COMMAND, STATE, Message
from tests.conversion.test_rows_against_brute_force import CAMERA, MS, OTHER, Case, Part, brute, compare, renamed

POLICIES = st.sampled_from(["nearest", "hold", "linear"])
MISSING = st.sampled_from(["trim", "trim", "hold", "hold", "reject"])


@st.composite
def stream_times(draw: st.DrawFn, hz: float) -> list[int]:
    """A stream that starts late, stops early, has a hole, jitters, or repeats a time."""
    count = draw(st.integers(3, 14))
    offset = draw(st.integers(-40, 80))
    hole = draw(st.integers(0, count))
    width = draw(st.sampled_from([0, 0, 100, 300]))
    jitter = draw(st.lists(st.integers(-8, 8), min_size=count, max_size=count))
    return sorted(
        bags.START_NS + round(1e9 * n / hz) + (offset + 100 + jitter[n] + (width if n >= hole else 0)) * MS
        for n in range(count)
    )


@st.composite
def recordings(draw: st.DrawFn) -> tuple[list[Message], Case, dict[str, Any]]:
    tape = bags.camera(CAM_H, draw(stream_times(30)), seed=1) + bags.camera(CAM_L, draw(stream_times(12)), seed=2)
    tape += bags.joints(STATE, draw(stream_times(40)), count=2) + bags.joints(COMMAND, draw(stream_times(20)), count=3)
    parts, written = [], []
    for topic in (STATE, COMMAND):
        policy, missing = draw(POLICIES), draw(MISSING)
        tolerance, offset = draw(st.sampled_from([None, 5, 60])), draw(st.integers(-30, 30))
        source: dict[str, Any] = {"topic": topic, "policy": policy, "missing": missing, "time_offset": f"{offset}ms"}
        if tolerance is not None:
            source["tolerance"] = f"{tolerance}ms"
        written.append(source)
        within = None if tolerance is None else tolerance * MS
        parts.append(Part(topic, policy=policy, missing=missing, offset=offset * MS, tolerance=within))
    features = {CAMERA: [Part(CAM_H, None)], OTHER: [Part(CAM_L, None)], "observation.state": parts}
    text: dict[str, Any] = {"features": {CAMERA: CAM_H, OTHER: CAM_L, "observation.state": written}}
    timeline: str | None = draw(st.sampled_from([CAM_H, CAM_L, STATE, None]))
    asked: dict[str, Any] = {"sample_drop": draw(st.sampled_from([0, 0, 1]))}
    if timeline is None:
        asked["fps"] = draw(st.integers(1, 60))
    else:
        asked.update(draw(st.sampled_from([{}, {}, {"stride": 2}, {"fps": 5}, {"fps": 7}])))
    text.update(asked, timeline=timeline or "fixed")
    text["rosbag"] = {"chunk_size": draw(st.sampled_from([0, 1, 3, 1000]))}
    return tape, Case(features, text, timeline, asked), text


def clock_differs(expected: BruteAlignment) -> bool:
    """Whether the rows, and those lost between them, last over 5 % longer or shorter than they did."""
    recorded = expected.times[-1] - expected.times[0]
    stated = (len(expected.times) - 1 + expected.lost) * 1_000_000_000 / expected.fps
    return abs(stated - recorded) > 0.05 * recorded


@settings(max_examples=25)
@given(recordings())
def test_any_conversion_is_the_brute_force_aligners_or_both_refuse(
    made: tuple[list[Message], Case, dict[str, Any]],
) -> None:
    tape, chosen, text = made
    directory = Path(tempfile.mkdtemp(prefix="penstock-random-"))
    try:
        bag = bags.write(directory / "run.bag", tape, chunk_bytes=4096)
        try:
            expected, messages = brute(tape, chosen)
        except Refused:
            try:
                penstock.convert(bag, directory / "out", **text)
            except penstock.PenstockError:
                assert not (directory / "out").exists()
                return
            raise AssertionError("the brute-force aligner refuses this recording") from None
        try:
            report = penstock.convert(bag, directory / "out", **text)
        except AlignError as error:
            assert "timestamps that differ" in error.message
            assert clock_differs(expected) and not (directory / "out").exists()
            return
        assert report.frames == len(expected.times) and report.fps == expected.fps
        assert dict(report.lost) == renamed(expected.lost_by_cause, chosen)
        compare(directory / "out", chosen, expected, messages)
        assert datasets.problems(directory / "out") == []
    finally:
        shutil.rmtree(directory)
