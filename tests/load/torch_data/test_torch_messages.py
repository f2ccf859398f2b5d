"""What torch's side says to slips: told at once, not taken for something else."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from penstock._src.load.sampling.window import Window
from penstock.errors import PenstockError, UsageError
from penstock.torch import Dataset, Sampler
from tests.load.image_store import ArrayStore

ROWS = 10


@pytest.fixture
def dataset() -> Dataset:
    return Dataset(ArrayStore([ROWS]), Window(columns=["state"]))


def test_a_part_of_a_number_is_no_sample(dataset: Dataset) -> None:
    with pytest.raises(TypeError):
        dataset[1.5]  # type: ignore[index]
    with pytest.raises(PenstockError, match="whole numbers"):
        dataset.__getitems__([0.5])  # type: ignore[list-item]
    with pytest.raises(PenstockError, match="whole numbers"):
        dataset.__getitems__([True, False])


@pytest.mark.parametrize("word", ["on_error", "batch_size", "shuffle", "device"])
def test_options_of_the_loader_alone_are_reported_from_those_of_stores(word: str) -> None:
    with pytest.raises(UsageError, match=f"^{word}: a Dataset has no such option") as refused:
        Dataset("nowhere", **{word: "skip"})
    assert "penstock.Loader" in str(refused.value.hint)


def test_numbers_of_any_library_are_samples(dataset: Dataset) -> None:
    expected = dataset[3]["state"]
    for number in (np.int64(3), torch.tensor(3), 3 - ROWS):
        assert torch.equal(dataset[number]["state"], expected)  # type: ignore[index]
    assert torch.equal(dataset.__getitems__(torch.tensor([3, 4]))[0]["state"], expected)  # type: ignore[arg-type]


def test_a_sampler_takes_a_data_set_and_makes_at_least_a_batch(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="list is not a penstock"):
        Sampler([1, 2])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="10 samples do not make a batch of 11"):
        Sampler(dataset, 11, drop_last=True)
    assert len(Sampler(dataset, 11)) == 1
