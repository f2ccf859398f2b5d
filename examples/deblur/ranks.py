"""The processes of one training: `torchrun` starts several, a plain call is one; sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from penstock.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """Which process this is, of how many, and the device it trains on."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """In place, over all processes."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def average_gradients(self, parameters: Sequence[nn.Parameter], weight: Tensor) -> None:
        """Gradients of weighted sums here become those of the weighted mean over all processes.

        They are added up once per optimizer step. So every clip counts the same, whatever number of processes it is
        spread over, and however few clips the last batch has.
        """
        flat = torch.cat([*(each.grad.flatten() for each in parameters), weight.view(1)])  # type: ignore[union-attr]
        self.sum(flat)
        means = (flat[:-1] / flat[-1].clamp(min=1)).split([each.numel() for each in parameters])
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = mean.view_as(parameter)


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone; `device` is auto, cpu or cuda."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    ranks = Ranks(rank, world_size, _device(device))
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    if world_size > 1:
        distributed.init_process_group("nccl" if ranks.device.type == "cuda" else "gloo")
    try:
        yield ranks
        if world_size > 1:
            distributed.barrier()  # nobody leaves while another one still talks to it
    finally:
        if world_size > 1:
            distributed.destroy_process_group()


def _device(name: str) -> torch.device:
    is_there = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not is_there):
        return torch.device("cpu")
    if not is_there:
        raise UsageError("--device cuda: torch finds no GPU here", hint="--device cpu")
    place = int(os.environ.get("LOCAL_RANK", 0))
    if place >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(
            f"process {place} of this machine has no GPU: there are {count}",
            hint=f"torchrun --nproc-per-node {count} …",
        )
    return torch.device("cuda", place)
