"""The formula counts the state of training, and prints what it assumes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.plan import BatchSizeCalculator


def _size(**options: Any) -> int:
    words = {"model_params": 110, "image_size": (224, 224), "sequence_length": 128, "available_gpu_memory_gb": 16.0}
    return BatchSizeCalculator.calculate_max_batch_size(**{**words, "verbose": False, **options})


def test_the_documented_example_is_no_longer_8192() -> None:
    # 16 B a parameter are 1.64 GiB; a sample is 324 tokens × 15.5 layers × 768 × 66 B and its image
    assert _size() == 40


def test_training_state_is_counted() -> None:
    assert _size(model_params=1000) == 0  # 16 bytes a parameter leave 0.6 GiB: less than one sample of 84 layers
    assert _size(model_params=1000, available_gpu_memory_gb=80.0) > 0
    assert _size(optimizer="sgd") > _size(optimizer="sgd-momentum") > _size(optimizer="adamw")


def test_sixteen_bits_halve_the_activations_not_the_state() -> None:
    assert 1.6 * _size() < _size(dtype="bfloat16") < 2 * _size()


def test_rounding_is_an_option() -> None:
    assert _size(available_gpu_memory_gb=20.0) == 52
    assert _size(available_gpu_memory_gb=20.0, rounding="multiple_of_8") == 48
    assert _size(available_gpu_memory_gb=20.0, rounding="power_of_two") == 32


@given(st.floats(1, 500), st.floats(2, 100), st.integers(16, 512))
def test_more_memory_or_shorter_texts_never_make_it_smaller(params: float, gigabytes: float, length: int) -> None:
    here = _size(model_params=params, available_gpu_memory_gb=gigabytes, sequence_length=length)
    assert here <= _size(model_params=params, available_gpu_memory_gb=gigabytes + 1, sequence_length=length)
    assert here <= _size(model_params=params, available_gpu_memory_gb=gigabytes, sequence_length=length - 8)


def test_its_assumptions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _size(verbose=True) == 40
    shown = capsys.readouterr().out
    for words in (
        "batch size 40 by a formula",
        "1.64 GB: 110 M parameters",
        "324 tokens",
        "find_max_batch_size measures",
    ):
        assert words in shown


@pytest.mark.parametrize(
    "options",
    [{"model_params": 0}, {"safety_factor": 1.5}, {"optimizer": "lion"}, {"dtype": "int8"}, {"rounding": "up"}],
)
def test_wrong_words_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        _size(**options)
