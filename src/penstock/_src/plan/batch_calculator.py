"""`BatchSizeCalculator`: a batch size from a formula, with what it assumes; `find_max_batch_size` measures instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock._src.plan.estimate import DTYPE_BYTES
from penstock._src.system.units import GIB, MIB
from penstock.errors import UsageError

PATCH_PX = 16
# Kept for backward in one layer of a transformer, per token and unit of width: sixteen values, and two bytes of dropout
# masks. With attention that is not written out (scaled_dot_product_attention).
LAYER_VALUES = 16
LAYER_MASK_BYTES = 2
LAYER_PARAMETERS = 12  # per unit of width squared: four of attention, eight of the feed-forward network
WEIGHT_BYTES, GRADIENT_BYTES = 4, 4
OPTIMIZER_BYTES = {"adamw": 8, "adam": 8, "sgd-momentum": 4, "sgd": 0}
CAST_BYTES = 2  # weights in 16 bits that autocast keeps during a step
WORKSPACE_GB = 0.5  # libraries and what the allocator rounds up
ROUNDINGS = ("none", "multiple_of_8", "power_of_two")


@dataclass(frozen=True)
class BatchEstimate:
    """The parts of the formula, in bytes."""

    batch_size: int
    state_bytes: int
    sample_bytes: int
    free_bytes: int
    layers: float
    tokens: int


class BatchSizeCalculator:
    """The largest batch by a formula: for a first idea, before there is a model."""

    @staticmethod
    def calculate_max_batch_size(
        model_params: float,
        image_size: Sequence[int] = (224, 224),
        sequence_length: int = 128,
        available_gpu_memory_gb: float = 16.0,
        safety_factor: float = 0.7,
        hidden_size: int = 768,
        dtype: str = "float32",
        optimizer: str = "adamw",
        rounding: str = "none",
        verbose: bool = True,
    ) -> int:
        """The batch size that fits, 0 where the training state alone does not; `verbose` prints the assumptions.

        `model_params` is in millions. `dtype` is that of the activations: "float32", or "bfloat16" and "float16" for
        autocast, where weights stay float32. `rounding` is "none", "multiple_of_8" or "power_of_two", always down.
        """
        _check(model_params, available_gpu_memory_gb, safety_factor, hidden_size, dtype, optimizer, rounding)
        estimate = _estimate(
            model_params * 1e6, image_size, sequence_length, available_gpu_memory_gb, safety_factor, hidden_size, dtype,
            optimizer,
        )  # fmt: skip
        size = _rounded(estimate.batch_size, rounding)
        if verbose:
            print(
                _text(
                    estimate, size, model_params, available_gpu_memory_gb, safety_factor, hidden_size, dtype, optimizer
                )
            )
        return size


def _estimate(
    parameters: float, image_size: Sequence[int], sequence_length: int, available_gb: float, safety_factor: float,
    hidden_size: int, dtype: str, optimizer: str,
) -> BatchEstimate:  # fmt: skip
    value_bytes = DTYPE_BYTES[dtype]
    cast_bytes = CAST_BYTES if dtype != "float32" else 0
    state = parameters * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES[optimizer] + cast_bytes)
    height, width = image_size
    tokens = sequence_length + (height // PATCH_PX) * (width // PATCH_PX)
    layers = parameters / (LAYER_PARAMETERS * hidden_size**2)
    layer_bytes = hidden_size * (LAYER_VALUES * value_bytes + LAYER_MASK_BYTES)
    inputs = height * width * 3 * 4 + sequence_length * 16
    sample = tokens * layers * layer_bytes + inputs
    free = max(0.0, (available_gb - WORKSPACE_GB) * GIB - state) * safety_factor
    return BatchEstimate(int(free / sample), round(state), round(sample), round(free), layers, tokens)


def _rounded(size: int, rounding: str) -> int:
    if rounding == "power_of_two":
        return 1 << (size.bit_length() - 1) if size else 0
    return (size // 8 * 8 or size) if rounding == "multiple_of_8" else size


def _text(
    estimate: BatchEstimate, size: int, model_params: float, available_gb: float, safety_factor: float,
    hidden_size: int,
    dtype: str, optimizer: str,
) -> str:  # fmt: skip
    weights = (
        "weights, gradients and optimizer"
        if dtype == "float32"
        else "weights (and 16-bit copies), gradients and optimizer"
    )
    return "\n".join(
        [
            f"batch size {size} by a formula, which assumes:",
            f"  training state  {estimate.state_bytes / GIB:.2f} GB: {model_params:g} M parameters, "
            f"{weights} ({optimizer})",
            f"  a sample        {estimate.sample_bytes / MIB:.0f} MiB: {estimate.tokens} tokens (text, and patches of "
            f"{PATCH_PX}×{PATCH_PX} pixels), {estimate.layers:.1f} transformer layers of width {hidden_size}, {dtype}, "
            "attention not written out, no checkpointing",
            f"  left for them   {estimate.free_bytes / GIB:.2f} GB: {safety_factor:g} × ({available_gb:g} − state − "
            f"{WORKSPACE_GB:g} workspace)",
            "  other models need several times more or less: penstock.plan.find_max_batch_size measures yours",
        ]
    )


def _check(
    model_params: float, available_gb: float, safety_factor: float, hidden_size: int, dtype: str, optimizer: str,
    rounding: str,
) -> None:  # fmt: skip
    for name, value in (("model_params", model_params), ("available_gpu_memory_gb", available_gb),
                        ("hidden_size", hidden_size)):  # fmt: skip
        if not value > 0:
            raise UsageError(f"{name}={value!r}: a number above 0")
    if not 0 < safety_factor <= 1:
        raise UsageError(f"safety_factor={safety_factor!r}: above 0, at most 1")
    floats = ("float32", "bfloat16", "float16")
    for word, option, known in (("dtype", dtype, floats), ("optimizer", optimizer, tuple(OPTIMIZER_BYTES)),
                               ("rounding", rounding, ROUNDINGS)):  # fmt: skip
        if option not in known:
            raise UsageError(f"{word}={option!r}: one of {', '.join(known)}")
