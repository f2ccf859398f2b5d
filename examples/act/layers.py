"""Transformer layers whose positions are added to queries and keys alone, and sine embeddings of positions."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

_WAVELENGTH = 10_000.0


def sine_positions(count: int, dim: int) -> Tensor:
    """(count, dim): sines and cosines of the position, from quick to slow ones."""
    return _waves(torch.arange(count, dtype=torch.float32), dim)


def sine_grid(height: int, width: int, dim: int) -> Tensor:
    """(height × width, dim): half of each vector tells the row, half the column, both measured along the image."""
    whole = 2 * torch.pi
    rows = _waves((torch.arange(height, dtype=torch.float32) + 1) / height * whole, dim // 2)
    columns = _waves((torch.arange(width, dtype=torch.float32) + 1) / width * whole, dim - dim // 2)
    grid = torch.cat([rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)], dim=-1)
    return grid.reshape(height * width, dim)


def _waves(places: Tensor, dim: int) -> Tensor:
    count = (dim + 1) // 2
    speeds = _WAVELENGTH ** (-torch.arange(count, dtype=torch.float32) / count)
    angles = places[:, None] * speeds
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(len(places), -1)[:, :dim]


class Attention(nn.Module):
    """Several heads of scaled dot products."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(B, Q, dim) from (B, K, dim); `allowed` (B, 1, 1, K) is True where a key may be looked at."""
        q, k, v = self._split(self.query(query)), self._split(self.key(key)), self._split(self.value(value))
        rate = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=rate)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        batch, count, dim = x.shape
        return x.view(batch, count, self.heads, dim // self.heads).transpose(1, 2)


class FeedForward(nn.Sequential):
    """Wide, and back."""

    def __init__(self, dim: int, dim_feedforward: int, dropout: float) -> None:
        wide = (nn.Linear(dim, dim_feedforward), nn.ReLU(inplace=True), nn.Dropout(dropout))
        super().__init__(*wide, nn.Linear(dim_feedforward, dim))


class EncoderLayer(nn.Module):
    """Tokens look at each other; each is normalised after what was added to it."""

    def __init__(self, dim: int, heads: int, dim_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.feed = FeedForward(dim, dim_feedforward, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, places: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(B, N, dim) again."""
        placed = x + places
        x = self.norms[0](x + self.drop(self.attention(placed, placed, x, allowed)))
        return self.norms[1](x + self.drop(self.feed(x)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Several encoder layers."""

    def __init__(self, layers: int, dim: int, heads: int, dim_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, dim_feedforward, dropout) for _ in range(layers))

    def forward(self, x: Tensor, places: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(B, N, dim) again."""
        for layer in self.layers:
            x = layer(x, places, allowed)
        return x


class DecoderLayer(nn.Module):
    """Queries look at each other, then at the memory."""

    def __init__(self, dim: int, heads: int, dim_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.own = Attention(dim, heads, dropout)
        self.cross = Attention(dim, heads, dropout)
        self.feed = FeedForward(dim, dim_feedforward, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, queries: Tensor, memory: Tensor, placed_memory: Tensor) -> Tensor:
        """(B, Q, dim) again."""
        placed = x + queries
        x = self.norms[0](x + self.drop(self.own(placed, placed, x)))
        x = self.norms[1](x + self.drop(self.cross(x + queries, placed_memory, memory)))
        return self.norms[2](x + self.drop(self.feed(x)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Several decoder layers, beginning with nothing but the queries' places."""

    def __init__(self, layers: int, dim: int, heads: int, dim_feedforward: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, dim_feedforward, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, queries: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        """(B, Q, dim) from queries (Q, dim) and memory (B, N, dim)."""
        x = torch.zeros_like(queries).expand(len(memory), -1, -1)
        placed_memory = memory + places
        for layer in self.layers:
            x = layer(x, queries, memory, placed_memory)
        return self.norm(x)  # type: ignore[no-any-return]
