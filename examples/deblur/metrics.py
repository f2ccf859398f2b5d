"""The loss, and what deblurring is judged by: PSNR and SSIM of images in 0..1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_WINDOW_PX, _SIGMA_PX = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2
_CHARBONNIER = 1e-3


def charbonnier(found: Tensor, sharp: Tensor) -> Tensor:
    """The mean of a smooth absolute difference, of each clip: (B, T, 3, H, W) gives (B)."""
    return ((found - sharp).square() + _CHARBONNIER**2).sqrt().flatten(1).mean(dim=1)


def psnr(found: Tensor, sharp: Tensor) -> Tensor:
    """In dB, of each image: (..., 3, H, W) gives (...)."""
    error = (found.clamp(0, 1) - sharp).square().mean(dim=(-3, -2, -1))
    return -10 * torch.log10(error.clamp(min=1e-10))


def ssim(found: Tensor, sharp: Tensor) -> Tensor:
    """Of each image, over Gaussian windows of 11 pixels that lie wholly inside: (..., 3, H, W) gives (...)."""
    one, two = found.clamp(0, 1), sharp
    mean_1, mean_2 = _smooth(one), _smooth(two)
    variance_1, variance_2 = _smooth(one * one) - mean_1**2, _smooth(two * two) - mean_2**2
    covariance = _smooth(one * two) - mean_1 * mean_2
    values = (2 * mean_1 * mean_2 + _C1) * (2 * covariance + _C2)
    values = values / ((mean_1**2 + mean_2**2 + _C1) * (variance_1 + variance_2 + _C2))
    return values.mean(dim=(-3, -2, -1))


def _smooth(image: Tensor) -> Tensor:
    """Sums of shifted images: GPUs round the products of a convolution to ten bits, too few for variances."""
    places = range(_WINDOW_PX)
    weights = [math.exp(-((place - _WINDOW_PX // 2) ** 2) / (2 * _SIGMA_PX**2)) for place in places]
    for dim in (-2, -1):
        size = image.shape[dim] - _WINDOW_PX + 1
        smooth = torch.zeros_like(image.narrow(dim, 0, size))
        for place in places:
            smooth.add_(image.narrow(dim, place, size), alpha=weights[place] / sum(weights))
        image = smooth
    return image
