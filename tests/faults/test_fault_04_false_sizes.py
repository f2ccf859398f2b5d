"""Fault 4: decompression bombs, false uncompressed sizes, a record length of 2⁶³.

Expected: rejected before anything is allocated, as LimitExceeded with both numbers (or as broken at its byte).
"""

from __future__ import annotations

import bz2
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from mcap.writer import CompressionType

from tests.recordings.containers.makers import some_messages, write_bag, write_mcap, write_rosbag2
from tests.recordings.recovery.cases import mcap_record_at

MESSAGES = some_messages(30)
_LIMIT_BYTES = 300 << 20

# Everything that reads, in a process whose peak is measured.
_SCRIPT = """
import json, sys
import numpy as np
import pyarrow
from penstock import recordings
from penstock.errors import LimitExceeded, PenstockError, RecordingCorrupt
path = sys.argv[1]
found = {"errors": []}
for mode in ("raise", "count"):
    try:
        with recordings.open(path, on_corrupt=mode) as recording:
            for topic in recording.topics:
                ids = np.full(topic.count, topic.id, np.int32)
                for block in recording.fetch(ids, np.arange(topic.count)):
                    block.release()
            found["errors"] += [loss.cause for loss in recording.losses]
    except LimitExceeded as error:
        found["errors"].append(error.message)
        found["size"], found["limit"] = error.size, error.limit
    except PenstockError as error:
        found["errors"].append(error.message)
try:
    found["exit"] = recordings.recover(path, sys.argv[2], overwrite=True).exit_code
except PenstockError as error:
    found["exit"] = str(error)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
found["peak"] = int(peak.split()[1]) << 10
print(json.dumps(found))
"""


def _run(path: Path) -> dict[str, object]:
    target = path.with_name(f"new-{path.name.removesuffix('.zstd')}")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path), str(target)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _bag_bomb(path: Path) -> None:
    """A chunk that really unpacks to a gibibyte."""
    data = write_bag(path, MESSAGES, compression="bz2").read_bytes()
    bomb = bz2.compress(bytes(1 << 26))  # the same stream sixteen times is one of 1 GiB
    at = data.index(b"size=")
    (stored,) = struct.unpack_from("<I", data, at + 9)
    sizes = struct.pack("<II", 1 << 30, len(bomb) * 16)
    made = bytearray(data[: at + 5] + sizes + bomb * 16 + data[at + 13 + stored :])
    index_at = data.index(b"index_pos=") + 10
    moved = struct.unpack_from("<Q", data, index_at)[0] + len(made) - len(data)
    made[index_at : index_at + 8] = struct.pack("<Q", moved)
    path.write_bytes(made)


def _mcap_bomb(path: Path) -> None:
    data = write_mcap(path, MESSAGES).read_bytes()
    packed = pa.compress(bytes(1 << 28), codec="zstd", asbytes=True)
    at = mcap_record_at(data, 6)
    head = data[at + 9 : at + 25] + struct.pack("<QII", 1 << 30, 0, 4) + b"zstd" + struct.pack("<Q", 4 * len(packed))
    chunk = struct.pack("<BQ", 6, len(head) + 4 * len(packed)) + head + packed * 4
    path.write_bytes(data[:at] + chunk)


def _mcap_false_size(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        data = bytearray(write_mcap(path, MESSAGES).read_bytes())
        at = mcap_record_at(bytes(data), 6)
        data[at + 9 + 16 : at + 9 + 24] = struct.pack("<Q", size)
        path.write_bytes(data)

    return make


def _mcap_endless_record(path: Path) -> None:
    data = bytearray(write_mcap(path, MESSAGES, compression=CompressionType.NONE).read_bytes())
    at = mcap_record_at(bytes(data), 6)
    data[at + 1 : at + 9] = struct.pack("<Q", 1 << 63)
    path.write_bytes(data)


def _message_bomb(path: Path) -> None:
    """A db3 whose messages are packed one by one, one of them a bomb."""
    import sqlite3

    bag = write_rosbag2(path.parent / "packed", MESSAGES, mode="MESSAGE")
    (bag / "packed.db3").rename(path)
    bomb = pa.compress(bytes(1 << 30), codec="zstd", asbytes=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE messages SET data = ? WHERE id = 3", (bomb,))
    connection.close()


CASES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "bz2 bomb in a bag": ("a.bag", _bag_bomb),
    "zstd bomb in an mcap": ("a.mcap", _mcap_bomb),
    "false size of 2 GiB": ("a.mcap", _mcap_false_size(1 << 31)),
    "false size of 2^63": ("a.mcap", _mcap_false_size(1 << 63)),
    "record of 2^63 bytes": ("a.mcap", _mcap_endless_record),
    "bomb in one message": ("a.db3", _message_bomb),
}


@pytest.mark.parametrize("case", CASES)
def test_fault_04_false_sizes_and_bombs_are_refused_before_memory_is_taken(tmp_path: Path, case: str) -> None:
    name, make = CASES[case]
    make(tmp_path / name)
    found = _run(tmp_path / name)
    assert found["errors"], found
    assert isinstance(found["peak"], int) and found["peak"] < _LIMIT_BYTES, found
    if case not in ("record of 2^63 bytes", "zstd bomb in an mcap"):
        assert isinstance(found["size"], int) and isinstance(found["limit"], int)
        assert found["size"] > found["limit"] > 0
    if case != "bomb in one message":  # which is copied as it is, still packed
        assert found["exit"] == 3


def test_fault_04_a_bomb_around_a_whole_file_stops_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock import recordings
    from penstock._src.recordings import unpack
    from penstock.errors import LimitExceeded

    monkeypatch.setattr(unpack, "_SMALL_BYTES", 1 << 20)
    path = tmp_path / "a.mcap.zstd"
    path.write_bytes(pa.compress(b"\x89MCAP0\r\n" + bytes(8 << 20), codec="zstd", asbytes=True))
    for read in (recordings.open, lambda source: recordings.recover(source, tmp_path / "new.mcap")):
        with pytest.raises(LimitExceeded) as caught:
            read(path)  # type: ignore[operator]
        assert caught.value.size > caught.value.limit == 1 << 20
    assert list(tmp_path.iterdir()) == [path]
