"""Fault 3: an mcap file without a summary.

Expected: a bounded scan; the file is never loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mcap.writer import CompressionType, IndexType

from penstock._src.cli import main
from tests.recordings.containers.makers import BASE_NS, Message, write_mcap

_SCRIPT = """
import json, sys
from penstock import recordings
from penstock._src.cli import main
with recordings.open(sys.argv[1]) as recording:
    counts = {topic.name: topic.count for topic in recording.topics}
code = main(["recover", sys.argv[1], sys.argv[2], "--json"])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([counts, code, int(peak.split()[1])]))
"""


def test_fault_03_a_file_without_summary_is_scanned_in_bounded_memory(tmp_path: Path) -> None:
    peaks = []
    for count in (40, 400):
        path = tmp_path / f"{count}.mcap"
        many = [Message("/a", BASE_NS + n, "x" * 500_000) for n in range(count)]
        options = {"chunk_size": 600_000, "compression": CompressionType.NONE, "index_types": IndexType.NONE}
        write_mcap(path, many, finish=False, **options)
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(path), str(tmp_path / f"new-{count}.mcap")],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        counts, code, peak_kib = json.loads(done.stdout.strip().splitlines()[-1])
        assert counts["/a"] >= count - 2 and code == 3
        peaks.append(peak_kib << 10)
        path.unlink()
    # Ten times the file (200 MB) in the same memory.
    assert peaks[1] - peaks[0] < 16 << 20
    assert peaks[1] < 300 << 20


def test_fault_03_inspect_notes_that_it_was_scanned(tmp_path: Path, capsys: object) -> None:
    path = write_mcap(tmp_path / "a.mcap", [Message("/a", BASE_NS + n, "y" * 50) for n in range(40)], chunk_size=300)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"\x0f\x04\x00\x00\x00\x00\x00\x00\x00")])
    assert main(["inspect", str(path)]) == 3  # as recover does: what the recorder still held is in no file
    shown = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "no footer" in shown and "scanned" in shown
