"""Who pairs with whom: the rows of an episode, computed from timestamps alone."""

from __future__ import annotations

from penstock.align.alignment import Alignment, align
from penstock.align.pairing import RowPick, interpolate, usual_tolerance_ns
from penstock.align.rate import Rate, measure_rate
from penstock.align.report import AlignmentReport, StreamReport
from penstock.align.streams import MISSING_POLICIES, POLICIES, Missing, Policy, TopicStream
from penstock.align.timeline import FixedTimeline, Timeline, TopicTimeline

__all__ = [
    "MISSING_POLICIES",
    "POLICIES",
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
    "usual_tolerance_ns",
]
