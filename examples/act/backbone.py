"""ResNet-18 without its classifier, in plain torch; its names are those of torchvision's weights files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from penstock.errors import UsageError

from .checkpoint import load_tensors

Norm = Literal["batch", "frozen", "group"]
STRIDE = 32
"""Pixels of an image for one cell of the features, each way."""

_BLOCKS = (2, 2, 2, 2)
_FEW_CHANNELS = 16
_STATS = ("weight", "bias", "running_mean", "running_var")


class FrozenBatchNorm2d(nn.Module):
    """Batch norm whose statistics and scales came with the weights and stay: for fine-tuning with small batches."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name in _STATS:
            ones = name in ("weight", "running_var")
            self.register_buffer(name, torch.ones(channels) if ones else torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scaled and shifted; nothing is learnt."""
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def _norm_for(kind: Norm) -> Callable[[int], nn.Module]:
    if kind == "group":
        return lambda channels: nn.GroupNorm(math.gcd(channels, max(1, channels // 16)), channels)
    return FrozenBatchNorm2d if kind == "frozen" else nn.BatchNorm2d


class Narrowing(nn.Conv2d):
    """A 1×1 convolution of every `step`th pixel, with the numbers of `stride=step`.

    For few channels: below 16, torch's backward pass of the strided one in channels_last writes beside its memory on
    some CPUs (oneDNN), which ends a run with a segmentation fault or goes unnoticed.
    """

    def __init__(self, channels_in: int, channels: int, step: int) -> None:
        super().__init__(channels_in, channels, 1, bias=False)
        self.step = step

    def forward(self, input: Tensor) -> Tensor:
        """(N, channels, h / step, w / step)."""
        return super().forward(input[..., :: self.step, :: self.step])


def _pointwise(channels_in: int, channels: int, stride: int) -> nn.Conv2d:
    if channels_in < _FEW_CHANNELS:
        return Narrowing(channels_in, channels, stride)
    return nn.Conv2d(channels_in, channels, 1, stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a way that goes around them."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = norm(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(_pointwise(channels_in, channels, stride), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, h / stride, w / stride)."""
        around = x if self.downsample is None else self.downsample(x)
        found = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(found)) + around, inplace=True)


class ResNet18(nn.Module):
    """Images to a grid of features, a 32nd of their height and width; `width` 64 is ResNet-18 itself."""

    def __init__(self, width: int = 64, norm: Norm = "batch") -> None:
        super().__init__()
        make = _norm_for(norm)
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = make(width)
        channels = width
        for number, blocks in enumerate(_BLOCKS):
            wide, stride = width << number, 1 if number == 0 else 2
            first = BasicBlock(channels, wide, stride, make)
            others = (BasicBlock(wide, wide, 1, make) for _ in range(blocks - 1))
            setattr(self, f"layer{number + 1}", nn.Sequential(first, *others))
            channels = wide
        self.channels = channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, h, w) to (N, 8 × width, ⌈h / 32⌉, ⌈w / 32⌉)."""
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        x = functional.max_pool2d(x, 3, 2, 1)
        for number in range(len(_BLOCKS)):
            x = getattr(self, f"layer{number + 1}")(x)
        return x

    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Take a state dict of torchvision's resnet18 (`torch.save(model.state_dict(), path)`); tensors only."""
        hint = "--backbone_weights takes what torch.save(torchvision.models.resnet18(…).state_dict(), FILE) wrote"
        found = load_tensors(Path(path), "state dict of ResNet-18", hint)
        if not isinstance(found, dict):
            raise UsageError(f"{path}: {type(found).__name__}, a state dict of ResNet-18 expected", hint=hint)
        ignored = ("fc.", "num_batches_tracked")
        given = {str(name): value for name, value in found.items() if not any(part in str(name) for part in ignored)}
        own = {name: value for name, value in self.state_dict().items() if "num_batches_tracked" not in name}
        wrong = [name for name in own if name not in given or getattr(given[name], "shape", None) != own[name].shape]
        if wrong or set(given) - set(own):
            named = ", ".join((wrong or sorted(set(given) - set(own)))[:3])
            raise UsageError(
                f"{path} is no ResNet-18 of this shape: {len(wrong)} of {len(own)} tensors are missing or of another "
                f"size ({named}, …)",
                hint="torchvision's resnet18 with --backbone_width 64 and --norm frozen or batch",
            )
        self.load_state_dict(given, strict=False)
