"""What a conversion did: the object that `--json` prints and that lies in the data set as penstock/report.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

REPORT_PATH = "penstock/report.json"


@dataclass(frozen=True)
class Stage:
    """Memory at one moment of the run."""

    at: str
    rss_bytes: int


@dataclass(frozen=True)
class Report:
    """The result of a conversion; `lost` counts by cause what was in the sources and is not in the output."""

    out: str
    sources: tuple[str, ...]
    episodes: int
    frames: int
    lost: Mapping[str, int]
    seconds: float
    bytes_in: int
    bytes_out: int
    peak_rss_bytes: int
    predicted_peak_bytes: int
    budget_bytes: int
    fps: int
    features: Mapping[str, Any]
    alignment: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    memory: tuple[Stage, ...] = ()
    penstock: str = field(default="")

    @property
    def lost_count(self) -> int:
        return sum(self.lost.values())

    @property
    def exit_code(self) -> int:
        """0, or 3 when something was lost."""
        return 3 if self.lost_count else 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        return (
            f"Report({self.out!r}: {self.episodes} episodes, {self.frames} frames, {self.lost_count} lost, "
            f"{self.seconds:.2f} s, peak {self.peak_rss_bytes / 2**20:.0f} MiB)"
        )
