"""`ConversionPlan`: what converting an input takes, for each way of storing its cameras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ConversionOption:
    """One way of storing cameras. Figures are predictions."""

    video: str
    memory_bytes: Mapping[str, int]
    """The peak of all processes, by part."""
    why_not: str = ""
    hint: str = ""

    @property
    def peak_bytes(self) -> int:
        return sum(self.memory_bytes.values())


@dataclass(frozen=True)
class ConversionPlan:
    path: str
    kind: str
    size_bytes: int
    budget_bytes: int
    fps: int | None
    lines: tuple[tuple[str, str], ...]
    """(label, text): what becomes of each column."""
    options: tuple[ConversionOption, ...]
    asked: str = "copy"
    """How the configuration stores cameras."""

    @property
    def chosen(self) -> ConversionOption | None:
        """What was asked for; where that is not possible, the first that is."""
        usable = [each for each in self.options if not each.why_not]
        return next((each for each in usable if each.video == self.asked), usable[0] if usable else None)

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        for each, option in zip(plain["options"], self.options, strict=True):
            each["peak_bytes"] = option.peak_bytes
        return plain
