"""What `penstock convert … s3://bucket/set` refuses, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.cli import main
from penstock.errors import OutputExists, UsageError
from tests.faults.jobs import make_sources
from tests.remote.server import RangeServer
from tests.remote.writing import URL, call, objects


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recordings").mkdir()
    return make_sources(tmp_path / "recordings")


@pytest.mark.parametrize(
    ("out", "more", "text"),
    [
        (URL, {"output": "v2.1"}, "output=v2.1 cannot be written"),
        (URL, {"files": {"group_mb": 8}}, "files.group_mb has no meaning"),
        ("s3://b", {}, "is a whole bucket"),
        ("https://127.0.0.1:1/sets/one", {}, "does not write to https://"),
        ("hf://datasets/a/b", {}, "does not write to hf://"),
    ],
)
def test_what_cannot_be_done_is_refused(
    out: str, more: dict[str, Any], text: str, server: RangeServer, sources: list[Path]
) -> None:
    with pytest.raises(UsageError, match=text):
        penstock.convert(**call(sources, out, **more))
    assert objects() == {}


def test_shards_of_an_output_with_fixed_names_are_refused(
    server: RangeServer, sources: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(sources[0]), URL, "output=v2.1", "--shard", "0/2"]) == 2
    assert "output=v2.1 cannot be written" in capsys.readouterr().err
    assert main(["commit", URL]) == 1
    assert "no shard of a conversion is there" in capsys.readouterr().err
    assert objects() == {}


def test_objects_of_others_are_left_alone(server: RangeServer, sources: list[Path], tmp_path: Path) -> None:
    server.put("b", "sets/one/notes.txt", b"mine")
    with pytest.raises(OutputExists, match=r"holds 1 objects \(e.g. notes.txt\) and was not written by penstock"):
        penstock.convert(**call(sources, overwrite=True))
    with pytest.raises(OutputExists, match="nothing to append to"):
        penstock.convert(**call(sources, append=True))
    assert objects() == {"notes.txt": b"mine"}
