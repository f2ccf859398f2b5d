"""Which worker of torch's DataLoader this process is, asked without importing torch."""

from __future__ import annotations

import sys
from typing import NamedTuple


class WorkerShare(NamedTuple):
    """One of so many `workers`; those with one `seed` work for the same pass (or stay for several)."""

    number: int
    workers: int
    seed: int


def current_worker() -> WorkerShare | None:
    """None: this process is no worker."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return None if info is None else WorkerShare(info.id, info.num_workers, info.seed - info.id)
