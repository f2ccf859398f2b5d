"""Who pairs with whom: the rows of an episode, computed from timestamps alone."""

from __future__ import annotations

from penstock.align.alignment import Alignment, align
from penstock.align.pairing import Pick, interpolate, usual_tolerance_ns
from penstock.align.rate import Rate, measure_rate
from penstock.align.report import AlignmentReport, StreamReport
from penstock.align.streams import MISSING_POLICIES, POLICIES, Missing, Policy, Stream
from penstock.align.timeline import FixedTimeline, Timeline, TopicTimeline

__all__ = [
    "MISSING_POLICIES",
    "POLICIES",
    "Alignment",
    "AlignmentReport",
    "FixedTimeline",
    "Missing",
    "Pick",
    "Policy",
    "Rate",
    "Stream",
    "StreamReport",
    "Timeline",
    "TopicTimeline",
    "align",
    "interpolate",
    "measure_rate",
    "usual_tolerance_ns",
]
