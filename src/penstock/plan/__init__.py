"""What fits, before anything starts: memory, strategy and batch size."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.plan.batch_calculator import BatchSizeCalculator
    from penstock.plan.batch_size import BatchSizeReport, find_max_batch_size
    from penstock.plan.dataset_optimizer import DatasetOptimizer
    from penstock.plan.estimate import DatasetSizeEstimator
    from penstock.plan.memory.sampler import MemorySampler
    from penstock.plan.monitor import MemoryMonitor

# Loaded at first use: neither torch nor a store is imported by asking what is here.
_HOMES = {
    "BatchSizeCalculator": "batch_calculator",
    "BatchSizeReport": "batch_size",
    "DatasetOptimizer": "dataset_optimizer",
    "DatasetSizeEstimator": "estimate",
    "MemoryMonitor": "monitor",
    "MemorySampler": "memory.sampler",
    "find_max_batch_size": "batch_size",
}

__all__ = [
    "BatchSizeCalculator",
    "BatchSizeReport",
    "DatasetOptimizer",
    "DatasetSizeEstimator",
    "MemoryMonitor",
    "MemorySampler",
    "find_max_batch_size",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.plan' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.plan.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
