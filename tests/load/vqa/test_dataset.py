"""Lazy and preloaded samples are the same; images are decoded once, shared by their image, and faults are counted."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.load.vqa.samples import collate
from penstock._src.media.image import codec
from penstock._src.stores.vqa.store import VQAStore
from penstock.errors import BudgetExceeded, ImageError, StoreCorrupt, StoreError, UsageError
from tests.stores.vqa import making


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return making.write_lines(tmp_path / "data" / "train.jsonl", 6)


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def _same(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_sample_is_a_question_its_answer_and_its_image(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, words, max_length=5, image_size=(48, 64)) as dataset:
        assert len(dataset) == 6
        sample = dataset[1]
        record = making.records(6)[1]
        assert (sample["question"], sample["answer"]) == (record["question"], "1")
        assert np.array_equal(sample["image"], codec.decode(making.jpeg(0)).transpose(2, 0, 1))
        assert sample["input_ids"].tolist() == [3, 4, 4, 4, 8] and sample["labels"].tolist() == [1] + [-100] * 4
        assert (sample["question_id"], sample["image_id"], sample["index"], sample["has_image"]) == (101, 0, 1, True)
        assert dataset[-1]["index"] == 5
        with pytest.raises(IndexError, match="sample 6 of 6"):
            dataset[6]


def test_without_images(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, load_images=False) as dataset:
        assert "image" not in dataset[0]


def test_images_that_are_not_there_are_no_silent_loss(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(making.records(1)[0]) + "\n")
    with pytest.raises(StoreError, match=r"there are no images: no images: images/0000\.jpg was not found"):
        penstock.LazyLoadVQADataset(tmp_path / "train.jsonl")


def test_records_without_an_image_have_zeros_and_say_so(tmp_path: Path, lines: Path) -> None:
    with lines.open("a") as file:
        file.write('{"question": "Why?", "answer": "because"}\n')
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8)) as dataset:
        assert not dataset[6]["has_image"] and not dataset[6]["image"].any()
        assert dataset[5]["has_image"] and dataset[5]["image"].any()


def test_several_images_of_a_record(tmp_path: Path) -> None:
    making.write_images(tmp_path / "images", 2)
    lines = [{"question": "Q?", "images": [f"images/{n:04d}.jpg" for n in range(count)]} for count in (2, 1, 0)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for cache_images in (False, True):
        with penstock.LazyLoadVQADataset(
            tmp_path / "train.jsonl", image_size=(8, 8), max_images=2, cache_images=cache_images
        ) as dataset:
            samples = [dataset[n] for n in range(3)]
            assert [sample["n_images"] for sample in samples] == [2, 1, 0]
            assert samples[0]["image"].shape == (2, 3, 8, 8)
            assert np.array_equal(samples[0]["image"][0], samples[1]["image"][0])
            assert not samples[1]["image"][1].any()


def test_floats_transform_and_texts(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(
        lines,
        image_size=(8, 8),
        dtype="float32",
        normalize=((0.5,) * 3, (0.5,) * 3),
        texts=lambda record: (f"Q: {record.question}", record.answer.upper()),
        transform=lambda sample: (sample["image"], sample["question"][:2]),
    ) as dataset:
        image, question = dataset[0]
    assert image.dtype == np.float32 and -1 <= image.min() < image.max() <= 1
    assert question == "Q:"


# The cache


def test_a_cached_image_is_decoded_once_for_all_rows_that_show_it(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = VQAStore.image_bytes

    def counted(self: VQAStore, row: int, *rest: Any) -> bytes:
        read.append(row)
        return original(self, row, *rest)

    with penstock.LazyLoadVQADataset(lines, image_size=(16, 16), cache_images=True, memory="64MiB") as dataset:
        monkeypatch.setattr(VQAStore, "image_bytes", counted)
        first = [dataset[n] for n in range(6)]
        assert read == [0, 2, 4]  # two questions for each image
        assert all(_same(first[n], dataset[n]) for n in range(6))
        again = pickle.loads(pickle.dumps(dataset))
        read.clear()  # opening looks at some images
        assert _same(again[3], first[3]) and not read
        again.close()


def test_a_small_cache_keeps_what_fits(lines: Path) -> None:
    with (
        penstock.LazyLoadVQADataset(lines, image_size=(64, 64)) as plain,
        penstock.LazyLoadVQADataset(lines, image_size=(64, 64), cache_images=True, memory=33_000) as cached,
    ):
        assert cached.images is not None and cached.images.cache is not None
        assert 0 < cached.images.cache.n_places < 3
        for _ in range(2):
            assert all(_same(plain[n], cached[n]) for n in range(6))


def test_a_cached_image_cannot_be_changed_through_a_sample(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8), cache_images=True) as dataset:
        before = dataset[0]["image"].copy()
        dataset[0]["image"][:] = 0
        assert np.array_equal(dataset[0]["image"], before)


# Preloaded


def test_a_preloaded_data_set_gives_the_same_without_its_files(lines: Path) -> None:
    options: dict[str, Any] = {"max_length": 4, "image_size": (16, 16)}
    with penstock.LazyLoadVQADataset(lines, words, **options) as lazy:
        expected = [lazy[n] for n in range(6)]
    with penstock.VQADataset(lines, words, **options) as dataset:
        for path in (lines.parent / "images").iterdir():
            path.unlink()
        lines.write_bytes(b"")
        assert all(_same(dataset[n], expected[n]) for n in range(6))


def test_a_worker_gets_the_place_of_texts_and_tokens_not_a_copy(tmp_path: Path) -> None:
    sizes = []
    for count in (10, 400):
        path = making.write_lines(tmp_path / str(count) / "train.jsonl", count)
        with penstock.VQADataset(path, words, max_length=50, image_size=(8, 8)) as dataset:
            assert dataset._loaded is not None
            sizes.append(len(pickle.dumps(dataset._loaded)))
            there = pickle.loads(pickle.dumps(dataset._loaded))
            assert all(_same(there.sample(row), dataset._loaded.sample(row)) for row in range(count))
    assert sizes[1] < sizes[0] + 100


def test_tokens_of_any_size_are_preloaded(lines: Path) -> None:
    def hashed(text: str) -> list[int]:
        return [len(word) << (45 if word.endswith("?") else 0) for word in text.split()]

    with (
        penstock.LazyLoadVQADataset(lines, hashed, max_length=9, load_images=False) as lazy,
        penstock.VQADataset(lines, hashed, max_length=9, load_images=False) as dataset,
    ):
        assert max(int(lazy[n]["input_ids"].max()) for n in range(6)) > 1 << 45
        assert all(_same(dataset[n], lazy[n]) for n in range(6))


def test_more_than_fits_is_refused_before_it_is_read(lines: Path) -> None:
    with pytest.raises(BudgetExceeded, match=r"3 images of .* take") as caught:
        penstock.VQADataset(lines, image_size=(64, 64), memory=30_000)
    assert "LazyLoadVQADataset" in str(caught.value.hint)
    with pytest.raises(BudgetExceeded, match="the texts of 6 records"):
        penstock.VQADataset(lines, words, max_length=10_000, load_images=False, memory=30_000)


# Faults


def test_an_image_that_cannot_be_used_names_its_row(lines: Path) -> None:
    (lines.parent / "images" / "0001.jpg").write_bytes(b"no image")
    wanted = pytest.raises(ImageError, match=r"train\.jsonl: row 2: neither JPEG nor PNG")
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8)) as dataset, wanted:
        dataset[2]
    with pytest.raises(ImageError, match="row 2"):
        penstock.VQADataset(lines, image_size=(8, 8))


def test_skipping_takes_the_next_and_counts(lines: Path) -> None:
    (lines.parent / "images" / "0001.jpg").unlink()
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8), on_error="skip") as dataset:
        with pytest.warns(RuntimeWarning, match="row 2 is left out: .* is not there"):
            assert dataset[2]["index"] == 4
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dataset[3]["index"] == 4
        assert (dataset.skipped.count, dataset.skipped.rows) == (3, (2, 3))


def test_malformed_records_are_left_out_or_raise(lines: Path) -> None:
    lines.write_text('{"question":\n' + lines.read_text())
    with penstock.LazyLoadVQADataset(lines, load_images=False) as dataset, pytest.raises(StoreCorrupt, match="line 1"):
        dataset[0]
    with penstock.LazyLoadVQADataset(lines, load_images=False, on_error="skip") as dataset:
        assert len(dataset) == 6
        assert "1 malformed records are left out" in dataset.notes[0]


def test_words_that_belong_elsewhere(lines: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="batch_size: this data set has no such option"):
        penstock.LazyLoadVQADataset(lines, batch_size=3)
    with pytest.raises(UsageError, match="output="):
        penstock.LazyLoadVQADataset(lines, output="jax")
    with penstock.open(lines) as store, pytest.raises(UsageError, match="is open already"):
        penstock.LazyLoadVQADataset(store, image_root=tmp_path)


def test_collate_stacks_arrays_and_lists_texts(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8)) as dataset:
        batch = collate([dataset[0], dataset[1]])
    assert batch["image"].shape == (2, 3, 8, 8)
    assert batch["answer"] == ["0", "1"] and batch["question_id"].tolist() == [100, 101]


def test_any_text_of_json_is_preloaded(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"question": "\\ud800 half a letter", "answer": "… é 中"}\n')
    with penstock.VQADataset(path, load_images=False) as dataset:
        assert dataset[0]["question"] == "\ud800 half a letter" and dataset[0]["answer"] == "… é 中"
