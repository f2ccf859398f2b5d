"""`plan_conversion`: what converting a recording, a file or a data set takes, found from its index alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock._src.conversion.find import identify_input
from penstock._src.conversion.inputs.input import InputRef, OpenOptions, open_input
from penstock._src.conversion.settings import Settings, Video, read_settings
from penstock._src.plan.conversion_plan import ConversionOption, ConversionPlan
from penstock._src.system.budget import Budget
from penstock._src.system.files import as_path
from penstock._src.system.limits import read_cpu_limit
from penstock.errors import PenstockError

VIDEOS: tuple[Video, ...] = ("copy", "h264", "av1")


def plan_conversion(
    path: str | os.PathLike[str],
    *,
    memory: str | int = "auto",
    config: str | None = None,
    overrides: Sequence[str] = (),
) -> ConversionPlan:
    """Open an input as `convert` would, once for each way of storing cameras. No image is read."""
    settings = read_settings(config, overrides)
    ref = identify_input(as_path(path))
    budget_bytes = Budget.parse(memory).limit_bytes
    about: dict[str, Any] = {"kind": ref.kind, "size_bytes": 0, "fps": None, "lines": ()}
    errors: list[PenstockError] = []
    videos = dict.fromkeys((*VIDEOS, settings.video))
    lines: dict[str, tuple[tuple[str, str], ...]] = {}
    options = [_option(ref, replace(settings, video=video), budget_bytes, about, lines, errors) for video in videos]
    if len(errors) == len(videos) and len({error.message for error in errors}) == 1:
        raise errors[0]  # it is no matter of how cameras are stored
    plan = ConversionPlan(
        path=str(path), budget_bytes=budget_bytes, options=tuple(options), asked=settings.video, **about
    )
    return plan if plan.chosen is None else replace(plan, lines=lines[plan.chosen.video])


def _option(
    ref: InputRef,
    settings: Settings,
    budget_bytes: int,
    about: dict[str, Any],
    lines: dict[str, tuple[tuple[str, str], ...]],
    errors: list[PenstockError],
) -> ConversionOption:
    options = OpenOptions(settings=settings, budget_bytes=budget_bytes, threads=read_cpu_limit().count)
    try:
        with open_input(ref, options) as planned:
            shown = ((label.strip(), text) for label, text in planned.lines() if label != "memory")
            lines[settings.video] = tuple(shown)
            about.update(size_bytes=planned.size_bytes, fps=planned.fps)
            return ConversionOption(settings.video, dict(planned.memory.parts()))
    except PenstockError as error:
        errors.append(error)
        return ConversionOption(settings.video, {}, why_not=error.message, hint=error.hint or "")
