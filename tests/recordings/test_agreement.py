"""What convert writes, what doctor tells and what recover counts is the same loss, on every recording."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import recordings
from penstock._src.recordings.check import check_recording
from penstock.errors import PenstockError
from tests.recordings.agreement import MADE, SHARED, SHARED_WORDS, compare
from tests.recordings.made import WORDS, Made, bag, db3, mcap

SHARED_NAMES = [str(path.relative_to(SHARED)) for path in recordings.find([SHARED])] if SHARED.is_dir() else []


@pytest.mark.parametrize("case", MADE, ids=[case.name for case in MADE])
def test_the_three_commands_agree_on_what_is_lost(case: Made, tmp_path: Path) -> None:
    case.make(tmp_path / case.name)
    # What is lost may leave a hole in the timeline: a new episode begins there, or the clock would be another.
    row = compare(case.name, tmp_path / case.name, (*WORDS, "episodes.gap=200ms"), tmp_path)
    assert row.agree, row
    assert (row.recover, row.unknown) == (case.lost + case.unknown, case.unknown), row
    assert (row.convert is None) == case.refused, row
    assert row.others[1] == case.others and row.others[0] in (case.others, None), row
    if not (case.lost or case.unknown or case.refused):
        assert row.rows == 60


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_the_three_commands_agree_on_public_recordings(name: str, tmp_path: Path) -> None:
    row = compare(name, SHARED / name, SHARED_WORDS.get(name, ()), tmp_path)
    assert row.agree and row.recover == 0, row


KINDS = {
    "plain.bag": lambda path: bag(path),
    "lz4.bag": lambda path: bag(path, compression="lz4"),
    "plain.mcap": lambda path: mcap(path),
    "loose.mcap": lambda path: mcap(path, use_chunking=False),
    "a.db3": lambda path: db3(path),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = tmp_path_factory.mktemp("whole")
    return {name: make(place / name) for name, make in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["flip", "insert", "zeros", "cut"]))
def test_any_damage_is_counted_alike_by_doctor_and_recover(
    whole: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, how: str
) -> None:
    rng = random.Random(seed)
    data = whole[kind]
    at = rng.randrange(len(data) // 20, len(data))
    flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    padded = data[:at] + bytes(50) + data[at:]
    damaged = {"flip": flipped, "insert": padded, "zeros": _zeroed(data, at), "cut": data[:at]}[how]
    place = tmp_path_factory.mktemp("damaged")
    path = place / kind
    path.write_bytes(damaged)
    try:
        counted = check_recording(path, lambda *_: None)
    except PenstockError:
        return  # nothing of it can be saved
    assert counted["lost"] == recordings.recover(path, place / f"new{path.suffix}").lost_count


def _zeroed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(min(20, len(data) - at)) + data[at + 20 :]
