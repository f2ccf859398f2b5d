"""A spike data set under torch's DataLoader, with workers of both kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.stores.spike.store import SpikeStore
from tests.stores.spike_sets import make_set

torch = pytest.importorskip("torch")

from penstock.torch import Dataset, Sampler, collate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_clips_come_from_any_worker(tmp_path: Path, method: str | None) -> None:
    make_set(tmp_path, rows=6)
    store = SpikeStore(tmp_path)
    seen = []
    with Dataset(tmp_path, penstock.Clip(5), image_size=None, memory="256MiB", view="off", threads=1) as dataset:
        words = {} if method is None else {"num_workers": 1, "multiprocessing_context": method, "timeout": 120}
        sampler = Sampler(dataset, batch_size=2, seed=0)
        for batch in torch.utils.data.DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **words):
            assert batch["blur"].shape[1:] == (5, 3, 48, 64)
            for place, rows in enumerate(batch["index"]):
                first = int(np.ravel(rows)[0])
                seen.append(first)
                expected = store.numbers("spike_vox", np.arange(first, first + 5))
                np.testing.assert_array_equal(batch["spike_vox"][place].numpy(), expected)
    assert sorted(seen) == [0, 1, 6, 7]
