"""What fits, before anything starts: memory, strategy and batch size."""

from penstock._src.plan.batch_calculator import BatchSizeCalculator
from penstock._src.plan.batch_size import BatchSizeReport, find_max_batch_size
from penstock._src.plan.dataset_optimizer import DatasetOptimizer
from penstock._src.plan.estimate import DatasetSizeEstimator
from penstock._src.plan.memory.sampler import MemorySampler
from penstock._src.plan.monitor import MemoryMonitor

__all__ = [
    "BatchSizeCalculator",
    "BatchSizeReport",
    "DatasetOptimizer",
    "DatasetSizeEstimator",
    "MemoryMonitor",
    "MemorySampler",
    "find_max_batch_size",
]
