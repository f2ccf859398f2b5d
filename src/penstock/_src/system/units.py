"""Sizes, durations and worker counts: what people write, and what they like to read.

>>> parse_bytes("512MiB"), format_bytes(149_946_368), format_size(10_200_000_000)
(536870912, '143 MiB', '10.2 GB')
>>> parse_duration_ns("40ms"), format_duration_ns(340_000_000_000)
(40000000, '5 min 40 s')
>>> parse_workers("cpu*0.8", cpus=40)
32
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from penstock.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_BINARY_NAMES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL_NAMES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")

# A bare K, M, G… is binary, as in Docker and systemd; "MB" is decimal, as on a disk's label.
_BYTE_FACTORS = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtpe", start=1):
    _BYTE_FACTORS[f"{_letter}ib"] = _BYTE_FACTORS[_letter] = 1024**_power
    _BYTE_FACTORS[f"{_letter}b"] = 1000**_power

_NS_FACTORS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu: what many keyboards give
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "sec": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}

_NUMBER = r"(?:\d+(?:[_,]\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµμ]+)")
_WORKERS = re.compile(rf"cpus?\s*(?:\*\s*({_NUMBER}))?", re.IGNORECASE)
_MAX = 2**63 - 1  # what file offsets, Arrow and numpy hold


def _number(text: str) -> Decimal:
    return Decimal(text.replace("_", "").replace(",", ""))


def parse_bytes(value: str | int | float) -> int:
    """A size in bytes from "512MiB", "2GB", "1.5 GiB", "800M" (binary) or a whole number."""
    expected = "a size such as 512MiB, 2GB or 1073741824"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"expected {expected}, not {value!r}")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise UsageError(f"{value!r} is not {expected}")
        factor = _BYTE_FACTORS.get(match[2].lower())
        if factor is None:
            raise UsageError(f"{value!r}: unknown unit {match[2]!r}", hint="use KiB, MiB, GiB, TiB or kB, MB, GB, TB")
        exact = _number(match[1]) * factor
    else:
        exact = Decimal(str(value))
    if not exact.is_finite() or not 0 <= exact <= _MAX:
        raise UsageError(f"{value!r} is not {expected}: it must lie between 0 and 2^63 - 1 bytes")
    if not isinstance(value, str) and exact != int(exact):
        raise UsageError(f"{value!r} is not a whole number of bytes", hint=f"write {expected}")
    return int(exact)


def _scaled(count: int, base: int, names: tuple[str, ...]) -> str:
    sign, size = ("-", -count) if count < 0 else ("", count)
    if size < base:
        return f"{sign}{size} B"
    value, power = float(size), 0
    # 1023.96 would print as "1024 MiB": round first, then decide whether the next unit is due.
    while power + 1 < len(names) and round(value, 1 if value < 99.95 else 0) >= base:
        value, power = value / base, power + 1
    text = f"{value:.1f}".removesuffix(".0") if value < 99.95 else f"{value:.0f}"
    return f"{sign}{text} {names[power]}"


def format_bytes(count: int) -> str:
    """Memory, in binary units: "143 MiB", "1.4 GiB"."""
    return _scaled(int(count), 1024, _BINARY_NAMES)


def format_size(count: int) -> str:
    """A file's size, in decimal units as shells and disks show it: "10.2 GB"."""
    return _scaled(int(count), 1000, _DECIMAL_NAMES)


def parse_duration_ns(value: str | int | float) -> int:
    """Nanoseconds from "40ms", "0.5s", "5 min 40 s", "-2ms" or a number of seconds; exact for decimal fractions."""
    expected = "a duration such as 40ms, 0.5s or 0.5 (seconds)"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"expected {expected}, not {value!r}")
    text = str(value).strip()
    sign, magnitude = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if re.fullmatch(_NUMBER, magnitude):
        total = _number(magnitude) * 1_000_000_000
    else:
        total, position = Decimal(0), 0
        while position < len(magnitude):
            part = _DURATION_PART.match(magnitude, position)
            factor = _NS_FACTORS.get(part[2]) if part else None
            if part is None or factor is None:
                raise UsageError(f"{value!r} is not {expected}", hint="units: ns, us, ms, s, min, h")
            total, position = total + _number(part[1]) * factor, part.end()
        if not position:
            raise UsageError(f"{value!r} is not {expected}")
    if total > _MAX:
        raise UsageError(f"{value!r} is longer than 292 years")
    return sign * int(total.to_integral_value())


def format_duration_ns(duration_ns: float) -> str:
    """For people: "850 ns", "4.0 ms", "33.1 s", "5 min 40 s", "2 h 5 min"."""
    sign, ns = "-" if duration_ns < 0 else "", round(abs(duration_ns))
    if ns < 1_000:
        return f"{sign}{ns} ns"
    for factor, name, below in ((1_000, "µs", 999_500), (1_000_000, "ms", 999_500_000), (10**9, "s", 59_950_000_000)):
        if ns < below:
            value = ns / factor
            return f"{sign}{value:.1f} {name}" if value < 99.95 else f"{sign}{value:.0f} {name}"
    seconds = (ns + 500_000_000) // 1_000_000_000
    if seconds < 3600:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    minutes = (seconds + 30) // 60
    return f"{sign}{minutes // 60} h {minutes % 60} min"


def duration_text(duration_ns: int) -> str:
    """The shortest text that `parse_duration_ns` turns back into exactly `duration_ns`: "40ms", "2s"."""
    for factor, name in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if duration_ns % factor == 0:
            return f"{duration_ns // factor}{name}"
    return f"{duration_ns}ns"


def parse_workers(value: str | int, cpus: float, what: str = "workers") -> int:
    """How many workers: "auto" (0.8 × the CPUs granted), "cpu*0.9", "cpu" or a number; at least one."""
    expected = "'auto', 'cpu*0.8' or a whole number, 1 or more"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError(f"{what}: expected {expected}, not {value!r}")
    text = str(value).strip().lower()
    if text == "auto":
        text = "cpu*0.8"
    if match := _WORKERS.fullmatch(text):
        share = _number(match[1]) if match[1] else Decimal(1)
        if share <= 0:
            raise UsageError(f"{what}: {value!r} asks for no CPU at all; expected {expected}")
        # Decimal, because 0.7 * 10 is 7.000000000000001 or 6.999999999999999 in binary.
        return max(1, int(Decimal(str(cpus)) * share))
    if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
        raise UsageError(f"{what}: {value!r} is not {expected}")
    return int(text)


def plain(text: str) -> str:
    """A name that a terminal shows and does not obey: escape codes and line breaks as their escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table that people read and Markdown shows; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligned = [" | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    head, *text = [f"| {line} |" for line in aligned]
    return [head, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *text]


def name_hint(name: str, known: Sequence[str], what: str) -> str:
    """What to say of a name that is not there: "did you mean 'fps'?", else which there are, as in "columns: …"."""
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"{what} {', '.join(known[:20]) or 'none'}"
