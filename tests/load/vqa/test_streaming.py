"""A stream gives every record once per epoch, in an order that seed and epoch decide, and goes on exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.load.sampling.passes import samples_of
from penstock._src.load.vqa import streaming
from penstock.errors import UsageError
from tests.stores.vqa import making

_per_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": str(n)}) + "\n" for n in range(37)))
    return path


def _stream(path: Path, **options: Any) -> penstock.StreamingVQADataset:
    return penstock.StreamingVQADataset(path, load_images=False, **options)


def _flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def _rows(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def test_every_record_once_and_another_order_in_every_epoch(lines: Path) -> None:
    with _stream(lines, batch_size=8) as dataset:
        first, second = _rows(dataset), _rows(dataset)
        dataset.set_epoch(0)
        assert _rows(dataset) == first != second
        assert [len(batch) for batch in first] == [8, 8, 8, 8, 5] and len(dataset) == 5
        assert sorted(_flat(first)) == sorted(_flat(second)) == list(range(37))
    with _stream(lines, batch_size=8, seed=1) as other, _stream(lines, batch_size=8, shuffle=False) as plain:
        assert _rows(other) != first
        assert _flat(_rows(plain)) == list(range(37))


def test_samples_one_by_one(lines: Path) -> None:
    with _stream(lines) as dataset:
        samples = list(dataset)
        assert sorted(sample["index"] for sample in samples) == list(range(37)) and len(dataset) == 37
        assert samples[0]["answer"] == str(samples[0]["index"])


@_per_test
@given(
    batch_size=st.integers(1, 5).map(lambda size: size * 12),
    world=st.sampled_from([1, 2, 3, 4]),
    workers=st.integers(1, 4),
    shuffle=st.sampled_from([True, False, "local"]),
    data=st.data(),
)
def test_any_split_gives_every_record_once_and_the_same_batches(
    lines: Path, batch_size: int, world: int, workers: int, shuffle: Any, data: Any
) -> None:
    with _stream(lines, batch_size=batch_size, shuffle=shuffle) as whole:
        expected = _rows(whole)
    taken = data.draw(st.integers(0, len(expected)))
    joined: list[list[int]] = [[] for _ in expected]
    for rank in range(world):
        with _stream(lines, batch_size=batch_size, shuffle=shuffle, shard=(rank, world)) as part:
            for worker in range(workers):
                numbers = range(worker, len(part._batches), workers)
                for number, rows in samples_of(part._order, part._batches, 0, numbers):
                    joined[number] += rows
    assert joined == expected
    with _stream(lines, batch_size=batch_size, shuffle=shuffle) as dataset:
        iterator = iter(dataset)
        before = [next(iterator)["index"].tolist() for _ in range(taken)]
        state = json.loads(json.dumps(dataset.state_dict()))
    with _stream(lines, batch_size=12, shuffle=shuffle) as other:  # another batch size goes on at the same record
        other.load_state_dict(state)
        if _flat(before) != _flat(expected):
            assert _flat(before) + _flat(_rows(other)) == _flat(expected)
        other.set_epoch(1)
        with _stream(lines, batch_size=12, shuffle=shuffle) as fresh:
            fresh.set_epoch(1)
            assert _rows(other) == _rows(fresh)


def test_a_state_goes_on_and_the_pass_behind_it_is_the_next_epoch(lines: Path) -> None:
    with _stream(lines, batch_size=8) as dataset:
        whole, following = _rows(dataset), _rows(dataset)
    with _stream(lines, batch_size=8) as dataset:
        state = dataset.state_dict(taken=2)
        with pytest.raises(UsageError, match="taken=6"):
            dataset.state_dict(taken=6)
    with _stream(lines, batch_size=8) as dataset:
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state
        assert _rows(dataset) == whole[2:]
        assert _rows(dataset) == following
    with _stream(lines, batch_size=8, seed=5) as dataset, pytest.raises(UsageError, match="another order"):
        dataset.load_state_dict(state)


def test_workers_of_one_pass_agree_on_its_epoch() -> None:
    epochs = streaming._Epochs()
    assert [epochs.begin(11, 1), epochs.begin(11, 1)] == [(0, 0), (0, 0)]  # two workers, one seed
    assert epochs.begin(12, 1) == (1, 0)
    assert epochs.begin(11, 1) == (0, 0)  # a third worker of the first pass starts late
    assert epochs.begin(12, 1) == (1, 0)
    assert [epochs.begin(12, 2), epochs.begin(12, 2)] == [(2, 0), (2, 0)]  # workers that stay for another pass
    epochs.seek(7, 40)
    assert epochs.last() == (7, 40)
    assert [epochs.begin(13, 1), epochs.begin(13, 1), epochs.begin(14, 1)] == [(7, 40), (7, 40), (8, 0)]


def test_images_that_cannot_be_used_are_left_out_and_counted(tmp_path: Path) -> None:
    path = making.write_lines(tmp_path / "train.jsonl", 6)
    (tmp_path / "images" / "0001.jpg").write_bytes(b"")
    with (
        penstock.StreamingVQADataset(path, image_size=(8, 8), batch_size=6, on_error="skip") as dataset,
        pytest.warns(RuntimeWarning, match="is left out"),
    ):
        (batch,) = list(dataset)
        assert sorted(batch["index"].tolist()) == [0, 1, 4, 5]
        assert batch["image"].shape == (4, 3, 8, 8)
        assert dataset.skipped.count == 2 and dataset.skipped.rows == (2, 3)
    with (
        penstock.StreamingVQADataset(path, image_size=(8, 8), batch_size=2, shuffle=False, on_error="skip") as dataset,
        pytest.warns(RuntimeWarning),
        pytest.raises(UsageError, match="no sample of a batch"),
    ):
        list(dataset)


def test_shards_are_streamed_with_their_images(tmp_path: Path) -> None:
    for number in range(3):
        making.write_tar(tmp_path / "shards" / f"{number:03d}.tar", 4 * number, 4)
    with penstock.StreamingVQADataset(tmp_path / "shards", image_size=(8, 8), batch_size=5) as dataset:
        batches = list(dataset)
    answers = [answer for batch in batches for answer in batch["answer"]]
    assert sorted(answers) == sorted(f"a{n}" for n in range(12))
    assert all(np.any(image) for batch in batches for image in batch["image"])
