"""Policies: a model, the statistics of the data it was trained on, its loss, and what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .columns import Columns
from .data import Stats
from .model import ActModel, CnnMlpModel, Shape

_WIDE_NAMES = ("float64", "int64", "int32", "uint64", "uint32")  # more digits than float32 holds
_WIDE = tuple(getattr(torch, name) for name in _WIDE_NAMES if hasattr(torch, name))  # older ones have no uint32


class Losses(NamedTuple):
    """Of one batch: `loss` is what is minimised; `l1` and `kl` are its parts."""

    loss: Tensor
    l1: Tensor
    kl: Tensor


class Sample(NamedTuple):
    """A batch as policies take it: numbers normalised, images as they came."""

    state: Tensor
    images: Sequence[Tensor]
    actions: Tensor
    is_pad: Tensor


class Policy(nn.Module, ABC):
    """`losses` for training, `predict` for validation (normalised), `act` for a robot (as the data have it)."""

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    action_mean64: Tensor
    action_std64: Tensor
    model: nn.Module

    def __init__(self, columns: Columns, stats: Mapping[str, Stats]) -> None:
        super().__init__()
        self.columns = columns
        for name, column in (("state", columns.state), ("action", columns.action)):
            self.register_buffer(f"{name}_mean", torch.tensor(stats[column].mean, dtype=torch.float32))
            self.register_buffer(f"{name}_std", torch.tensor(stats[column].scale, dtype=torch.float32))
            # The same with all their digits, beside those of the checkpoint.
            for part, values in (("mean", stats[column].mean), ("std", stats[column].scale)):
                self.register_buffer(f"{name}_{part}64", torch.tensor(values, dtype=torch.float64), persistent=False)

    def sample(self, batch: Mapping[str, Tensor]) -> Sample:
        """The loader's batch for the model: a row's numbers as one vector, whatever their shape in the data."""
        columns, actions = self.columns, batch[self.columns.action]
        return Sample(
            self.normal_state(batch[columns.state]),
            [batch[camera] for camera in columns.cameras],
            self._normal("action", actions.reshape(*actions.shape[:2], -1)),
            batch[f"{columns.action}_is_pad"],
        )

    def normal_state(self, state: Tensor) -> Tensor:
        """(B, state_dim), normalised, of joints as the data have them."""
        return self._normal("state", state.reshape(len(state), -1))

    def stay(self, state: Tensor) -> Tensor:
        """(B, 1, action_dim): the joints of now as if they were the action."""
        return self._normal("action", state.reshape(len(state), 1, -1))

    def _normal(self, name: str, values: Tensor) -> Tensor:
        """Wide numbers lose their digits after what they have in common is taken off, not before."""
        is_wide = values.dtype in _WIDE
        mean, std = (self.get_buffer(f"{name}_{part}{'64' if is_wide else ''}") for part in ("mean", "std"))
        return (((values.double() if is_wide else values.float()) - mean) / std).float()

    @abstractmethod
    def losses(self, sample: Sample) -> Losses:
        """With gradients, for a batch."""

    @abstractmethod
    def predict(self, state: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Normalised actions (B, chunk, action_dim) for normalised joints."""

    def act(self, state: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Actions (B, chunk, action_dim) in float64 for joints (B, …), both as the data have them."""
        found = self.predict(self.normal_state(state), images)
        return found.double() * self.action_std64 + self.action_mean64


class ActPolicy(Policy):
    """L1 of the chunk plus `kl_weight` times the divergence of the style from a standard normal."""

    def __init__(self, shape: Shape, columns: Columns, stats: Mapping[str, Stats], kl_weight: float) -> None:
        super().__init__(columns, stats)
        self.kl_weight = kl_weight
        self.model = ActModel(shape)

    def losses(self, sample: Sample) -> Losses:
        found, mean, log_variance = self.model(sample.state, sample.images, sample.actions, sample.is_pad)
        l1 = masked_mean((found - sample.actions).abs(), sample.is_pad)
        kl = style_divergence(mean, log_variance)
        return Losses(l1 + self.kl_weight * kl, l1, kl)

    def predict(self, state: Tensor, images: Sequence[Tensor]) -> Tensor:
        found: Tensor = self.model(state, images)[0]
        return found


class CnnMlpPolicy(Policy):
    """Mean square of the next action alone."""

    def __init__(self, shape: Shape, columns: Columns, stats: Mapping[str, Stats]) -> None:
        super().__init__(columns, stats)
        self.model = CnnMlpModel(shape)

    def losses(self, sample: Sample) -> Losses:
        error = self.predict(sample.state, sample.images) - sample.actions
        loss, l1 = (masked_mean(each, sample.is_pad) for each in (error.square(), error.abs()))
        return Losses(loss, l1, torch.zeros_like(l1))

    def predict(self, state: Tensor, images: Sequence[Tensor]) -> Tensor:
        found: Tensor = self.model(state, images)
        return found


def masked_mean(values: Tensor, is_pad: Tensor) -> Tensor:
    """Of (B, T, D), over what lies within the episode: padding counts neither above nor below the line."""
    kept = (~is_pad).unsqueeze(-1)
    return torch.where(kept, values, 0).sum() / (kept.sum() * values.shape[-1]).clamp(min=1)


def style_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL from a standard normal: summed over the style, averaged over the batch."""
    return (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean() / 2


def make_policy(name: str, shape: Shape, columns: Columns, stats: Mapping[str, Stats], kl_weight: float) -> Policy:
    """By the words of the command line."""
    if name == "ACT":
        return ActPolicy(shape, columns, stats, kl_weight)
    return CnnMlpPolicy(shape, columns, stats)
