"""Sizes by arithmetic: images, texts, VQA data sets, and the strategy that follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.plan import estimate
from penstock._src.system import limits
from penstock._src.system.units import GIB
from penstock.errors import UsageError
from penstock.plan import DatasetSizeEstimator


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("uint8", 1), ("int64", 8), ("int32", 4)])
def test_images_are_elements_times_the_bytes_of_their_dtype(dtype: str, size: int) -> None:
    found = DatasetSizeEstimator.estimate_image_memory(1000, (224, 224), 3, dtype)
    assert found * GIB == 1000 * 224 * 224 * 3 * size


def test_the_documented_examples() -> None:
    assert round(DatasetSizeEstimator.estimate_image_memory(1000, (224, 224)), 2) == 0.56  # 0.18 was documented
    assert round(DatasetSizeEstimator.estimate_text_memory(10000, 512), 2) == 0.08


def test_text_has_ids_and_a_mask() -> None:
    assert DatasetSizeEstimator.estimate_text_memory(7, 10, "int32") * GIB == 7 * 2 * 10 * 4


@given(st.integers(0, 10**7), st.booleans(), st.integers(1, 600), st.integers(1, 300), st.integers(1, 100))
def test_a_vqa_set_is_the_sum_of_its_parts(samples: int, preload: bool, side: int, question: int, answer: int) -> None:
    found = DatasetSizeEstimator.estimate_vqa_dataset_memory(
        samples, (side, side), max_question_length=question, max_answer_length=answer, preload_images=preload
    )
    parts = [found[name] for name in ("images_gb", "questions_gb", "answers_gb", "metadata_gb")]
    assert found["total_gb"] == pytest.approx(sum(parts))
    assert found["images_gb"] * GIB == pytest.approx(samples * side * side * 12 if preload else 0)
    assert found["questions_gb"] * GIB == pytest.approx(samples * 16 * question)
    assert (found["num_samples"], found["preload_images"]) == (samples, preload)


@pytest.mark.parametrize(
    ("required", "available", "strategy"),
    [
        (15.99, 32.0, "small_dataset"),
        (16.0, 32.0, "medium_dataset"),
        (63.99, 32.0, "medium_dataset"),
        (64.0, 32.0, "large_dataset"),
        (15.5, 32.0, "small_dataset"),  # documented as medium, against its own rule
        (0.0, 0.0, "large_dataset"),
    ],
)
def test_the_strategy_follows_its_rule(required: float, available: float, strategy: str) -> None:
    assert DatasetSizeEstimator.recommend_strategy(required, available) == strategy


def test_without_a_number_what_is_granted_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = limits.MemoryLimit(4 * GIB, 3 * GIB, "cgroup v2 / memory.max", "cgroup v2 / memory.max", ())
    monkeypatch.setattr(estimate, "read_memory_limit", lambda: limit)
    assert DatasetSizeEstimator.recommend_strategy(1.4) == "small_dataset"
    assert DatasetSizeEstimator.recommend_strategy(1.5) == "medium_dataset"
    assert DatasetSizeEstimator.recommend_strategy(6.0) == "large_dataset"


def test_wrong_words_are_refused() -> None:
    with pytest.raises(UsageError, match="dtype='float8': one of float32, float16"):
        DatasetSizeEstimator.estimate_image_memory(1, dtype="float8")
    with pytest.raises(UsageError, match="num_images=-1"):
        DatasetSizeEstimator.estimate_image_memory(-1)
    with pytest.raises(UsageError, match="height and width"):
        DatasetSizeEstimator.estimate_image_memory(1, (3, 224, 224))
    with pytest.raises(UsageError, match="required_memory_gb=-1"):
        DatasetSizeEstimator.recommend_strategy(-1, 4)
