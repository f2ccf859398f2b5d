"""The doctor of a remote data set or recording reads indexes and footers; `--full` reads the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock._src.cli import main
from penstock._src.formats.findings import Findings
from penstock._src.lerobot.check.dataset import check
from penstock._src.recordings.check import doctor
from penstock._src.system.files import as_path
from penstock._src.system.files.remote import configure, source
from penstock.errors import RemoteUnavailable
from tests.lerobot import making
from tests.recordings import made
from tests.remote.server import RangeServer


def _shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test data are small: without this, the ends of files would be all of them."""
    from penstock._src.system.files.remote import files

    for module in (source, files):
        monkeypatch.setattr(module, "TAIL_BYTES", 2048)
    for name, value in (("BLOCK_BYTES", 512), ("SMALL_BYTES", 64), ("_WHOLE_BYTES", 0)):
        monkeypatch.setattr(source, name, value)


def test_a_data_set_is_checked_by_its_ends(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.make(tmp_path / "set", (40, 30))
    server.add(tmp_path / "set", "b", "set")
    _shrink(monkeypatch)
    part = check("s3://b/set")
    sent, server.bytes_sent = server.bytes_sent, 0
    whole = check("s3://b/set", full=True)
    assert part.is_clean and whole.is_clean
    assert dict(part.counted)["rows"] == dict(whole.counted)["rows"] == 70
    assert any("--full" in (each.hint or "") for each in part.problems)
    assert "frames decoded" not in dict(part.counted) and dict(whole.counted)["frames decoded"] == 70
    assert sent < server.bytes_sent


def test_damage_that_the_ends_show_is_found(tmp_path: Path, server: RangeServer) -> None:
    making.make(tmp_path / "set", (7, 5))
    (video,) = (tmp_path / "set").rglob("*.mp4")
    video.write_bytes(video.read_bytes()[:-100])
    server.add(tmp_path / "set", "b", "set")
    assert not check("s3://b/set").is_clean


def test_a_recording_is_checked_by_its_index(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.mcap(tmp_path / "run.mcap")
    server.add(tmp_path / "run.mcap", "b")
    findings = Findings()
    doctor(as_path("s3://b/run.mcap"), findings, full=False, skew_ns=10**9)
    assert findings.counted["messages"] == 2 * made.ROWS
    assert main(["doctor", "s3://b/run.mcap"]) == main(["doctor", "s3://b/run.mcap", "--full"]) == 0
    assert "--full reads every message" in capsys.readouterr().out


def test_a_store_that_cannot_be_reached_is_no_damage(tmp_path: Path, server: RangeServer) -> None:
    making.make(tmp_path / "set", (7, 5))
    server.add(tmp_path / "set", "b", "set")
    configure(retries=0, retry_timeout_s=1)
    server.fault = lambda request: 500 if request.path.endswith(".mp4") else None
    with pytest.raises(RemoteUnavailable, match="the store answers 500"):
        check("s3://b/set")
