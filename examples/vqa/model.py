"""A small VQA model: a CNN whose channels the question turns up and down (FiLM), and a choice among answers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class QuestionEncoder(nn.Module):
    """The last state of a GRU over the words of a question."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width // 2, padding_idx=0)
        self.gru = nn.GRU(width // 2, width, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(ids))
        last = mask.sum(1).clamp(min=1) - 1
        return states[torch.arange(len(ids), device=ids.device), last]


class Stage(nn.Module):
    """A convolution of stride 2, scaled and shifted channel by channel as the question asks."""

    def __init__(self, channels_in: int, channels: int, question: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.film = nn.Linear(question, 2 * channels)

    def forward(self, images: Tensor, question: Tensor) -> Tensor:
        scale, shift = self.film(question)[:, :, None, None].chunk(2, dim=1)
        return torch.relu(self.norm(self.convolution(images)) * (1 + scale) + shift)


class VQAModel(nn.Module):
    """Logits over the answers, of images (batch, 3, height, width) in [0, 1] and questions as word numbers."""

    def __init__(self, words: int, answers: int, image_size: tuple[int, int], width: int = 64) -> None:
        super().__init__()
        self.question = QuestionEncoder(words, width)
        channels = (3, width // 4, width // 2, width, width)
        self.stages = nn.ModuleList(Stage(channels[n], channels[n + 1], width) for n in range(4))
        height, across = (-(-side // 16) for side in image_size)
        self.answer = nn.Sequential(
            nn.Linear(width * height * across + width, 4 * width), nn.ReLU(), nn.Linear(4 * width, answers)
        )

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        question = self.question(ids, mask)
        features = images - 0.5
        for stage in self.stages:
            features = stage(features, question)
        logits: Tensor = self.answer(torch.cat([features.flatten(1), question], dim=1))
        return logits
