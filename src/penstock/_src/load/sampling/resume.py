"""What a saved state of an order must say before a pass goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import UsageError

STATE_VERSION = 1


def resumed(state: Mapping[str, Any], own: Mapping[str, Any], total: int) -> tuple[int, int]:
    """(epoch, position) of a state that belongs to the order and window of `own`; other states are refused."""
    if not isinstance(state, Mapping):
        raise UsageError(f"a state is what state_dict() gave, not {state!r}")
    if state.get("version") != STATE_VERSION:
        raise UsageError(f"this state has version {state.get('version')!r}, {STATE_VERSION} is known")
    if _is_of_another_rule(state.get("order"), own["order"]):
        raise UsageError(
            "this state was taken from a Mix by another version of penstock, which ordered samples differently: "
            "going on would repeat some samples and leave out others",
            hint=f"begin an epoch: loader.set_epoch({state.get('epoch')!r})",
        )
    for part in ("order", "window"):
        if state.get(part) != own[part]:
            raise UsageError(
                f"this state was taken from another {part}: {state.get(part)} there, {own[part]} here",
                hint="the same data, window, seed and shuffle are needed to go on at the exact sample",
            )
    epoch, position = state.get("epoch"), state.get("position")
    if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position <= total:
        raise UsageError(f"this state is at epoch {epoch!r}, position {position!r} of {total:,}")
    return epoch, position


def _is_of_another_rule(saved: Any, own: Mapping[str, Any]) -> bool:
    """Whether both are mixtures, and a version that deals out samples otherwise saved the state."""
    if not isinstance(saved, Mapping) or not saved.get("kind") == own.get("kind") == "mixture":
        return False
    return bool(saved.get("version") != own["version"])
