"""An index is kept, mapped, and made anew when the file is another one."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock._src.stores.vqa import record, scanning
from penstock._src.stores.vqa import store as store_module
from penstock._src.stores.vqa.index import kept_index
from tests.stores.vqa import making


class _Counted:
    """Builds rows of two, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
        self.times += 1
        facts["times"] = self.times
        yield np.array([[1, 2], [3, 4]], np.int64)
        yield np.array([[5, 6]], np.int64)


def _file(tmp_path: Path, text: str = "records") -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    return path


def test_it_is_built_once_and_then_mapped(tmp_path: Path, own_cache: Path) -> None:
    path, build = _file(tmp_path), _Counted()
    first, second = kept_index("test", [path], 2, build), kept_index("test", [path], 2, build)
    assert build.times == 1
    assert second.values.tolist() == first.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert second.facts == {"times": 1}
    assert second.path is not None and own_cache in second.path.parents
    assert not second.values.flags.writeable


@pytest.mark.parametrize("change", ["size", "time", "bytes"])
def test_another_file_is_noticed(tmp_path: Path, change: str) -> None:
    path, build = _file(tmp_path), _Counted()
    kept_index("test", [path], 2, build)
    before = path.stat()
    path.write_text("recordings" if change == "size" else "RECORDS" if change == "bytes" else "records")
    time_ns = before.st_mtime_ns + (1 if change == "time" else 0)
    os.utime(path, ns=(time_ns, time_ns))
    assert kept_index("test", [path], 2, build).facts == {"times": 2}


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    path, build = _file(tmp_path), _Counted()
    kept = kept_index("test", [path], 2, build).path
    assert kept is not None
    for broken in (kept.read_bytes()[:-8], b"", b"nonsense" * 1000):
        kept.write_bytes(broken)
        assert kept_index("test", [path], 2, build).values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert build.times == 4


def test_without_a_place_it_is_held_in_memory(tmp_path: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the cache should be")
    found = kept_index("test", [_file(tmp_path)], 2, _Counted())
    assert found.path is None
    assert found.values.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    def build(facts: dict[str, Any]) -> Iterator[NDArray[np.int64]]:
        yield np.array([[1, 2]], np.int64)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_index("test", [_file(tmp_path)], 2, build)
    assert [each for each in own_cache.rglob("*") if each.is_file()] == []


def test_an_index_without_rows(tmp_path: Path) -> None:
    assert len(kept_index("test", [_file(tmp_path)], 2, lambda facts: iter(()))) == 0
    assert kept_index("test", [_file(tmp_path)], 2, lambda facts: iter(())).values.shape == (0, 2)


@pytest.mark.parametrize("name", ["records.jsonl", "records.json"])
def test_indexing_holds_blocks_not_the_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BLOCK_BYTES", 1 << 16)

    def peak_bytes(count: int) -> int:
        lines = [json.dumps(record) for record in making.records(count)]
        path = tmp_path / str(count) / name
        path.parent.mkdir()
        path.write_text("\n".join(lines) if name.endswith("l") else f"[{', '.join(lines)}]")
        del lines
        tracemalloc.start()
        try:
            with penstock.open(path) as store:
                assert store.rows == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(100)  # imports
    assert peak_bytes(20_000) < peak_bytes(2_000) + (1 << 20)  # a file of 3 MB, and one of 0.3 MB


def test_malformed_records_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("目录" * 40)  # a long name in the reasons
    folder.mkdir()
    path = folder / "data.jsonl"
    path.write_text('{"question": "Q?"}\n' * 60 + '{"question":\n' * 9)
    parsed: list[bytes] = []
    monkeypatch.setattr(store_module, "parse", lambda *data: (parsed.append(data[0]), record.parse(*data))[1])
    with penstock.open(path, on_error="skip") as store:
        assert store.rows == 60
        first, reasons = len(parsed), store.notes
    with penstock.open(path, on_error="skip") as store:
        assert store.rows == 60 and store.notes == reasons
        assert len(parsed) - first < 20 < first
    assert "9 malformed records are left out" in reasons[0] and "line 61" in reasons[0] and "and 5 more" in reasons[0]
