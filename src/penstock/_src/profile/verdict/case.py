"""A change with the step time predicted for it (`Fix`), and what changes are derived from (`FixInputs`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._src.profile.loader_info import ImageInfo, LoaderInfo
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.verdict.model import LoaderModel, StageTime

SAME, CLOSE, OTHER = "same batches", "nearly the same images", "another training"
WORTH = 0.02  # of the step: a change that wins less is not listed
KEPT_FREE = 0.1  # of the memory that is available: a loader that takes the last of it is no fix


@dataclass(frozen=True)
class Fix:
    """One change. `predicted_step_ms` is None where nothing was measured that a number could come from."""

    name: str
    change: Mapping[str, Any]
    """Options of the loader; empty where the change is none of its."""
    predicted_step_ms: float | None
    why: str
    keeps: str = SAME
    batch_factor: float = 1.0
    """Samples of a step, over those of now."""
    needs_filling: bool = False
    """Whether it is as predicted only once a view is filled."""

    @property
    def alters_training(self) -> bool:
        return self.keeps == OTHER

    @property
    def per_batch_ms(self) -> float:
        """For as many samples as a step takes now; without a number it is last."""
        return math.inf if self.predicted_step_ms is None else self.predicted_step_ms / self.batch_factor

    def to_dict(self) -> dict[str, Any]:
        ms = None if self.predicted_step_ms is None else round(self.predicted_step_ms, 3)
        return {"name": self.name, "change": dict(self.change), "predicted_step_ms": ms, "why": self.why,
                "keeps": self.keeps, "batch_factor": self.batch_factor}  # fmt: skip


@dataclass(frozen=True)
class BatchCost:
    """What the user's own step takes for a batch of n samples: fixed_ms + n · sample_ms, from two sizes replayed."""

    fixed_ms: float
    sample_ms: float
    sizes: tuple[int, int]

    def ms(self, samples: float) -> float:
        return self.fixed_ms + samples * self.sample_ms


@dataclass(frozen=True)
class PassStarts:
    """What the beginnings of passes cost, all but the first of a loader: each waits for its first batch."""

    per_step_ms: float = 0.0
    """Beyond what any step waits, spread over all steps."""
    spared_ms: float = 0.0
    """Of that, what workers that stay from pass to pass would not need."""
    wait_ms: float = 0.0
    """For one first batch."""
    steps: float = 0.0
    """From one to the next."""


@dataclass(frozen=True)
class FixInputs:
    """Everything that fixes are derived from."""

    now: LoaderModel
    step_ms: float
    stages: tuple[StageTime, ...]
    loader: LoaderInfo
    access_paths: Mapping[str, AccessPath]
    hit_share: float
    """Of the images, those that a view answered for."""
    is_input_bound: bool
    cost: BatchCost | None = None
    on_gpu: bool = False
    starts: PassStarts = PassStarts()
    autocast: Any = None
    """Whether the step computes in mixed precision, where that was seen."""

    @property
    def images(self) -> tuple[ImageInfo, ...]:
        return self.loader.images

    def stage_ms(self, *prefixes: str) -> float:
        return sum(stage.ms for stage in self.stages if stage.name.startswith(prefixes))

    @property
    def image_ms(self) -> float:
        """Of the service time, all that has to do with images."""
        return self.stage_ms("03")

    @property
    def per_batch(self) -> float:
        """Images of a batch, as they were made or copied; those asked for, where nobody counted."""
        return self.loader.made_per_batch or self.loader.images_per_batch or 0.0
