"""Sizes, durations and worker counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.system import units
from penstock.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 * 1024**2),
        ("512 mib", 512 * 1024**2),
        ("2GB", 2_000_000_000),
        ("2G", 2 * 1024**3),
        ("1.5 GiB", 3 * 1024**3 // 2),
        ("1e3", 1000),
        ("1_000_000", 1_000_000),
        ("1,500 kB", 1_500_000),
        ("0.1kB", 100),
        (0, 0),
        (4096, 4096),
        (1e9, 1_000_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, expected: int) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize("bad", ["", "MiB", "12 parsecs", "-1GB", "1GiB x", "nan", "1e99", True, None, -1, 0.5, [1]])
def test_what_is_no_size_is_refused_with_the_value(bad: object) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_bytes(bad)  # type: ignore[arg-type]
    assert repr(bad) in str(caught.value)


def test_infinity_is_no_size() -> None:
    with pytest.raises(UsageError):
        units.parse_bytes(float("inf"))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (149_946_368, "143 MiB"),
        (1_503_238_553, "1.4 GiB"),
        (1024**2 - 1, "1 MiB"),
        (1024**3 - 1, "1 GiB"),
        (-2048, "-2 KiB"),
        (2**80, "1048576 EiB"),
    ],
)
def test_memory_is_shown_in_binary_units(count: int, expected: str) -> None:
    assert units.format_bytes(count) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(999, "999 B"), (999_999, "1 MB"), (470_000_000, "470 MB"), (10_200_000_000, "10.2 GB")]
)
def test_file_sizes_are_shown_in_decimal_units(count: int, expected: str) -> None:
    assert units.format_size(count) == expected


@given(st.integers(0, 2**62))
def test_a_shown_size_is_within_a_twentieth_of_the_real_one(count: int) -> None:
    for shown in (units.format_bytes(count), units.format_size(count)):
        assert abs(units.parse_bytes(shown) - count) <= 0.05 * count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40ms", 40_000_000),
        ("0.1s", 100_000_000),
        (0.04, 40_000_000),
        (2, 2_000_000_000),
        ("2", 2_000_000_000),
        ("1.5", 1_500_000_000),
        ("250us", 250_000),
        ("250 µs", 250_000),
        ("250 μs", 250_000),
        ("5 min 40 s", 340_000_000_000),
        ("1h", 3_600_000_000_000),
        ("-2ms", -2_000_000),
        (-0.002, -2_000_000),
        (1e-9, 1),
        ("1e-3", 1_000_000),
    ],
)
def test_durations_are_read_exactly(text: str | float, expected: int) -> None:
    assert units.parse_duration_ns(text) == expected


@pytest.mark.parametrize("bad", ["", "-", "ms", "4 weeks", "1s2", "1e30", "nan", None, True, "--1s"])
def test_what_is_no_duration_is_refused_with_the_value(bad: object) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_duration_ns(bad)  # type: ignore[arg-type]
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (850, "850 ns"),
        (4_000_000, "4.0 ms"),
        (999_960_000, "1.0 s"),
        (33_100_000_000, "33.1 s"),
        (59_990_000_000, "1 min 0 s"),
        (340_000_000_000, "5 min 40 s"),
        (7_500_000_000_000, "2 h 5 min"),
        (3_599_700_000_000, "1 h 0 min"),
        (-4_000_000, "-4.0 ms"),
        (0, "0 ns"),
    ],
)
def test_durations_are_shown_for_people(ns: int, expected: str) -> None:
    assert units.format_duration_ns(ns) == expected


@given(st.integers(-(2**62), 2**62))
def test_the_exact_text_of_a_duration_reads_back_as_the_same_number(ns: int) -> None:
    assert units.parse_duration_ns(units.duration_text(ns)) == ns


@given(st.integers(1_000, 2**62))
def test_a_shown_duration_reads_back_close(ns: int) -> None:
    assert abs(units.parse_duration_ns(units.format_duration_ns(ns)) - ns) <= 0.05 * ns


@pytest.mark.parametrize(
    ("value", "cpus", "expected"),
    [
        ("auto", 40, 32),
        ("cpu*0.9", 40, 36),
        ("cpu*0.7", 10, 7),
        ("CPU", 6, 6),
        ("auto", 1, 1),
        ("cpu*0.01", 4, 1),
        ("auto", 2.5, 2),
        (32, 4, 32),
        ("4", 40, 4),
    ],
)
def test_workers_follow_the_cpus_granted(value: str | int, cpus: float, expected: int) -> None:
    assert units.parse_workers(value, cpus) == expected


@pytest.mark.parametrize("bad", ["many", "cpu*", "cpu*0", "cpu*-1", 0, -1, "0", True, 1.5, "1.5", ""])
def test_what_is_no_number_of_workers_is_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="cpu"):
        units.parse_workers(bad, 8)  # type: ignore[arg-type]
