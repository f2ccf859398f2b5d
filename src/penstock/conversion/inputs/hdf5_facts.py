"""What is known of an HDF5 file before it is converted, for people: its layout, its rate, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.conversion.inputs.hdf5_mapping import Facts
from penstock.conversion.inputs.input import Means
from penstock.conversion.settings import Settings, without_effect
from penstock.errors import ConfigError
from penstock.stores.hdf5.layout import NO_TIMEOUTS, Layout, Span
from penstock.stores.roles import ACTIONS, TERMINALS, TIMEOUTS

_EXACT_SECONDS = 2048
_NOT_ASKED = ("timeline", "time", "tolerance", "episodes", "split_episodes")  # the file has its rows and episodes
_KINDS = {"aloha": "one episode (ALOHA / ACT)", "robomimic": "demonstrations (robomimic)", "replay": "replay steps"}


def length_of(span: Span, settings: Settings) -> int:
    rows = max(span.stop - span.start - 2 * settings.sample_drop, 0)
    return -(-rows // (settings.stride or 1))


def rate_of(path: Path, layout: Layout, facts: Facts, settings: Settings, means: Means) -> int:
    """Rows per second, as given or as the file says; HDF5 files have no times to measure it by."""
    stride = settings.stride or 1
    if means.settings.fps is not None:
        return means.settings.fps
    if facts.rate_hz is not None:
        rate = facts.rate_hz / stride
        if rate < 1 or abs(rate - round(rate)) > 1e-6:
            raise ConfigError(
                f"{path}: {facts.rate_from} says {facts.rate_hz:g} rows a second, which makes {rate:g} with stride "
                f"{stride}: LeRobot takes whole rates",
                hint="give fps=30 (or what is meant)",
            )
        return round(rate)
    if settings.fps is not None:
        return settings.fps
    is_aloha = layout.kind == "aloha" and layout.is_known
    usual = "fps=50 (ALOHA records at 50 Hz)" if is_aloha else "fps=20, or what it was recorded at"
    raise ConfigError(f"{path} does not say how many rows a second has", hint=f"give {usual}")


def notes_on(
    layout: Layout, facts: Facts, settings: Settings, asked: Settings, spans: Sequence[Span], fps: int
) -> Sequence[str]:
    """`asked`: the user's own settings, or the usual ones where the first input has settled them."""
    notes: list[str] = []
    if facts.rate_hz is not None:
        same = abs(facts.rate_hz / (settings.stride or 1) - fps) < 1e-6
        notes.append(
            f"{facts.rate_from}: {facts.rate_hz:g} rows a second"
            + ("" if same else f", taken as {fps} fps as asked: no row is left out or added for that")
        )
    ends = [name for name in TERMINALS if layout.member(name) is not None]
    if layout.kind == "replay" and layout.first_of(TIMEOUTS) is None and len(ends) == 1:
        notes.append(NO_TIMEOUTS)
    if layout.masks and settings.hdf5.mask is None:
        notes.append(f"masks: {', '.join(layout.masks[:8])} (hdf5.mask=NAME takes the demonstrations of one)")
    notes += without_effect(asked, _NOT_ASKED, "HDF5 files")
    longest_s = max(length_of(span, settings) for span in spans) // fps
    if longest_s > _EXACT_SECONDS:
        notes.append(
            f"an episode of {longest_s:,} s is longer than the 2,048 s that LeRobot's float32 times resolve to its "
            "0.1 ms: read it with LeRobotDataset(..., tolerance_s=1e-3)"
        )
    empty = sum(length_of(span, settings) == 0 for span in spans)
    if empty:
        notes.append(f"{empty:,} of {len(spans):,} episodes have no rows")
    return notes


def label_of(layout: Layout) -> str:
    if layout.kind == "robomimic" and layout.first_of(ACTIONS) is None:
        return "demonstrations without actions (old robosuite)"
    return _KINDS[layout.kind] if layout.is_known else "one episode (layout not known)"


def robot_of(settings: Settings, facts: Facts) -> str:
    unknown = settings.robot_type == Settings().robot_type
    return facts.robot if unknown and facts.robot else settings.robot_type
