"""Which columns of a store a replay buffer takes: those with usual names, or those given; and where episodes end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock._src.load.engine.source import Shaping
from penstock._src.load.sampling.transition import Transition, own_next
from penstock._src.stores.roles import CAMERA_NAMES, NAMES, STATE_NAMES
from penstock._src.stores.store import Store
from penstock.errors import StoreError, UsageError

_ROLES = {"joint": "state"}  # what a replay buffer calls otherwise
_SCAN_BYTES = 4 << 20


@dataclass(frozen=True)
class ReplayRequest:
    """The user's options: sizes, and names where they are not the usual ones."""

    action_dim: int
    joint_dim: int
    images: tuple[str, ...] | None = None
    joint: str | None = None
    action: str | None = None
    reward: str | None = None
    terminal: str | None = None


@dataclass(frozen=True)
class ReplayColumns:
    """The columns of one store."""

    images: tuple[str, ...]
    joint: tuple[str, ...]
    """Joined in this order."""
    action: str
    reward: str
    terminal: str | None

    def window(self) -> Transition:
        """Row i of everything, row i+1 of images and joints."""
        numbers = [*self.joint, self.action, self.reward, *([self.terminal] if self.terminal else [])]
        return Transition([*self.images, *numbers], [*self.images, *self.joint])


def columns_for(store: Store, request: ReplayRequest) -> ReplayColumns:
    """Find them, and check that they are what the buffer was made for."""
    images = _images(store, request.images)
    joint = _joint(store, request.joint)
    action = _numbers(store, "action", request.action)
    reward = _numbers(store, "reward", request.reward)
    terminal = _numbers_or_none(store, "terminal", request.terminal)
    _check_size(store, joint, "joint_dim", request.joint_dim)
    _check_size(store, (action,), "action_dim", request.action_dim)
    for name in (reward, terminal):
        if name is not None and _size(store, name) != 1:
            raise StoreError(f"{store.path}: {name} has {_size(store, name):,} numbers a row, one is expected")
    return ReplayColumns(images, joint, action, reward, terminal)


def sizes_for(store: Store, shaping: Shaping) -> Shaping:
    """Sizes by camera, with whole names; what follows an image in a column of its own has the size of the image."""
    if not isinstance(shaping.image_size, Mapping):
        return shaping
    sizes = {_named(store, name): size for name, size in shaping.image_size.items()}
    following = {after: sizes[name] for name, after in own_next(store).items() if name in sizes}
    whole = replace(shaping, image_size={**following, **sizes})
    whole.check_names(store)
    return whole


def _images(store: Store, requested: Sequence[str] | None) -> tuple[str, ...]:
    images = [name for name, column in store.columns.items() if column.kind == "image"]
    if requested is not None:
        chosen = tuple(_named(store, name) for name in requested)
        wrong = [name for name in chosen if name not in images]
        if wrong:
            raise StoreError(f"{store.path}: {wrong[0]} is {store.column(wrong[0]).kind}, not colour images",
                             hint=f"images: {', '.join(images) or 'none'}")  # fmt: skip
        return chosen
    usual = tuple(_candidates(store, name) for name in CAMERA_NAMES)
    if all(len(each) == 1 and each[0] in images for each in usual):
        return tuple(each[0] for each in usual)
    own = [name for name in images if name not in own_next(store).values()]
    bases = [_base(name) for name in own]
    shown = bases if len(set(bases)) == len(bases) else own
    option = f"images=({', '.join(repr(name) for name in shown[:3])}{',' if len(shown) == 1 else ''})"
    raise StoreError(
        f"{store.path}: {', '.join(CAMERA_NAMES)} are not all there; images: {', '.join(own) or 'none'}",
        hint=f"name the cameras, in the order of the batch: MultimodalReplayBuffer(…, {option})" if own else
        "a replay buffer of images needs at least one camera; penstock.Loader loads numbers alone",
    )  # fmt: skip


def _joint(store: Store, option: str | None) -> tuple[str, ...]:
    """The state, as conversion takes it too; where the robot's own is not there, that of the simulator."""
    known = store.columns_for("state") or (
        () if any(_candidates(store, name) for name in STATE_NAMES) else store.columns_for("environment_state")
    )
    return known if option is None and known else (_numbers(store, "joint", option),)


def _numbers(store: Store, what: str, option: str | None) -> str:
    name = _numbers_or_none(store, what, option)
    if name is None:
        numbers = [name for name, column in store.columns.items() if column.kind == "numbers"]
        raise StoreError(
            f"{store.path}: no column is called {' or '.join(_usual(what))}",
            hint=f"name it: MultimodalReplayBuffer(…, {what}=…); numbers: {', '.join(numbers) or 'none'}",
        )
    return name


def _numbers_or_none(store: Store, what: str, option: str | None) -> str | None:
    if option is not None:
        name: str | None = _named(store, option)
    else:
        candidates = [each for usual in _usual(what) for each in _candidates(store, usual)]
        name = store.roles.get(what) or (candidates[0] if candidates else None)
    if name is not None and store.column(name).kind != "numbers":
        raise StoreError(f"{store.path}: {what}={name}: this column is {store.column(name).kind}, not numbers")
    return name


def _usual(what: str) -> tuple[str, ...]:
    return NAMES[_ROLES.get(what, what)]


def _named(store: Store, name: str) -> str:
    """A column by its whole name, or by the last part of it."""
    if name in store.columns:
        return name
    candidates = _candidates(store, name)
    if len(candidates) > 1:
        raise UsageError(f"{store.path}: {name!r} may be {' or '.join(candidates)}", hint="give the whole name")
    return candidates[0] if candidates else store.column(name).name


def _candidates(store: Store, name: str) -> list[str]:
    following = set(own_next(store).values())
    return [each for each in store.columns if each not in following and (each == name or _base(each) == name)]


def _base(name: str) -> str:
    return name.replace(".", "/").rsplit("/", 1)[-1]


def _size(store: Store, name: str) -> int:
    return int(np.prod(store.column(name).shape, dtype=np.int64))


def _check_size(store: Store, names: Sequence[str], option: str, expected: int) -> None:
    size = sum(_size(store, name) for name in names)
    if size != expected:
        has = f"{names[0]} has" if len(names) == 1 else f"{' + '.join(names)} have"
        raise StoreError(
            f"{store.path}: {has} {size:,} numbers a row, the buffer was made for {option}={expected:,}",
            hint=f"set {option}={size}, or name another column: {option.removesuffix('_dim')}=…",
        )


def cut_at(store: Store, terminal: str) -> None:
    """Let episodes end after every row where this column is not 0; the store did not know that it is the terminal."""
    ends: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    for first, block in store.number_blocks([terminal], _SCAN_BYTES):
        values = block[terminal].reshape(len(block[terminal]), -1)[:, 0]
        is_end = (values != 0) & (values == values)  # a NaN says nothing
        ends.append(np.flatnonzero(is_end).astype(np.int64) + first + 1)
    terminal_stops = np.concatenate(ends) if ends else np.zeros(0, np.int64)
    store.episode_numbers = None
    store.episode_starts = np.union1d(store.episode_starts, terminal_stops)
    store.ends_terminal = np.isin(store.episode_starts[1:], terminal_stops)
