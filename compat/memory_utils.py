"""memory_utils: the memory tools under the names that existing scripts import; they live in `penstock.plan`.

from memory_utils import MemoryMonitor, DatasetSizeEstimator, DatasetOptimizer, BatchSizeCalculator
from memory_utils import LazyLoadVQADataset, StreamingVQADataset, VQADataset
"""

from __future__ import annotations

from penstock import LazyLoadVQADataset, StreamingVQADataset, VQADataset  # noqa: F401
from penstock.plan import BatchSizeCalculator, DatasetOptimizer, DatasetSizeEstimator, MemoryMonitor  # noqa: F401


def main() -> None:
    """What this machine has, what 100,000 samples take, how to load them, and a first batch size."""
    MemoryMonitor.print_memory_info()
    samples = 100_000
    lazy = DatasetSizeEstimator.estimate_vqa_dataset_memory(samples, image_size=(224, 224), preload_images=False)
    print()
    print("=" * 60)
    print("数据集内存估算")
    print("=" * 60)
    print(f"样本数量: {lazy['num_samples']:,}")
    print(f"图像内存: {lazy['images_gb']:.2f} GB (懒加载)")
    print(f"问题内存: {lazy['questions_gb']:.2f} GB")
    print(f"答案内存: {lazy['answers_gb']:.2f} GB")
    print(f"元数据内存: {lazy['metadata_gb']:.2f} GB")
    print(f"总计: {lazy['total_gb']:.2f} GB")
    print("=" * 60)
    print()
    whole = DatasetSizeEstimator.estimate_vqa_dataset_memory(samples, image_size=(224, 224), preload_images=True)
    print(f"推荐策略: {DatasetSizeEstimator.recommend_strategy(whole['total_gb'])}")
    size = BatchSizeCalculator.calculate_max_batch_size(
        model_params=110, image_size=(224, 224), sequence_length=128, available_gpu_memory_gb=16.0, verbose=False
    )
    print(f"推荐最大batch size: {size}")


if __name__ == "__main__":
    main()
