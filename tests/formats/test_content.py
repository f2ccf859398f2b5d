"""A file that is not what its name says: one answer, whoever opens it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
from pathlib import Path

import pytest

import penstock
from penstock._src.cli import main
from penstock._src.formats.content import foreign_content
from penstock.errors import PenstockError
from tests.recordings.made import WORDS, bag, db3, mcap, zstd

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 123456789\n"
)
FOREIGN = {
    "pointer": (POINTER, "a Git LFS pointer (134 bytes for data of 123 MB)", "`git lfs pull`"),
    "empty": (b"", "empty: 0 bytes", "copy"),
    "page": (b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>", "an HTML page", "download the file itself"),
    "xml": (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "an XML text", "again"),
    "gzip": (gzip.compress(b"x" * 100), "compressed with gzip", "gzip -dc"),
    "bzip2": (bz2.compress(b"x" * 100), "compressed with bzip2", "bzip2 -dc"),
    "xz": (lzma.compress(b"x" * 100), "compressed with xz", "xz -dc"),
    "zeros": (bytes(5000), "5,000 bytes that begin with 1,024 zeros", "again"),
}
SUFFIXES = (".bag", ".mcap", ".db3", ".hdf5", ".h5")


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_inspect_doctor_convert_recover_and_open_give_one_answer(
    what: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, message, hint = FOREIGN[what]
    path = tmp_path / f"run{suffix}"
    path.write_bytes(data)
    new = str(tmp_path / "new.bag")
    for words in (["inspect", str(path)], ["doctor", str(path)], ["convert", str(path), str(tmp_path / "set")],
                  ["recover", str(path), new]):  # fmt: skip
        assert main(words) == 1, words
        error = capsys.readouterr().err
        assert f"{path} is {message}" in error and hint in error, (words, error)
    with pytest.raises(PenstockError) as caught:
        penstock.open(path)
    assert f"{path} is {message}" in caught.value.message and hint in str(caught.value.hint)


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    bag(place / "run.bag")
    out = place / "set"
    assert main(["convert", str(place / "run.bag"), str(out), *WORDS]) == 0
    return out


@pytest.mark.parametrize("what", ["pointer", "empty", "page"])
@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "meta/episodes", "data"])
def test_a_file_inside_a_data_set_is_named_as_what_it_is(
    what: str, name: str, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, message, hint = FOREIGN[what]
    root = tmp_path / "set"
    shutil.copytree(data_set, root)
    file = root / name if (root / name).is_file() else next((root / name).rglob("*.parquet"))
    file.write_bytes(data)
    assert main(["doctor", str(root), "--json"]) in (1, 3)
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any(f"{file} is {message}" in each["message"] and hint in str(each["hint"]) for each in problems), problems
    if name == "meta/tasks.parquet":
        return  # opening does not need it
    with pytest.raises(PenstockError) as caught:
        penstock.open(root)
    assert message in str(caught.value) and hint in str(caught.value)


@pytest.mark.parametrize("what", ["pointer", "empty", "page"])
def test_a_video_is_named_as_what_it_is(what: str, tmp_path: Path) -> None:
    from penstock._src.media.mp4.index import read_index

    data, message, hint = FOREIGN[what]
    (tmp_path / "cam.mp4").write_bytes(data)
    with pytest.raises(PenstockError) as caught:
        read_index(tmp_path / "cam.mp4")
    assert f"cam.mp4 is {message}" in caught.value.message and hint in str(caught.value.hint)


def test_what_is_wanted_is_not_foreign(tmp_path: Path) -> None:
    for name, make in (("a.bag", bag), ("a.mcap", mcap), ("a.db3", db3)):
        make(tmp_path / name)
        assert foreign_content(tmp_path / name, "recording") is None
        found = foreign_content(tmp_path / name, "hdf5")
        assert found is not None and "penstock inspect" in found.hint
    assert foreign_content(tmp_path / "not-there") is None


@pytest.mark.parametrize(("name", "make"), [("run.hdf5", bag), ("run.mcap", db3), ("run.bag", mcap)])
def test_a_recording_with_another_suffix_is_read_by_its_content(
    name: str, make: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / name)  # type: ignore[operator]
    for verb in ("inspect", "doctor"):
        assert main([verb, str(tmp_path / name), "--json"]) == 0, verb
        found = json.loads(capsys.readouterr().out)
        assert found.get("counted", {}).get("messages", 120) == 120
        assert sum(topic["messages"] for topic in found.get("topics", [{"messages": 120}])) == 120


@pytest.mark.parametrize("name", ["run.bag.zstd", "run.mcap.zst", "run.db3.zstd", "run.zstd"])
def test_a_recording_that_is_packed_as_a_whole_is_unpacked_and_that_is_reported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = {"mcap": mcap, "db3": db3}.get(name.split(".")[1], bag)
    (tmp_path / name).write_bytes(zstd(make(tmp_path / "plain")))
    assert main(["inspect", str(tmp_path / name), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(topic["messages"] for topic in found["topics"]) == 120
    assert any(f"{name}: compressed with zstd as a whole" in note for note in found["notes"])
    capsys.readouterr()
    assert main(["convert", str(tmp_path / name), str(tmp_path / "set"), *WORDS]) == 0
    assert main(["doctor", str(tmp_path / name)]) == 0
    printed = "".join(capsys.readouterr())
    assert printed.count(f"{name}: compressed") == 2 and f"{name}: {name}:" not in printed
    assert main(["recover", str(tmp_path / name), str(tmp_path / "new.bag.zst")]) == 2
    assert f"name it {tmp_path / 'new.bag'}\n" in capsys.readouterr().err


def test_an_hdf5_file_with_the_name_of_a_recording_is_opened_by_its_content(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "steps.bag", "w") as file:
        file["action"] = file["observations/qpos"] = [[0.0], [1.0]]
    assert penstock.open(tmp_path / "steps.bag").rows == 2


def test_an_input_that_failed_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.bag").write_bytes(POINTER)
    bag(tmp_path / "a.bag")
    assert main(["convert", str(tmp_path), str(tmp_path / "out"), "--keep-going", *WORDS]) == 3
    lines = [line for line in "".join(capsys.readouterr()).splitlines() if "LFS pointer" in line]
    assert lines and all(line.count("b.bag") == 1 for line in lines)


def test_doctor_and_inspect_agree_that_a_directory_holds_hdf5_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import h5py

    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = [[0.0], [1.0]]
        file["observations/qpos"] = [[0.0], [1.0]]
    assert main(["doctor", str(tmp_path)]) == 2
    assert "holds HDF5 files" in capsys.readouterr().err
    (tmp_path / "misnamed.bag").write_bytes((tmp_path / "episode_0.hdf5").read_bytes())
    assert main(["doctor", str(tmp_path / "misnamed.bag")]) == 2
    assert "is an HDF5 file" in capsys.readouterr().err


def test_metadata_of_a_bag_that_is_a_pointer_is_a_note(tmp_path: Path) -> None:
    from penstock import recordings

    db3(tmp_path / "run_0.db3")
    (tmp_path / "metadata.yaml").write_bytes(POINTER)
    with recordings.open(tmp_path) as recording:
        assert any("metadata.yaml is a Git LFS pointer" in note for note in recording.notes), recording.notes
