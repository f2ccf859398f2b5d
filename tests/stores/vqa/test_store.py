"""VQA data of every format are one store: texts, numbers and image bytes by row, loaded like any other."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src import formats
from penstock._src.cli import main
from penstock._src.media.image import codec
from penstock._src.stores.vqa.store import VQAStore
from penstock._src.system.files import register_scheme
from penstock.errors import ExternalRefused, ImageError, StoreCorrupt, StoreError, UsageError
from tests.stores.vqa import making
from tests.system.memory_files import MemoryFiles

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "vqa"
ALL = np.arange(6)


def _open(path: Path, **options: object) -> VQAStore:
    store = penstock.open(path, **options)
    assert isinstance(store, VQAStore)
    return store


def _lines(root: Path) -> Path:
    return making.write_lines(root / "train.jsonl", 6)


def _array(root: Path) -> Path:
    making.write_images(root / "images", 3)
    path = root / "train.json"
    path.write_text(json.dumps(making.records(6), indent=2))
    return path


def _vqav2(root: Path) -> Path:
    return making.write_vqav2(root, 6)


def _shards(root: Path) -> Path:
    making.write_tar(root / "shards" / "a-000.tar", 0, 4)
    making.write_tar(root / "shards" / "a-001.tar", 4, 2)
    return root / "shards"


def _folder(root: Path) -> Path:
    """Classes by folder, a record beside one image, a text beside another."""
    making.write_images(root / "photos" / "cat", 4)
    making.write_images(root / "photos" / "dog", 2)
    (root / "photos" / "cat" / "0001.json").write_text('{"question": "Which?", "answer": "tabby"}')
    (root / "photos" / "cat" / "0002.txt").write_text("a sleeping cat\n")
    return root / "photos"


def _metadata(root: Path) -> Path:
    making.write_images(root / "set", 6)
    lines = [{"file_name": f"{n:04d}.jpg", "question": "Q?", "answer": f"a{n}"} for n in range(6)]
    (root / "set" / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root / "set"


FORMATS = [_lines, _array, _vqav2, _shards, _folder, _metadata]


@pytest.mark.parametrize("make", FORMATS)
def test_every_format_is_a_store(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with _open(make(tmp_path)) as store:
        assert store.rows == 6
        assert list(store.columns)[:2] == ["question", "answer"] and "image" in store.columns
        assert all(isinstance(text, str) for text in store.texts("answer", ALL))
        assert store.columns["image"].varies
        for row in range(6):
            assert codec.decode(store.image_bytes(row)).shape[2] == 3
        again = pickle.loads(pickle.dumps(store))
        assert again.texts("question", ALL) == store.texts("question", ALL)
        assert again.fingerprint("image") == store.fingerprint("image")


@pytest.mark.parametrize("make", FORMATS)
def test_the_loader_loads_every_format(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    seen = []
    with _open(make(tmp_path)) as store:
        answers = store.texts("answer", ALL)
        for batch in penstock.Loader(store, batch_size=4, image_size=(32, 24), memory="256MiB", drop_last=False):
            assert batch["image"].shape == (len(batch["index"]), 3, 32, 24)
            assert batch["answer"] == [answers[row] for row in batch["index"]]
            seen += batch["index"].tolist()
    assert sorted(seen) == list(range(6))


def test_texts_numbers_and_stored_bytes(tmp_path: Path) -> None:
    records = making.records(6)
    with _open(_lines(tmp_path)) as store:
        assert store.texts("question", ALL) == [record["question"] for record in records]
        assert store.numbers("question_id", np.array([5, 0, 5])).tolist() == [105, 100, 105]
        assert store.image_bytes(3) == making.jpeg(1)
        assert store.image_key(2) == store.image_key(3) != store.image_key(4)
        assert store.record(4).answer == "4"
    with pytest.raises(StoreError, match="row 6 was requested, there are 6"):
        store.record(6)


def test_images_keep_their_pixels_when_resized(tmp_path: Path) -> None:
    with _open(_lines(tmp_path)) as store:
        batch = next(iter(penstock.Loader(store, batch_size=6, image_size=(48, 64), shuffle=False, memory="256MiB")))
    assert np.array_equal(batch["image"][0], codec.decode(making.jpeg(0)).transpose(2, 0, 1))


def test_vqav2_answers_follow_the_question_id(tmp_path: Path) -> None:
    with _open(making.write_vqav2(tmp_path, 6, unanswered=2, indent=1)) as store:
        assert store.texts("answer", ALL) == ["", "", "a2", "a3", "a4", "a5"]
        assert store.record(5).answers == ("a5",) * 10
        assert store.image_bytes(4) == making.jpeg(2)
        assert "2 questions have no annotation" in "".join(store.notes)
    (tmp_path / "v2_mscoco_train2014_annotations.json").unlink()
    with _open(tmp_path / "v2_OpenEnded_mscoco_train2014_questions.json") as store:
        assert store.texts("answer", ALL) == [""] * 6
        assert "annotations=FILE" in "".join(store.notes)


def test_llava_and_its_conversation(tmp_path: Path) -> None:
    making.write_images(tmp_path / "images", 3)
    (tmp_path / "llava.json").write_text(json.dumps(making.llava(3)))
    with _open(tmp_path / "llava.json") as store:
        assert store.texts("question", ALL[:2]) == ["What is 0?", "What is 1?"]
        turns = json.loads(store.texts("conversation", ALL[:1])[0])
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]


def test_class_folders_and_what_stands_beside_an_image(tmp_path: Path) -> None:
    path = _folder(tmp_path)
    with _open(path) as store:
        assert store.texts("answer", ALL) == ["cat", "tabby", "a sleeping cat", "cat", "dog", "dog"]
        assert store.texts("question", ALL[1:2]) == ["Which?"]
    (path / "dog" / "0009.jpg").write_bytes(making.jpeg(0))
    os.utime(path / "dog", ns=(1, 1))
    with _open(path) as store:  # the listing is made anew
        assert store.rows == 7


def test_records_without_their_images_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in making.records(6)))
    with _open(path) as store:
        assert "image" not in store.columns
        assert "images/0000.jpg was not found; image_root=FOLDER" in "".join(store.notes)
    with pytest.raises(StoreError, match=r"there is no images/0000\.jpg"):
        _open(path, image_root=tmp_path / "elsewhere")
    making.write_images(tmp_path / "elsewhere" / "images", 3)
    with _open(path, image_root=tmp_path / "elsewhere") as store:
        assert store.image_bytes(5) == making.jpeg(2)


def test_an_image_outside_the_folder_is_refused(tmp_path: Path) -> None:
    making.write_images(tmp_path / "secret", 1)
    path = tmp_path / "data" / "train.jsonl"
    making.write_lines(path, 2)
    for name in ("../secret/0000.jpg", str(tmp_path / "secret" / "0000.jpg"), "images/../../secret/0000.jpg"):
        lines = [{"question": "Q?", "image": "images/0000.jpg"}, {"question": "Q?", "image": name}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with _open(path, image_root=path.parent) as store, pytest.raises(ExternalRefused, match="lies outside"):
            store.image_bytes(1)
        with _open(path, image_root=path.parent, allow_external=True) as store:
            assert store.image_bytes(1) == making.jpeg(0)


def test_images_inside_the_records(tmp_path: Path) -> None:
    import base64

    url = "data:image/jpeg;base64," + base64.b64encode(making.jpeg(1)).decode()
    (tmp_path / "urls.jsonl").write_text(json.dumps({"question": "Q?", "image": url}) + "\n")
    with _open(tmp_path / "urls.jsonl") as store:
        assert store.image_bytes(0) == making.jpeg(1)


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    path = _lines(tmp_path)
    (tmp_path / "images" / "0002.jpg").unlink()
    with _open(path) as store, pytest.raises(ImageError, match=r"images/0002.jpg is not there"):
        store.image_bytes(5)


# Malformed records


def _broken(root: Path) -> Path:
    path = _lines(root)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\n" + b'{"question": "cut\n' + b"".join(lines[1:4]) + b"[1]\n" + b"".join(lines[4:]))
    return path


def test_a_malformed_record_is_named_by_file_line_and_byte(tmp_path: Path) -> None:
    path = _broken(tmp_path)
    with _open(path) as store:
        assert store.rows == 8
        offset = path.read_bytes().index(b'{"question": "cut')
        with pytest.raises(StoreCorrupt, match=rf"train.jsonl: line 3 \(byte {offset}\): not JSON: .*"):
            store.record(1)
        assert store.record(2).question == making.records(6)[1]["question"]


def test_malformed_records_are_counted_and_left_out(tmp_path: Path) -> None:
    path = _broken(tmp_path)
    for _ in range(2):  # looked for once, then kept
        with _open(path, on_error="skip") as store:
            assert store.rows == 6 and store.malformed == 2
            assert store.texts("question", ALL) == [record["question"] for record in making.records(6)]
            assert "2 malformed records are left out" in store.notes[0] and "line 7" in store.notes[0]
    with pytest.raises(UsageError, match="on_error="):
        _open(path, on_error="ignore")


def test_a_json_array_names_the_record_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text('[{"question": "Q?"}, "text", {"question": 3}]')
    with _open(path) as store, pytest.raises(StoreCorrupt, match=r"record 1 \(byte 20\): .* this is a text"):
        store.texts("question", np.array([0, 1]))
    with _open(path, on_error="skip") as store:
        assert store.texts("question", np.array([0, 1])) == ["Q?", "3"]


# Which paths are VQA


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"question": "a"}\n{"question": "b"}\n')
    with _open(tmp_path / "train.json") as store:
        assert store.texts("question", np.arange(2)) == ["a", "b"]
    (tmp_path / "one.json").write_text('{"question": "a"}')
    with _open(tmp_path / "one.json") as store:
        assert store.rows == 1
    (tmp_path / "config.json").write_text('{"layers": 3}\n')
    with pytest.raises(StoreCorrupt, match="neither a question nor an answer among 'layers'"):
        _open(tmp_path / "config.json")


def test_a_search_for_inputs_does_not_take_json_and_images(tmp_path: Path) -> None:
    from penstock._src.conversion.find import find_inputs
    from penstock.errors import PenstockError

    _lines(tmp_path / "notes")
    (tmp_path / "run.mcap").write_bytes(b"\x89MCAP0\r\n")
    assert [each.path.name for each in find_inputs([tmp_path])] == ["run.mcap"]
    (tmp_path / "run.mcap").unlink()
    with pytest.raises(PenstockError):
        find_inputs([tmp_path])
    assert [each.kind for each in find_inputs([tmp_path / "notes"])] == ["vqa"]


def test_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(_lines(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "VQA data set" in shown and "6 rows" in shown and "question_id" in shown


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_chat_messages_that_others_made() -> None:
    with _open(SHARED / "mllm_demo.json") as store:
        assert store.rows == 6
        assert store.record(3).question == "他们是谁？"
        assert len(store.record(0).turns) == 4 and len(store.record(0).images) == 2
        batch = next(iter(penstock.Loader(store, batch_size=6, image_size=(64, 64), memory="256MiB")))
        assert batch["image"].shape == (6, 3, 64, 64)


@pytest.mark.parametrize("make", FORMATS)
def test_data_that_lie_elsewhere_are_read_there(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    files = MemoryFiles()
    register_scheme("vqamem", files)
    path = make(tmp_path / "root")
    files.add(tmp_path / "root", "vqamem://bucket/root")
    with _open(path) as local, penstock.open(f"vqamem://bucket/root/{path.name}") as store:
        assert isinstance(store, VQAStore)
        assert store.texts("answer", ALL) == local.texts("answer", ALL)
        assert [store.image_bytes(row) for row in range(6)] == [local.image_bytes(row) for row in range(6)]
        assert pickle.loads(pickle.dumps(store)).record(3) == local.record(3)


def test_a_malformed_question_of_vqav2_does_not_hide_the_others(tmp_path: Path) -> None:
    path = making.write_vqav2(tmp_path, 4)
    path.write_text(path.read_text().replace('"question": "Q1?", "question_id": 10', '"question": ["Q1?"]'))
    with _open(path) as store:
        assert store.texts("answer", np.array([0, 2, 3])) == ["a0", "a2", "a3"]
        with pytest.raises(StoreCorrupt, match="record 1"):
            store.record(1)
    with _open(path, on_error="skip") as store:
        assert store.texts("answer", np.arange(3)) == ["a0", "a2", "a3"]


def test_an_image_that_was_replaced_changes_the_fingerprint(tmp_path: Path) -> None:
    path = _lines(tmp_path)
    with _open(path) as store:
        before = store.fingerprint("image")
    (tmp_path / "images" / "0001.jpg").write_bytes(making.jpeg(7))
    with _open(path) as store:
        assert store.fingerprint("image") != before


def test_a_folder_that_another_format_marks_is_not_taken(tmp_path: Path) -> None:
    making.write_images(tmp_path / "photos", 2)
    (tmp_path / "photos" / "own.marker").write_text("")
    assert formats.by_directory(tmp_path / "photos", "store") is not None
    formats.register(formats.Format("own", "own data", "store", open="own:open", markers=("own.marker",)))
    try:
        found = formats.by_directory(tmp_path / "photos", "store")
        assert found is not None and found.kind == "own"
    finally:
        formats.unregister("own")
    (tmp_path / "photos" / "episode_0.hdf5").write_bytes(b"")
    assert formats.by_directory(tmp_path / "photos", "store") is None


@pytest.mark.parametrize("suffix", ["jsonl", "tar"])
def test_a_folder_of_very_many_files_needs_few_descriptors(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        path = folder / f"{number:04d}.{suffix}"
        if suffix == "tar":
            making.write_tar(path, 2 * number, 2)
        else:
            path.write_text("".join(f'{{"question": "Q", "answer": "a{2 * number + n}"}}\n' for n in range(2)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):  # built, then kept
        with _open(folder) as store:
            assert store.rows == 200 and store.episodes == 100
            assert store.texts("answer", np.arange(200)) == [f"a{n}" for n in range(200)]
            assert len(list(Path("/proc/self/fd").iterdir())) < before + 80
            assert store.file_of(7).name == f"0003.{suffix}"
    with _open(folder, episodes=[3, 5]) as store:
        assert store.texts("answer", np.arange(4)) == ["a6", "a7", "a10", "a11"]


def test_json_beside_images_is_pointed_out(tmp_path: Path) -> None:
    path = _array(tmp_path)
    with _open(tmp_path) as store:
        assert f"train.json lies beside the images: penstock.open({str(path)!r})" in "".join(store.notes)
