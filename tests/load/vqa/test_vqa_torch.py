"""Under torch's DataLoader: the same batches for any number of workers, epochs that go on, and exact resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
from tests.stores.vqa import making  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def _loader(dataset: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, **options)


def _rows(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def _letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return making.write_lines(tmp_path / "data" / "train.jsonl", 22)


@pytest.fixture
def stream(lines: Path) -> Any:
    with penstock.StreamingVQADataset(lines, _letters, max_length=6, image_size=(8, 8), batch_size=4) as dataset:
        yield dataset


def test_a_stream_is_the_same_for_any_number_of_workers(stream: Any) -> None:
    plain = list(_loader(stream, batch_size=None))
    assert sorted(row for batch in _rows(plain) for row in batch) == list(range(22))
    assert plain[0]["image"].dtype == torch.uint8 and plain[0]["labels"].shape == (4, 6)
    for workers in (1, 3):
        stream.set_epoch(0)
        batches = list(_loader(stream, batch_size=None, num_workers=workers))
        assert _rows(batches) == _rows(plain)
        assert all(torch.equal(one["image"], two["image"]) for one, two in zip(batches, plain, strict=True))


@pytest.mark.parametrize("persistent", [False, True])
def test_every_pass_with_workers_is_another_epoch(stream: Any, persistent: bool) -> None:
    expected = [_rows(stream) for _ in range(3)]
    stream.set_epoch(0)
    loader = _loader(stream, batch_size=None, num_workers=2, persistent_workers=persistent)
    assert [_rows(loader) for _ in range(3)] == expected


def test_a_stream_resumes_exactly_with_another_number_of_workers(stream: Any, lines: Path) -> None:
    stream.set_epoch(3)
    whole, following = _rows(stream), _rows(stream)
    stream.set_epoch(3)
    iterator = iter(_loader(stream, batch_size=None, num_workers=2))
    taken = [next(iterator)["index"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(stream.state_dict(taken=3)))
    del iterator
    with penstock.StreamingVQADataset(lines, image_size=(8, 8), batch_size=4) as again:
        again.load_state_dict(state)
        loader = _loader(again, batch_size=None, num_workers=3)
        assert taken + _rows(loader) == whole
        assert _rows(loader) == following


def test_samples_of_a_stream_are_batched_by_the_loader(lines: Path) -> None:
    with penstock.StreamingVQADataset(lines, image_size=(8, 8)) as dataset:
        batches = list(_loader(dataset, batch_size=5, num_workers=2))
    assert sorted(row for batch in _rows(batches) for row in batch) == list(range(22))


def test_ranks_take_their_share_of_every_batch(lines: Path) -> None:
    with penstock.StreamingVQADataset(lines, load_images=False, batch_size=4) as whole:
        expected = _rows(whole)
    parts = []
    for rank in range(2):
        with penstock.StreamingVQADataset(lines, load_images=False, batch_size=4, shard=(rank, 2)) as part:
            parts.append(_rows(_loader(part, batch_size=None, num_workers=2)))
    assert [one + two for one, two in zip(*parts, strict=True)] == expected


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_lazy_samples_and_a_cache_that_workers_share(lines: Path, start: str) -> None:
    with penstock.LazyLoadVQADataset(lines, image_size=(8, 8), cache_images=True, memory="16MiB") as dataset:
        order = dataset.batches(4, seed=3)
        loader = _loader(dataset, batch_sampler=order, num_workers=2, multiprocessing_context=start)
        first, second = list(loader), list(loader)
        assert _rows(first) != _rows(second)
        assert dataset.images is not None and dataset.images.cache is not None
        assert dataset.images.cache.n_filled == 11  # filled by the workers, seen here
        rows = torch.cat([batch["index"] for batch in first]).tolist()
        by_row = dict(zip(rows, torch.cat([batch["image"] for batch in first]), strict=True))
        assert all(np.array_equal(dataset[row]["image"], image.numpy()) for row, image in by_row.items())
        assert len(by_row) == 22


def test_lazy_samples_resume_exactly(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, load_images=False) as dataset:
        whole = _rows(_loader(dataset, batch_sampler=dataset.batches(4, seed=1)))
        order = dataset.batches(4, seed=1)
        iterator = iter(_loader(dataset, batch_sampler=order, num_workers=2))
        taken = [next(iterator)["index"].tolist() for _ in range(2)]
        state = order.state_dict(taken=2)
        again = dataset.batches(4, seed=1)
        again.load_state_dict(state)
        assert taken + _rows(_loader(dataset, batch_sampler=again)) == whole
        del iterator


@pytest.mark.filterwarnings("ignore:row 8 is left out")
def test_skipped_images_of_workers_are_counted_in_the_parent(lines: Path) -> None:
    (lines.parent / "images" / "0004.jpg").write_bytes(b"")
    with penstock.StreamingVQADataset(lines, image_size=(8, 8), batch_size=11, on_error="skip") as dataset:
        batches = list(_loader(dataset, batch_size=None, num_workers=2))
        assert sum(len(batch["index"]) for batch in batches) == 20
        assert dataset.skipped.count == 2 and dataset.skipped.rows == (8, 9)


def test_tensors_where_they_are_asked_for(lines: Path) -> None:
    with penstock.LazyLoadVQADataset(lines, _letters, max_length=3, image_size=(8, 8), output="torch") as dataset:
        sample = dataset[0]
        assert isinstance(sample["image"], torch.Tensor) and isinstance(sample["labels"], torch.Tensor)
    with penstock.StreamingVQADataset(lines, image_size=(8, 8), output="torch", batch_size=4) as stream:
        assert isinstance(next(iter(stream))["image"], torch.Tensor)


def test_preloaded_samples_in_workers(lines: Path) -> None:
    with penstock.VQADataset(lines, _letters, max_length=4, image_size=(8, 8)) as dataset:
        batches = list(_loader(dataset, batch_size=8, num_workers=2, multiprocessing_context="spawn"))
        assert torch.equal(batches[1]["image"][0], torch.from_numpy(dataset[8]["image"]))
        assert batches[2]["question"][0] == dataset[16]["question"]
