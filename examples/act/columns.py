"""Which columns a policy takes from a store: state, action, and cameras of three channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.errors import PenstockError, StoreError, UsageError

_CHANNELS = 3
_DO_WITHOUT = ", columns=[…] does without the column"
_LACKED = re.compile(r"(?P<name>.+?) is left out: .+ has none, ")


@dataclass(frozen=True)
class Columns:
    """What a policy takes from a store."""

    state: str
    action: str
    cameras: tuple[str, ...]


def own_name(column: str) -> str:
    """A camera by its last word."""
    return column.replace("/", ".").rsplit(".", 1)[-1]


def choose_columns(store: penstock.Store, cameras: Sequence[str] = ()) -> Columns:
    """By the roles that the store knows; all colour cameras unless some are named (by their last word, too)."""
    for role in ("state", "action"):
        if role not in store.roles:
            raise UsageError(f"{store.path} has no column that is known as {role}: {', '.join(store.columns)}")
    seen = [name for name, channels in _channels(store).items() if channels == _CHANNELS]
    chosen = [_named(camera, seen, store) for camera in cameras] if cameras else seen
    if not chosen:
        why = "; ".join([*unused_cameras(store), *store.notes]) or None
        raise UsageError(f"{store.path} has no camera of {_CHANNELS} channels: ACT looks at images", hint=why)
    return Columns(store.roles["state"], store.roles["action"], tuple(dict.fromkeys(chosen)))


def _channels(store: penstock.Store) -> dict[str, int]:
    return {name: column.shape[2] for name, column in store.columns.items() if column.kind == "image"}


def _named(camera: str, seen: Sequence[str], store: penstock.Store) -> str:
    found = [name for name in seen if camera in (name, own_name(name))]
    if len(found) != 1:
        odd = [note for name, note in _unused(store).items() if camera in (name, own_name(name))]
        why = f" of {_CHANNELS} channels: {odd[0]}" if odd else ""
        raise UsageError(f"{store.path} has no camera {camera!r}{why}", hint=f"cameras: {', '.join(seen) or 'none'}")
    return found[0]


def unused_cameras(store: penstock.Store) -> list[str]:
    """A note for each camera that the backbone cannot take."""
    return list(_unused(store).values())


def _unused(store: penstock.Store) -> dict[str, str]:
    return {
        name: f"{name} has {channels} channel{'s' if channels != 1 else ''}: not used"
        for name, channels in _channels(store).items()
        if channels != _CHANNELS
    }


def check_cameras(store: penstock.Store, columns: Columns) -> None:
    """Refuse to train without a camera that some files have, unless it was left out by name."""
    folders = {name.rpartition("/")[0] for name in columns.cameras} - {""}
    lacked = [found for note in store.notes if (found := _LACKED.match(note)) is not None]
    lost = [found.string for found in lacked if found["name"].rpartition("/")[0] in folders]
    if lost:
        short = [own_name(name) for name in columns.cameras]
        named = short if len(set(short)) == len(short) else columns.cameras
        raise UsageError(
            f"{store.path}: {'; '.join(lost)}",
            hint=f"--cameras {','.join(named)} trains with those that all files have, --episodes with the files that "
            "have the others, too",
        )


def open_for(path: Path, cameras: Sequence[str], episodes: Sequence[int] | None) -> penstock.Store:
    """The store of these episodes; where cameras are named, without the others: a file may lack one of those."""
    columns = None
    if cameras:
        with _open_first(path, episodes) as first:
            found = choose_columns(first, cameras)
        columns = [found.state, found.action, *found.cameras]
    try:
        return penstock.open(path, episodes=episodes, columns=columns)
    except StoreError as error:
        if error.hint is not None and _DO_WITHOUT in error.hint:
            error.hint = error.hint.replace(_DO_WITHOUT, _instead(error.message, path, episodes))
        raise


def _open_first(path: Path, episodes: Sequence[int] | None) -> penstock.Store:
    return penstock.open(path, episodes=[0] if episodes is None else episodes[:1])


def _instead(message: str, path: Path, episodes: Sequence[int] | None) -> str:
    """Where the column that does not fit is the state or the action, no --cameras does without it."""
    try:
        with _open_first(path, episodes) as first:
            needed = [first.roles[role] for role in ("state", "action") if role in first.roles]
            cameras = [name for name, channels in _channels(first).items() if channels == _CHANNELS]
    except PenstockError:
        return _DO_WITHOUT
    for name in needed:
        if _is_about(name, message):
            return f"; a policy needs {name} whole and in one shape in all of them"
    others = [own_name(name) for name in cameras if not _is_about(name, message)]
    return f", --cameras {','.join(others)} does without it" if 0 < len(others) < len(cameras) else _DO_WITHOUT


def _is_about(name: str, message: str) -> bool:
    return bool(re.search(rf": (a row of |there is no )?(\S+/)?{re.escape(name)}( is | has |, which )", message))
