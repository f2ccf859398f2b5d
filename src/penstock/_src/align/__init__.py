"""Who pairs with whom: the rows of an episode, computed from timestamps alone."""

from __future__ import annotations

from penstock._src.align.alignment import Alignment, align
from penstock._src.align.pairing import RowPick, interpolate, usual_tolerance_ns
from penstock._src.align.rate import Rate, measure_rate, rate_throughout
from penstock._src.align.report import AlignmentReport, StreamReport
from penstock._src.align.streams import Missing, Policy, TopicStream
from penstock._src.align.timeline import FixedTimeline, Timeline, TopicTimeline

__all__ = [
    "Alignment",
    "AlignmentReport",
    "FixedTimeline",
    "Missing",
    "Policy",
    "Rate",
    "RowPick",
    "StreamReport",
    "Timeline",
    "TopicStream",
    "TopicTimeline",
    "align",
    "interpolate",
    "measure_rate",
    "rate_throughout",
    "usual_tolerance_ns",
]
