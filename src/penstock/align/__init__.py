"""Who pairs with whom: the rows of an episode, computed from timestamps alone."""

from __future__ import annotations

from penstock.align.alignment import Alignment, align
from penstock.align.blend import interpolate
from penstock.align.pairing import Pick
from penstock.align.report import AlignmentReport, StreamReport
from penstock.align.streams import MISSING_POLICIES, POLICIES, Missing, Policy, Stream, measure_rate_hz
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
    "Stream",
    "StreamReport",
    "Timeline",
    "TopicTimeline",
    "align",
    "interpolate",
    "measure_rate_hz",
]
