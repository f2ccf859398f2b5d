"""More workers for a stream: only where it divides itself among them do they give the same samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import profile
from penstock._src.profile.verdict.verdict import verdict

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(80):
            time.sleep(0.002)
            yield torch.tensor(number)


class Rows(TorchDataset[Any]):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.tensor(index)


@pytest.mark.parametrize("data", [Stream(), Rows()])
def test_a_stream_has_to_divide_itself(data: Any) -> None:
    loader = profile.attach(DataLoader(data, batch_size=4))
    for _ in loader:
        pass
    found = verdict()
    (workers,) = [fix for fix in found.fixes if fix.name == "workers"]
    is_stream = isinstance(data, Stream)
    assert ("get_worker_info" in workers.why) == is_stream
    assert any("分片" in line for line in found.lines("zh")) == is_stream
