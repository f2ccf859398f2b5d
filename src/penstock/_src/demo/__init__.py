"""A recording that anyone can make: what `penstock demo`, the tests and the benchmarks convert."""

from __future__ import annotations

from penstock.errors import UsageError


def check_ranges(**ranges: tuple[float, float, float]) -> None:
    """Refuse what makes no data: each value is given with the least and the most."""
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            raise UsageError(f"{name} {value:,} is outside {least:,}…{most:,}")
