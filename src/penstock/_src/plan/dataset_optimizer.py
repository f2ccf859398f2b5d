"""`DatasetOptimizer`: what a data set takes, measured on its files, and how to load it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from penstock._src.plan.estimate import DTYPE_BYTES, DatasetSizeEstimator
from penstock._src.plan.measure import MeasuredFiles, measure_files
from penstock._src.plan.probe.host_plan import pinned_bytes
from penstock._src.system.limits import read_cpu_limit, read_gpus, read_memory_limit
from penstock._src.system.units import GIB, parse_workers
from penstock.errors import UsageError

_BATCHES = 5  # that a loader holds
_BATCHES_SHARE = 0.25  # of the memory available, at most
_CACHE_SHARE = 0.5
_UNKNOWN_PIXELS = 224 * 224 * 3
_WIDTH = 60

_TEXTS = {
    "zh": {
        "small_dataset": "数据集较小，可以预加载全部数据：{small}",
        "medium_dataset": "数据集中等大小，建议使用{medium}",
        "large_dataset": "数据集很大，必须流式加载：{large}",
        "batch": "建议batch_size: {batch}（{batches}个批次共 {flight:.2f} GB）",
        "cache": "启用图像缓存（cache_images=True），所有进程共用一个缓存，上限 {cache:.1f} GB",
        "no_cache": "不要启用图像缓存：缓存放不下数据集，命中率低",
        "all": "不需要图像缓存：数据已全部在内存中",
        "workers": "num_workers: {workers}（分配到的CPU {cpus:g} 个 × 0.8）",
        "amp": "使用混合精度训练（AMP），激活值内存约减半",
        "no_gpu": "没有可用的GPU：混合精度训练没有好处",
        "probe": "用 penstock.plan.find_max_batch_size 实测最大batch size",
        "image_size": "估算按原图大小；给出 image_size 按训练尺寸估算",
    },
    "en": {
        "small_dataset": "The data set is small: load all of it beforehand with {small}",
        "medium_dataset": "The data set is of medium size: use {medium}",
        "large_dataset": "The data set is large: stream it with {large}",
        "batch": "batch_size: {batch} ({batches} batches are {flight:.2f} GB)",
        "cache": "Cache images (cache_images=True): one cache for all processes, at most {cache:.1f} GB",
        "no_cache": "No image cache: it cannot hold the data set, and would seldom be hit",
        "all": "No image cache: everything is in memory",
        "workers": "num_workers: {workers} (0.8 × the {cpus:g} CPUs granted)",
        "amp": "Train with mixed precision (AMP): activations take about half",
        "no_gpu": "There is no GPU: mixed precision gains nothing",
        "probe": "penstock.plan.find_max_batch_size measures the largest batch",
        "image_size": "Estimated at the size of the images; image_size estimates at that of training",
    },
}
_PRINTED = {
    "zh": ("数据集优化建议", "样本数量", "可用内存", "估算内存", "推荐策略", "建议"),
    "en": (
        "How to load the data set",
        "Samples",
        "Available memory",
        "Estimated memory",
        "Strategy",
        "Recommendations",
    ),
}
# What each strategy is called for VQA data, and for a store of penstock.
_VQA = {"small": "Dataset", "medium": "LazyLoadVQADataset", "large": "StreamingVQADataset"}
_STORE = {
    "small": 'penstock.Loader(penstock.open("{path}"), batch_size={batch}, view="ram", memory="{memory}")',
    "medium": 'penstock.Loader(penstock.open("{path}"), batch_size={batch}, view="auto", memory="{memory}")',
    "large": 'penstock.Loader(penstock.open("{path}"), batch_size={batch}, view="off")',
}


class DatasetOptimizer:
    """Looks at the files of a data set, and says how to load it.

    >>> found = DatasetOptimizer.analyze_and_recommend("data/train.json", batch_size=16)     # doctest: +SKIP
    >>> DatasetOptimizer.print_recommendations(found)                                         # doctest: +SKIP
    """

    @staticmethod
    def analyze_and_recommend(
        data_path: str | os.PathLike[str],
        batch_size: int = 16,
        image_size: Sequence[int] | None = None,
        image_dtype: str = "uint8",
        available_memory_gb: float | None = None,
        lang: str = "zh",
    ) -> dict[str, Any]:
        """Count the samples, measure some of them, and compare with the memory that is granted.

        `image_size` is the size in training; by default images count as they are stored. `estimated_memory_gb` is all
        of the data set in memory.
        """
        _check(batch_size, image_dtype, lang)
        measured = measure_files(data_path)
        limit = read_memory_limit()
        available_gb = limit.available_bytes / GIB if available_memory_gb is None else available_memory_gb
        pixels = measured.image_pixels or _UNKNOWN_PIXELS
        if image_size is not None:
            pixels = math.prod(image_size) * 3
        image_bytes = measured.images * pixels * DTYPE_BYTES[image_dtype]
        estimated_gb = measured.samples * (image_bytes + measured.record_bytes) / GIB
        strategy = DatasetSizeEstimator.recommend_strategy(estimated_gb, available_gb)
        sample_bytes = image_bytes + measured.record_bytes
        batch, flight_gb = _batch(batch_size, sample_bytes, available_gb)
        cpus = read_cpu_limit().granted
        result = {
            "data_path": str(data_path),
            "kind": measured.kind,
            "num_samples": measured.samples,
            "available_memory_gb": available_gb,
            "available_ruled_by": limit.available_ruled_by if available_memory_gb is None else "given",
            "estimated_memory_gb": estimated_gb,
            "images_gb": measured.samples * image_bytes / GIB,
            "records_gb": measured.samples * measured.record_bytes / GIB,
            "stored_gb": measured.stored_bytes / GIB,
            "recommended_strategy": strategy,
            "batch_size": batch,
            "batches_gb": flight_gb,
            "cache_images": strategy == "medium_dataset" and measured.images > 0,
            "cache_gb": min(measured.samples * image_bytes / GIB, _CACHE_SHARE * available_gb),
            "num_workers": parse_workers("auto", cpus),
            "cpus": cpus,
            "use_amp": any(gpu.visible for gpu in read_gpus()),
            "lang": lang,
            "notes": list(measured.notes),
        }
        result["recommendations"] = _recommendations(result, measured, image_size is not None)
        return result

    @staticmethod
    def print_recommendations(recommendations: dict[str, Any]) -> None:
        """Print what `analyze_and_recommend` has found."""
        title, samples, available, estimated, strategy, advice = _PRINTED[recommendations["lang"]]
        print("=" * _WIDTH)
        print(title)
        print("=" * _WIDTH)
        print(f"{samples}: {recommendations['num_samples']:,}")
        print(f"{available}: {recommendations['available_memory_gb']:.2f} GB")
        print(f"{estimated}: {recommendations['estimated_memory_gb']:.2f} GB")
        print(f"{strategy}: {recommendations['recommended_strategy']}")
        print(f"{advice}:")
        for number, text in enumerate(recommendations["recommendations"], 1):
            print(f"  {number}. {text}")
        for note in recommendations["notes"]:
            print(f"  ! {note}")
        print("=" * _WIDTH)


def _check(batch_size: int, image_dtype: str, lang: str) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r}: a whole number, 1 or more")
    for name, value, known in (("image_dtype", image_dtype, DTYPE_BYTES), ("lang", lang, _TEXTS)):
        if value not in known:
            raise UsageError(f"{name}={value!r}: one of {', '.join(known)}")


def _batch(batch_size: int, sample_bytes: float, available_gb: float) -> tuple[int, float]:
    """The batch asked for, halved until the batches of a loader take a part of the memory; and what they take."""
    batch = batch_size
    while True:
        flight_gb = _BATCHES * pinned_bytes(round(batch * sample_bytes)) / GIB
        if batch == 1 or flight_gb <= _BATCHES_SHARE * available_gb:
            return batch, flight_gb
        batch //= 2


def _recommendations(result: dict[str, Any], measured: MeasuredFiles, at_training_size: bool) -> list[str]:
    texts = _TEXTS[result["lang"]]
    strategy = result["recommended_strategy"]
    memory = (
        f"{max(1, int(result['estimated_memory_gb'] if strategy == 'small_dataset' else result['cache_gb']) + 1)}GiB"
    )
    names = {
        key: text.format(path=result["data_path"], batch=result["batch_size"], memory=memory)
        for key, text in (_VQA if measured.is_vqa else _STORE).items()
    }
    lines = [texts[strategy].format(**names)]
    lines.append(texts["batch"].format(batch=result["batch_size"], batches=_BATCHES, flight=result["batches_gb"]))
    if measured.images:
        cache = {"small_dataset": "all", "medium_dataset": "cache", "large_dataset": "no_cache"}[strategy]
        lines.append(texts[cache].format(cache=result["cache_gb"]))
    lines.append(texts["workers"].format(workers=result["num_workers"], cpus=result["cpus"]))
    lines.append(texts["amp" if result["use_amp"] else "no_gpu"])
    if result["use_amp"]:
        lines.append(texts["probe"])
    if measured.images and not at_training_size:
        lines.append(texts["image_size"])
    return lines
