"""Do convert, doctor and recover agree on what a recording has lost? `python -m tests.recordings.agreement`"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.split import suffix_kind
from tests.recordings import made
from tests.recordings.made import Made

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "recordings"
_TURTLE = ("timeline=/turtle1/pose", "features={action: /turtle1/cmd_vel, pose: {topic: /turtle1/pose, field: x}}")
_FIXED = ("timeline=fixed", "fps=10")
# Those of the shared recordings that have numbers or images for a data set, and the words that convert them.
SHARED_WORDS = {
    "ros1/embag/test_v1.bag": _FIXED,
    "ros1/fiducials/aruco_images.bag": ("fps=30",),
    "ros1/pydtk/records.bag": _FIXED,
    "ros1/rosbag.js/example-bz2.bag": _TURTLE,
    "ros1/rosbag.js/example-lz4.bag": _TURTLE,
    "ros1/rosbag.js/example.bag": _TURTLE,
    "ros2/rerun/all_sensors.mcap": ("timeline=/joint_state", "missing=hold"),
    "ros2/rosbag2.js/sample.db3": ("fps=30",),
}


@dataclass(frozen=True)
class Row:
    """What each command says of one recording; `convert` is None where it refuses, and `reason` says why."""

    name: str
    messages: int
    convert: int | None
    doctor: int
    recover: int
    others: tuple[int | None, int, int]  # messages of a second type, as each of them names
    unknown: int = 0  # losses without a number, which count as 1 each
    rows: int | None = None
    reason: str = ""

    @property
    def agree(self) -> bool:
        left = {self.doctor, self.recover} | ({self.convert} if self.convert is not None else set())
        others = {count for count in self.others if count is not None}
        return len(left) == 1 and len(others) == 1


def compare(name: str, path: Path, words: Sequence[str], scratch: Path) -> Row:
    """Run the three commands on a recording."""
    code, out, error = _run(["convert", str(path), str(scratch / "set"), "--json", "--memory", "1GiB", *words])
    report = json.loads(out) if out.startswith("{") and code in (0, 3) else None
    _, text, _ = _run(["doctor", str(path), "--json"])
    doctor = json.loads(text)
    new = scratch / ("new" if path.is_dir() else f"new{_suffix(path)}")
    recover = json.loads(_run(["recover", str(path), str(new), "--json"])[1])
    if "error" in recover:  # a recording of several files becomes a directory
        recover = json.loads(_run(["recover", str(path), str(scratch / "new"), "--json"])[1])
    if "error" in recover:
        raise RuntimeError(f"{name}: recover fails: {recover['error']}")
    unknown = sum(damage["messages"] is None for damage in recover["damages"])
    lost, others, reason = None, None, ""
    if report is not None:
        counts = report["alignment"][0]["lost_messages"]
        others = sum(count for cause, count in counts.items() if "another type" in cause)
        lost = sum(counts.values()) - others
    else:
        reason = " ".join((json.loads(out)["error"] if out.startswith("{") else error).split())
    return Row(
        name=name,
        messages=recover["messages"],
        convert=lost,
        doctor=doctor["counted"].get("lost", 0),
        recover=recover["lost_count"],
        others=(others, _others(each["message"] for each in doctor["problems"]), _others(recover["notes"])),
        unknown=unknown,
        rows=None if report is None else report["frames"],
        reason=reason,
    )


def _run(words: list[str]) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(words)
    return code, out.getvalue(), error.getvalue()


def _suffix(path: Path) -> str:
    kind = suffix_kind(path.name)
    return {"ros1": ".bag", "db3": ".db3", "mcap": ".mcap"}[kind]


def _others(notes: Any) -> int:
    """The messages of second types that a note names."""
    total = 0
    for note in notes:
        _, expected_notes, counts = note.partition("carries messages of several types: ")
        if expected_notes:
            numbers = [int(part.split()[0].replace(",", "")) for part in counts.split(";")[0].split(", ")]
            total += sum(numbers[1:])
    return total


def made_rows(scratch: Path) -> Iterator[tuple[Made, Row]]:
    """The recordings that are made for this, one after the other."""
    for number, case in enumerate(MADE):
        place = scratch / str(number)
        place.mkdir()
        case.make(place / case.name)
        yield case, compare(case.name, place / case.name, made.WORDS, place)


def shared_rows(scratch: Path) -> Iterator[Row]:
    """The public recordings, where they are here."""
    for number, path in enumerate(recordings.find([SHARED]) if SHARED.is_dir() else []):
        place = scratch / f"shared-{number}"
        place.mkdir()
        name = str(path.relative_to(SHARED))
        yield compare(name, path, SHARED_WORDS.get(name, ()), place)


def _changed(make: Any, change: made.Change, **options: Any) -> Any:
    def write(path: Path) -> None:
        data = change(make(path, **options))
        path.write_bytes(data)

    return write


def _packed_file(make: Any) -> Any:
    def write(path: Path) -> None:
        plain = path.with_name("plain")
        path.write_bytes(made.zstd(make(plain)))
        plain.unlink()

    return write


def _without_page(path: Path) -> None:
    data = bytearray(made.db3(path))
    at = made.leaf_of_messages(bytes(data))
    data[at : at + 512] = bytes(512)
    path.write_bytes(data)


_LZ4: dict[str, Any] = {"compression": "lz4"}
_ZSTD: dict[str, Any] = {"compression": made.CompressionType.ZSTD}
_BEFORE_INDEX = made.mcap_padded(1, bytes(50), before_index=True)
_NO_TOPIC = "DELETE FROM topics WHERE id = 2"
_COMMENTED = f"# from another publisher\n{made.POINT}\n"
MADE = (
    Made("whole.bag", made.bag),
    Made("zeros-behind-index.bag", _changed(made.bag, made.behind_index(1, bytes(50)))),
    Made("zeros-behind-index-lz4.bag", _changed(made.bag, made.behind_index(1, bytes(50)), **_LZ4)),
    Made("zeros-before-index.bag", _changed(made.bag, made.behind_chunk(1, bytes(50)))),
    Made("zeros-before-index-lz4.bag", _changed(made.bag, made.behind_chunk(1, bytes(50)), **_LZ4)),
    Made("garbage-behind-every-index.bag", _changed(made.bag, made.behind_every_index)),
    Made("zeros-in-chunk.bag", _changed(made.bag, made.zeros_in_chunk)),
    Made("zeros-at-end.bag", _changed(made.bag, lambda data: data + bytes(50))),
    Made("two-types.bag", made.two_types, others=12),
    Made("two-descriptions.bag", lambda path: made.bag(path, texts=(made.POINT, _COMMENTED))),
    Made("index-offset-broken.bag", _changed(made.bag, made.patched(4, 2, 9, of_data=True, flip=0x10))),
    Made("index-count-broken.bag", _changed(made.bag, made.with_value(b"count=", 8, b"\3\0\0\0"))),
    Made("chunk-position-broken.bag", _changed(made.bag, made.with_value(b"chunk_pos=", 1, b"\1\2\3\4\5"))),
    Made("chunk-head-broken.bag", _changed(made.bag, made.patched(5, 1, 0))),
    Made("message-length-broken.bag", _changed(made.bag, made.message_length), lost=1),
    Made("chunk-damaged-lz4.bag", _changed(made.bag, made.patched(5, 1, 12, of_data=True), **_LZ4), lost=13),
    Made("killed-recorder.bag.active", _changed(made.bag, made.without_index), unknown=1),
    Made("cut.bag", _changed(made.bag, lambda data: data[: len(data) // 2]), unknown=2),
    Made("whole-zstd.mcap", lambda path: made.mcap(path, compression=made.CompressionType.ZSTD)),
    Made("zeros-behind-index.mcap", _changed(made.mcap, made.mcap_padded(1, bytes(50)))),
    Made("two-types.mcap", made.mcap_two_types, others=10),
    Made("zeros-before-index.mcap", _changed(made.mcap, _BEFORE_INDEX)),
    Made("zeros-before-index-zstd.mcap", _changed(made.mcap, _BEFORE_INDEX, **_ZSTD)),
    Made("index-offset-broken.mcap", _changed(made.mcap, made.mcap_patched(7, 2, 23, flip=0x10))),
    Made("chunk-fails-crc.mcap", _changed(made.mcap, made.mcap_patched(6, 1, 200)), lost=16),
    Made("not-finished.mcap", lambda path: made.mcap(path, finish=False, use_chunking=False), unknown=1),
    Made("cut.mcap", _changed(made.mcap, lambda data: data[: len(data) // 2]), unknown=1),
    Made("packed-messages.mcap", lambda path: made.mcap(path, packed=True)),
    Made("packed-file.mcap.zstd", _packed_file(made.mcap)),
    Made("whole.db3", made.db3),
    Made("packed-messages.db3", lambda path: made.db3(path, packed=True)),
    Made("packed-file.db3.zstd", _packed_file(made.db3)),
    Made("page-lost.db3", _without_page, lost=11),
    Made("topic-row-lost.db3", lambda path: made.db3_changed(path, _NO_TOPIC), lost=60, refused=True),
    Made("cut.db3", _changed(made.db3, lambda data: data[: len(data) // 2]), lost=28, unknown=1),
)


def table(found: Sequence[Row]) -> str:
    """The rows for people."""
    head = ("recording", "messages", "convert", "doctor", "recover", "2nd type", "rows", "agree", "")
    lines = [head]
    for row in found:
        refused = "refused" if row.convert is None else str(row.convert)
        unknown = f" ({row.unknown} unknown)" if row.unknown else ""
        others = "/".join("–" if count is None else str(count) for count in row.others) if any(row.others) else ""
        rows = "" if row.rows is None else str(row.rows)
        cells = (row.name, f"{row.messages:,}", refused, str(row.doctor), f"{row.recover}{unknown}", others, rows)
        lines.append((*cells, "yes" if row.agree else "NO", row.reason.split("→")[0][-70:] if row.reason else ""))
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    spread = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in cells).rstrip() for cells in spread)


def print_table() -> int:
    with tempfile.TemporaryDirectory(prefix="penstock-agreement-") as scratch:
        found = [row for _, row in made_rows(Path(scratch))] + list(shared_rows(Path(scratch)))
    print(table(found))
    agreeing = sum(row.agree for row in found)
    print(f"\n{agreeing} of {len(found)} recordings: convert's loss, doctor's finding and recover's count agree")
    return 0 if agreeing == len(found) else 1


if __name__ == "__main__":
    sys.exit(print_table())
