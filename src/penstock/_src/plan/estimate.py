"""`DatasetSizeEstimator`: the memory of images and texts by arithmetic, and the strategy that follows from it.

Sizes are in GB of 1024³ bytes, as the names of the results have it. `DatasetOptimizer` measures real files instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock._src.plan.load_plan import strategy_for
from penstock._src.system.limits import read_memory_limit
from penstock._src.system.units import GIB
from penstock.errors import UsageError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int64": 8, "int32": 4}
METADATA_BYTES = 1024
"""One record as Python objects: a dict with question, answer, names and numbers."""
TEXT_TENSORS = 2  # input_ids and attention_mask


class DatasetSizeEstimator:
    """Memory of a data set before there is one.

    >>> DatasetSizeEstimator.estimate_image_memory(1000, (224, 224))
    0.5607604980468750
    """

    @staticmethod
    def estimate_image_memory(
        num_images: int, image_size: Sequence[int] = (224, 224), channels: int = 3, dtype: str = "float32"
    ) -> float:
        """Decoded images in GB: images × height × width × channels × bytes of an element."""
        height, width = _size(image_size)
        elements = _count("num_images", num_images) * height * width * _count("channels", channels)
        return elements * _dtype_bytes(dtype) / GIB

    @staticmethod
    def estimate_text_memory(num_samples: int, max_length: int = 512, dtype: str = "int64") -> float:
        """Tokenized texts in GB, padded: samples × 2 (input_ids and attention_mask) × length × bytes of an element."""
        elements = _count("num_samples", num_samples) * TEXT_TENSORS * _count("max_length", max_length)
        return elements * _dtype_bytes(dtype) / GIB

    @staticmethod
    def estimate_vqa_dataset_memory(
        num_samples: int,
        image_size: Sequence[int] = (224, 224),
        max_question_length: int = 128,
        max_answer_length: int = 32,
        preload_images: bool = False,
        image_dtype: str = "float32",
        text_dtype: str = "int64",
    ) -> dict[str, Any]:
        """The parts of a VQA data set in GB, and `total_gb`. Images that are not preloaded take nothing."""
        images_gb = 0.0
        if preload_images:
            images_gb = DatasetSizeEstimator.estimate_image_memory(num_samples, image_size, 3, image_dtype)
        questions_gb = DatasetSizeEstimator.estimate_text_memory(num_samples, max_question_length, text_dtype)
        answers_gb = DatasetSizeEstimator.estimate_text_memory(num_samples, max_answer_length, text_dtype)
        metadata_gb = num_samples * METADATA_BYTES / GIB
        return {
            "num_samples": num_samples,
            "preload_images": preload_images,
            "images_gb": images_gb,
            "questions_gb": questions_gb,
            "answers_gb": answers_gb,
            "metadata_gb": metadata_gb,
            "total_gb": images_gb + questions_gb + answers_gb + metadata_gb,
        }

    @staticmethod
    def recommend_strategy(required_memory_gb: float, available_memory_gb: float | None = None) -> str:
        """ "small_dataset": preload; "medium_dataset": load lazily, with a cache; "large_dataset": stream.

        Small is less than half of the memory available, large is twice of it and more. Without a number, what is
        granted to this process now counts.
        """
        available_gb = available_memory_gb
        if available_gb is None:
            available_gb = read_memory_limit().available_bytes / GIB
        for name, value in (("required_memory_gb", required_memory_gb), ("available_memory_gb", available_gb)):
            if not value >= 0:
                raise UsageError(f"{name}={value!r}: a size in GB, 0 or more")
        return strategy_for(required_memory_gb, available_gb)


def _dtype_bytes(dtype: Any) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype={dtype!r}: one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise UsageError(f"{name}={value!r}: a whole number, 0 or more")
    return int(value)


def _size(image_size: Sequence[int]) -> tuple[int, int]:
    if len(image_size) != 2:
        raise UsageError(f"image_size={tuple(image_size)!r}: height and width")
    height, width = (_count("image_size", each) for each in image_size)
    return height, width
