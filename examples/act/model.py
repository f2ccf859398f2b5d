"""ACT: a chunk of actions from cameras, joints and a latent style; and CNNMLP, one action from the same.

After "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (Zhao et al., 2023): a conditional VAE whose
encoder sees the joints and the actions to come and gives a style z; whose decoder is a transformer over the images'
features, the joints and z, with one learnt query for each action of the chunk. At rollout z is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .backbone import STRIDE, Norm, ResNet18
from .layers import Decoder, Encoder, sine_grid, sine_positions

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Shape:
    """What goes in and out, and how large the parts are."""

    state_dim: int
    action_dim: int
    cameras: int
    height: int
    width: int
    chunk_size: int
    hidden_dim: int = 512
    dim_feedforward: int = 3200
    heads: int = 8
    enc_layers: int = 4
    dec_layers: int = 7
    latent_dim: int = 32
    dropout: float = 0.1
    backbone_width: int = 64
    norm: Norm = "batch"

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the features of one image."""
        return -(-self.height // STRIDE), -(-self.width // STRIDE)


class Eyes(nn.Module):
    """All cameras through one backbone at a time: uint8 images to features of `hidden_dim`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.backbone = ResNet18(shape.backbone_width, shape.norm)
        self.project = nn.Conv2d(self.backbone.channels, shape.hidden_dim, 1)
        mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (_IMAGENET_MEAN, _IMAGENET_STD))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """(cameras, B, hidden, h', w') from a (B, 3, h, w) for each camera."""
        found: Tensor = self.project(self.backbone(self._floats(torch.cat(list(images)))))
        return found.reshape(len(images), -1, *found.shape[1:])

    def _floats(self, pixels: Tensor) -> Tensor:
        """Normalised as ImageNet's; whole numbers up to 255 are exact in bfloat16, too."""
        kind = torch.get_autocast_dtype(pixels.device.type) if torch.is_autocast_enabled(pixels.device.type) else None
        floats = pixels.to(kind or torch.float32, memory_format=torch.channels_last)
        return floats.mul_(self.scale).add_(self.shift)


class StyleEncoder(nn.Module):
    """The VAE's encoder: joints and the actions that were taken, to the mean and log variance of the style."""

    places: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        dim = shape.hidden_dim
        self.first = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.state = nn.Linear(shape.state_dim, dim)
        self.action = nn.Linear(shape.action_dim, dim)
        self.encoder = Encoder(shape.enc_layers, dim, shape.heads, shape.dim_feedforward, shape.dropout)
        self.latent = nn.Linear(dim, 2 * shape.latent_dim)
        self.register_buffer("places", sine_positions(2 + shape.chunk_size, dim), persistent=False)

    def forward(self, state: Tensor, actions: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        """(B, latent) twice; actions beyond the end of the episode are not looked at."""
        first = self.first.expand(len(state), -1, -1)
        tokens = torch.cat([first, self.state(state)[:, None], self.action(actions)], dim=1)
        allowed = functional.pad(~is_pad, (2, 0), value=True)[:, None, None]
        found = self.latent(self.encoder(tokens, self.places, allowed)[:, 0])
        mean, log_variance = found.float().chunk(2, dim=-1)
        return mean, log_variance


class ActModel(nn.Module):
    """See the module; `forward` with actions trains, without them it acts."""

    cell_places: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        dim = shape.hidden_dim
        self.eyes = Eyes(shape)
        self.style = StyleEncoder(shape)
        self.latent = nn.Linear(shape.latent_dim, dim)
        self.state = nn.Linear(shape.state_dim, dim)
        self.own_places = nn.Parameter(torch.randn(2, dim) * 0.02)  # of the style and the joints
        self.camera_places = nn.Parameter(torch.randn(shape.cameras, 1, dim) * 0.02)
        self.register_buffer("cell_places", sine_grid(*shape.cells, dim), persistent=False)
        self.encoder = Encoder(shape.enc_layers, dim, shape.heads, shape.dim_feedforward, shape.dropout)
        self.queries = nn.Parameter(torch.randn(shape.chunk_size, dim))
        self.decoder = Decoder(shape.dec_layers, dim, shape.heads, shape.dim_feedforward, shape.dropout)
        self.head = nn.Linear(dim, shape.action_dim)

    def forward(
        self, state: Tensor, images: Sequence[Tensor], actions: Tensor | None = None, is_pad: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Actions (B, chunk, action_dim), and mean and log variance of the style where actions were given."""
        mean = log_variance = None
        style = state.new_zeros(len(state), self.shape.latent_dim)
        if actions is not None and is_pad is not None:
            mean, log_variance = self.style(state, actions, is_pad)
            style = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        seen = self.eyes(images).flatten(3).permute(1, 0, 3, 2)  # (B, cameras, cells, dim)
        own = torch.stack([self.latent(style), self.state(state)], dim=1).to(seen.dtype)
        tokens = torch.cat([own, seen.flatten(1, 2)], dim=1)
        cells = (self.cell_places + self.camera_places).flatten(0, 1)
        places = torch.cat([self.own_places, cells]).to(seen.dtype)
        memory = self.encoder(tokens, places)
        found = self.head(self.decoder(self.queries, memory, places))
        return found.float(), mean, log_variance


class CnnMlpModel(nn.Module):
    """One action: the features of all cameras, flattened, beside the joints, through three linear layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.eyes = Eyes(shape)
        height, width = shape.cells
        features = 32 * height * width * shape.cameras
        self.narrow = nn.Conv2d(shape.hidden_dim, 32, 1)
        self.mlp = nn.Sequential(
            nn.Linear(features + shape.state_dim, 1024), nn.ReLU(inplace=True),
            nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.Linear(1024, shape.action_dim),
        )  # fmt: skip

    def forward(self, state: Tensor, images: Sequence[Tensor]) -> Tensor:
        """(B, 1, action_dim)."""
        seen = self.eyes(images)
        narrow: Tensor = self.narrow(seen.flatten(0, 1))
        features = narrow.reshape(*seen.shape[:2], -1).transpose(0, 1).flatten(1)
        found: Tensor = self.mlp(torch.cat([features, state.to(features.dtype)], dim=1))
        return found.float()[:, None]
