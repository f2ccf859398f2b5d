"""Stored bytes by position: exact, from any thread, with the reader's own errors; and files that are replaced whole."""

from __future__ import annotations

import io
import os
import pickle
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock._src.system import files
from penstock._src.system.files import locations
from penstock.errors import StoreCorrupt, StoreError, UsageError
from tests.system.memory_files import MemoryFiles, MemorySource

DATA = bytes(range(256)) * 40
ERRORS = files.ReadErrors(StoreError, StoreCorrupt)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    system = MemoryFiles()
    monkeypatch.setitem(locations._schemes, "mem", system)
    return system


@pytest.fixture(params=["local", "piecewise"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> files.ByteSource:
    (tmp_path / "data").write_bytes(DATA)
    if request.param == "piecewise":
        return MemorySource(tmp_path / "data", DATA, ERRORS, most_bytes=7)
    return files.open_source(tmp_path / "data", ERRORS)


def test_reads_are_whole_whatever_one_answer_holds(source: files.ByteSource) -> None:
    assert source.size_bytes == len(DATA)
    assert source.read(100, 50) == DATA[100:150]
    assert source.read(len(DATA) - 3, 50) == DATA[-3:]
    assert source.read(len(DATA) + 3, 50) == b""
    first, second = bytearray(30), bytearray(500)
    source.read_many([(5, memoryview(first)), (4000, memoryview(second))])
    assert (bytes(first), bytes(second)) == (DATA[5:35], DATA[4000:4500])


@pytest.mark.parametrize(
    "read",
    [
        lambda source: source.read_into(memoryview(bytearray(30)), len(DATA) - 10),
        lambda source: source.read_many([(0, memoryview(bytearray(3))), (len(DATA) - 10, memoryview(bytearray(30)))]),
    ],
)
def test_bytes_that_are_not_there_are_the_readers_error(
    source: files.ByteSource, read: Callable[[files.ByteSource], object]
) -> None:
    with pytest.raises(StoreCorrupt, match=f"byte {len(DATA):,} lies beyond the end of the file"):
        read(source)


def test_a_closed_source_reads_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    source = files.open_source(tmp_path / "data", ERRORS)
    source.close()
    source.close()
    with open(tmp_path / "data", "rb"), pytest.raises(StoreCorrupt, match="byte 0 cannot be read"):
        source.read(0, 10)


def test_without_errors_of_a_reader_the_systems_own_are_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open_source(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        files.open_source(tmp_path)
    with pytest.raises(StoreError, match="absent: cannot be opened: No such file or directory"):
        files.open_source(tmp_path / "absent", ERRORS)
    (tmp_path / "data").write_bytes(DATA)
    with files.open_source(tmp_path / "data") as source, pytest.raises(OSError, match="ends at byte 10,240"):
        source.read_into(memoryview(bytearray(len(DATA) + 1)), 0)


def test_a_duplicate_outlives_its_source_and_has_its_own_errors(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with files.open_source(tmp_path / "data") as source:
        again = source.duplicate(ERRORS)
    with again, pytest.raises(StoreCorrupt):
        assert again.read(3, 4) == DATA[3:7]
        again.read_into(memoryview(bytearray(1)), len(DATA))


def test_threads_read_one_source_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with files.open_source(tmp_path / "data", ERRORS) as source, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda at: source.read(at, 300), range(0, len(DATA), 300)))
    assert b"".join(found) == DATA


def test_an_open_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    source = files.open_source(tmp_path / "data")
    assert isinstance(source, files.LocalSource)
    descriptor = source.descriptor
    del source
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_window_answers_small_reads_from_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(MemorySource, "_read_some", _recording(asked, MemorySource._read_some))
    window = files.ByteWindow(MemorySource(tmp_path / "data", DATA, ERRORS), ahead_bytes=1000)
    assert b"".join(window.at(at, 10) for at in range(0, 1000, 10)) == DATA[:1000]
    assert asked == [0]
    assert window.at(len(DATA) - 5, 10) == DATA[-5:]
    assert window.at(len(DATA), 10) == b""
    assert window.at(100, 5000) == DATA[100:5100]  # larger than the window, and not held
    assert window.at(len(DATA) - 4, 4) == DATA[-4:]
    assert asked == [0, len(DATA) - 5, 100]


def _recording(asked: list[int], real: Callable[..., int]) -> Callable[..., int]:
    def read(self: MemorySource, target: memoryview, offset: int) -> int:
        asked.append(offset)
        return real(self, target, offset)

    return read


def test_a_source_is_a_seekable_file_for_libraries(source: files.ByteSource) -> None:
    with source.as_file() as file:
        assert file.seekable() and file.read(5) == DATA[:5]
        assert file.seek(-5, io.SEEK_END) == len(DATA) - 5
        assert file.read() == DATA[-5:]
        assert file.seek(3) == 3
        assert file.seek(2, io.SEEK_CUR) == 5
        assert file.read(4) == DATA[5:9]
        with pytest.raises(OSError, match="before the beginning"):
            file.seek(-1)
    assert source.read(0, 3) == DATA[:3]


def test_identity_reports_a_file_from_one_put_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / "data", tmp_path / "other"
    path.write_bytes(DATA)
    other.write_bytes(DATA[::-1])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    with files.open_source(path) as source:
        assert source.identity() == files.identity_of(path) == files.identity_of(path)
        before = source.sample()
        os.replace(other, path)
        assert source.identity() != files.identity_of(path)
        assert source.sample() == before
    with files.open_source(path) as source:
        assert source.sample() != before and len(before) <= 3 * 4096


def test_an_unknown_scheme_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("ftp://bucket/run.bag", Path("ftp://bucket/run.bag")):
        with pytest.raises(UsageError, match=r"nothing here reads ftp:// addresses") as raised:
            files.open_source(place)
        assert raised.value.hint is not None and "copy it to a local disk first" in raised.value.hint


def test_local_names_stay_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd:").mkdir()
    Path("odd:/data").write_bytes(b"1")
    for name in ("plain", "a:b", "odd:/data", "/absolute/x://y"):
        assert files.as_path(name) == Path(name)
        assert not isinstance(files.as_path(name), files.RemotePath)
    assert files.as_path(f"file://{tmp_path}/x") == tmp_path / "x"


def test_the_path_of_a_url_is_a_path(memory: MemoryFiles) -> None:
    memory.files = {"mem://runs/a/data.bin": b"12345", "mem://runs/a/deep/text.txt": "größer".encode()}
    root = files.as_path("mem://runs/a")
    data = root / "data.bin"
    assert str(data) == os.fspath(data) == f"{data}" == "mem://runs/a/data.bin"
    assert files.as_path(Path("mem://runs/a")) == root == files.as_path(root) == data.parent
    assert (data.name, data.suffix, data.with_suffix(".x").name) == ("data.bin", ".bin", "data.x")
    assert pickle.loads(pickle.dumps(data)) == data and type(pickle.loads(pickle.dumps(data))) is files.RemotePath
    assert [str(each) for each in data.parents][:2] == ["mem://runs/a", "mem://runs"]
    assert str((root / "deep/text.txt").relative_to(root)) == "deep/text.txt"
    assert root.is_dir() and not root.is_file() and data.is_file() and not (root / "absent").exists()
    assert (data.stat().st_size, stat.S_ISREG(data.stat().st_mode)) == (5, True)
    assert sorted(root.iterdir()) == [data, root / "deep"]
    assert list(root.glob("*/*.txt")) == [root / "deep/text.txt"]
    assert sorted(root.rglob("*")) == [data, root / "deep", root / "deep/text.txt"]
    assert [(str(folder), names) for folder, _, names in files.walk(root)] == [
        ("mem://runs/a", ["data.bin"]),
        ("mem://runs/a/deep", ["text.txt"]),
    ]
    assert (root / "deep/text.txt").read_text(encoding="utf-8") == "größer"
    with data.open("rb") as file:
        assert file.read() == b"12345"
    with pytest.raises(OSError, match="Read-only"):
        data.open("wb")
    with pytest.raises(FileNotFoundError):
        (root / "absent").stat()
    assert files.identity_of(data).size_bytes == 5


def test_a_library_gets_a_local_name_or_a_file_object(tmp_path: Path, memory: MemoryFiles) -> None:
    memory.files["mem://x"] = DATA
    assert files.for_library(tmp_path / "x") == str(tmp_path / "x")
    file = files.for_library("mem://x")
    assert not isinstance(file, str) and file.read(4) == DATA[:4]
    with files.local_file("mem://x") as copy:
        assert copy.read_bytes() == DATA
    assert not copy.exists()
    with files.local_file(tmp_path / "x") as same:
        assert same == tmp_path / "x"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.replacing(path) as fresh:
        fresh.write_text("half")
        raise RuntimeError
    assert [each.name for each in tmp_path.iterdir()] == ["report"] and path.read_text() == "old"
    with files.replacing(path, tmp_path / "report.new", fsync=True, fsync_name=True) as fresh:
        files.write_file(fresh, [b"n", memoryview(b"ew")], fsync=True)
        assert (fresh.name, path.read_text()) == ("report.new", "old")
    assert [each.name for each in tmp_path.iterdir()] == ["report"] and path.read_text() == "new"


def test_a_memory_file_has_no_name_and_is_not_inherited() -> None:
    descriptor = files.memory_file("penstock-test")
    try:
        files.write_all(descriptor, DATA)
        assert os.pread(descriptor, 3, 5) == DATA[5:8]
        assert os.fstat(descriptor).st_nlink == 0 and not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


_READERS = ("recordings", "stores", "media", "lerobot", "formats")
_OPENS = re.compile(r"os\.(open|preadv?|stat|walk|listdir)\(|(?<![\w.])(?<!def )open\(|\bFileIO\(")
_OWN_OUTPUT = ("writer.py", "write/", "lerobot/layout.py", "stores/hdf5/guard.py")


def test_readers_open_files_here_and_nowhere_else() -> None:
    """A scheme that is registered reaches every reader only as long as none of them opens a file by itself."""
    package = Path(penstock.__file__).parent
    found = []
    for path in sorted(each for name in _READERS for each in (package / name).rglob("*.py")):
        relative = path.relative_to(package).as_posix()
        if any(own in relative for own in _OWN_OUTPUT):
            continue
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _OPENS.search(text) and ">>>" not in text and "/proc/" not in text:
                found.append(f"{relative}:{line}: {text.strip()}")
    assert found == []
