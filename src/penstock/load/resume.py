"""What a saved state of an order must say before a pass goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import UsageError

STATE_VERSION = 1


def resumed(state: Mapping[str, Any], mine: Mapping[str, Any], total: int) -> tuple[int, int]:
    """(epoch, position) of a state that belongs to the order and window of `mine`; refused where it does not."""
    if not isinstance(state, Mapping):
        raise UsageError(f"a state is what state_dict() gave, not {state!r}")
    if state.get("version") != STATE_VERSION:
        raise UsageError(f"this state has version {state.get('version')!r}, {STATE_VERSION} is known")
    if _is_of_one_seed(state.get("order"), mine["order"]):
        raise UsageError(
            "this state was taken from a Mix when all of its stores had one seed; each has one of its own now, so the "
            "samples behind the state would be others than those that are still to come",
            hint=f"begin an epoch: loader.set_epoch({state.get('epoch')!r})",
        )
    for part in ("order", "window"):
        if state.get(part) != mine[part]:
            raise UsageError(
                f"this state was taken from another {part}: {state.get(part)} there, {mine[part]} here",
                hint="the same data, window, seed and shuffle are needed to go on at the exact sample",
            )
    epoch, position = state.get("epoch"), state.get("position")
    if type(epoch) is not int or type(position) is not int or epoch < 0 or not 0 <= position <= total:
        raise UsageError(f"this state stands at epoch {epoch!r}, position {position!r} of {total:,}")
    return epoch, position


def _is_of_one_seed(theirs: Any, mine: Any) -> bool:
    """Whether two mixtures differ only in that the sources of `theirs` all have the seed of the mixture itself."""
    if not isinstance(theirs, Mapping) or theirs == mine or mine.get("kind") != "mixture":
        return False
    own = [{**each, "seed": mine["seed"]} if "seed" in each else each for each in mine["sources"]]
    return theirs == {**mine, "sources": own}
