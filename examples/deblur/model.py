"""The network: blurred images and spike voxels in, sharp images out; a gated U-Net that works at half resolution.

A blurred image is the mean of what moved during its exposure. The spikes of the same time say what moved when. So the
spike features scale and shift the image features (`Guide`), and what is predicted is the difference to the blur.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_SHIFTED = 8  # one part in so many of the channels comes from the frame before, one from the frame after
_STRIDE_PX = 8  # half resolution, and two steps down from there


class Block(nn.Module):
    """A depthwise convolution and a pointwise one, each gated by its own other half; part of it sees the neighbours."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.widen = nn.Conv2d(channels, 2 * channels, 1)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.project = nn.Conv2d(channels, channels, 1)
        self.feed = nn.Conv2d(channels, 2 * channels, 1)
        self.forward_project = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, clip_len: int) -> Tensor:
        """`x`: (B·T, C, H, W)."""
        inner = shift_in_time(_normed(self.norm_1, x), clip_len)
        x = x + self.project(_gate(self.depthwise(self.widen(inner))))
        return x + self.forward_project(_gate(self.feed(_normed(self.norm_2, x))))


class Guide(nn.Module):
    """Spike features scale and shift image features: a sharp image is the blur times a ratio of spike rates."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale_and_shift = nn.Conv2d(channels, 2 * channels, 1)

    def forward(self, x: Tensor, spikes: Tensor) -> Tensor:
        scale, shift = self.scale_and_shift(spikes).chunk(2, dim=1)
        return x * (1 + scale) + shift


class Stack(nn.Module):
    """Several blocks."""

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(channels) for _ in range(count))

    def forward(self, x: Tensor, clip_len: int) -> Tensor:
        for block in self.blocks:
            x = block(x, clip_len)
        return x


class DeblurNet(nn.Module):
    """Clips of any length and size. `width`: the channels of the first level (`DATA.K`); the levels below double them.

    Untrained it gives back the blur, so that every gain is learnt.
    """

    def __init__(self, bins: int, width: int, blocks: tuple[int, int, int] = (2, 2, 4)) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.image_stem = nn.Conv2d(3 * 4, width, 3, padding=1)
        self.spike_stem = nn.Conv2d(bins, width, 3, padding=1)
        self.spike_stack = Stack(width, 1)
        self.spike_downs = nn.ModuleList(_down(channels) for channels in widths[:2])
        self.guides = nn.ModuleList(Guide(channels) for channels in widths)
        self.encoders = nn.ModuleList(Stack(*each) for each in zip(widths, blocks, strict=True))
        self.downs = nn.ModuleList(_down(channels) for channels in widths[:2])
        self.ups = nn.ModuleList(nn.Conv2d(channels, 2 * channels, 1) for channels in widths[1:])
        self.decoders = nn.ModuleList(Stack(channels, 1) for channels in widths[:2])
        self.head = nn.Conv2d(width, 3 * 4, 3, padding=1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)  # type: ignore[arg-type]

    def forward(self, blur: Tensor, spike_vox: Tensor) -> Tensor:
        """`blur` (B, T, 3, H, W) in 0..1 and `spike_vox` (B, T, bins, h, w) of counts give (B, T, 3, H, W)."""
        clip_len, size = blur.shape[1], blur.shape[-2:]
        image = _padded(blur.flatten(0, 1))
        half = image.shape[-2] // 2, image.shape[-1] // 2
        spikes = self._spike_features(spike_vox.flatten(0, 1), size, half, clip_len)
        x = self.image_stem(functional.pixel_unshuffle(image, 2).contiguous(memory_format=torch.channels_last))
        skips = []
        for level, (guide, encoder) in enumerate(zip(self.guides, self.encoders, strict=True)):
            x = encoder(guide(x, spikes[level]), clip_len)
            if level < 2:
                skips.append(x)
                x = self.downs[level](x)
        for level in (1, 0):
            x = functional.pixel_shuffle(self.ups[level](x), 2) + skips[level]
            x = self.decoders[level](x, clip_len)
        sharp = image + functional.pixel_shuffle(self.head(x), 2)
        return sharp[..., : size[0], : size[1]].unflatten(0, blur.shape[:2])

    def _spike_features(
        self, voxels: Tensor, size: torch.Size, half: tuple[int, int], clip_len: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """At the three levels. The plane has a resolution of its own and covers the same view as the image."""
        covered = (size[0] + 1) // 2, (size[1] + 1) // 2
        logs = torch.log1p(voxels)  # a ratio of rates becomes a difference
        if logs.shape[-2:] != covered:
            logs = functional.interpolate(logs, covered, mode="bilinear", align_corners=False)
        logs = functional.pad(logs, (0, half[1] - covered[1], 0, half[0] - covered[0]), mode="replicate")
        first = self.spike_stem(logs.contiguous(memory_format=torch.channels_last))
        first = self.spike_stack(first, clip_len)
        second = self.spike_downs[0](first)
        return first, second, self.spike_downs[1](second)


def shift_in_time(x: Tensor, clip_len: int) -> Tensor:
    """An eighth of the channels from the frame before, an eighth from the frame after; the ends keep their own."""
    if clip_len == 1:
        return x
    frames = x.unflatten(0, (-1, clip_len))
    part = x.shape[1] // _SHIFTED
    before, after, own = frames.split([part, part, x.shape[1] - 2 * part], dim=2)
    before = torch.cat([before[:, :1], before[:, :-1]], dim=1)
    after = torch.cat([after[:, 1:], after[:, -1:]], dim=1)
    mixed = torch.cat([before, after, own], dim=2).flatten(0, 1)
    return mixed.contiguous(memory_format=torch.channels_last)


def _normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """Over the channels of each pixel alone: a crop and a whole image are treated alike."""
    normed: Tensor = norm(x.permute(0, 2, 3, 1))
    return normed.permute(0, 3, 1, 2)


def _gate(x: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=1)
    return one * other


def _down(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, 2 * channels, 2, stride=2)


def _padded(image: Tensor) -> Tensor:
    """To multiples of the stride, at the right and the bottom."""
    height, width = image.shape[-2:]
    return functional.pad(image, (0, -width % _STRIDE_PX, 0, -height % _STRIDE_PX), mode="replicate")
