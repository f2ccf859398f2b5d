"""What makes a conversion this conversion: version, settings and inputs; and how two of them differ."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock._src.conversion.episodes.sidecar import read_sidecar
from penstock._src.conversion.inputs.input import InputRef
from penstock._src.conversion.settings import Settings, plain_settings
from penstock._src.conversion.sink import DEFAULT_OUTPUT
from penstock._src.system.files import RemotePath, as_path, call_all, open_source, walk
from penstock.errors import PenstockError, RecordingError, os_errors

_LOOKED_AT_BYTES = 64 << 10  # at both ends of a file: enough to distinguish recordings
_LISTED = 12


def identity(settings: Settings, sources: Sequence[Mapping[str, Any]], *, strict: bool) -> dict[str, Any]:
    """As the journal keeps it: another identity gives other bytes, so it may not continue what this one began."""
    return {
        "penstock": __version__,
        "settings": plain_settings(settings),
        "strict": strict,
        "sources": list(sources),
    }


def sources(refs: Sequence[InputRef], settings: Settings) -> tuple[list[dict[str, Any]], dict[int, PenstockError]]:
    """All inputs as the journal knows them, and what is wrong with those that cannot be read, by number."""
    known, failed = [], {}
    calls = [partial(_source_or_error, each, settings) for each in refs]
    is_remote = any(isinstance(each.path, RemotePath) for each in refs)
    for number, found in enumerate(call_all(calls, is_remote=is_remote)):
        if isinstance(found, PenstockError):  # its name is all there is to know
            failed[number] = found
            found = {"kind": refs[number].kind, "path": _absolute(refs[number].path), "bytes": 0, "sum": "unreadable"}
        known.append(found)
    return known, failed


def _source_or_error(ref: InputRef, settings: Settings) -> dict[str, Any] | PenstockError:
    try:
        return _source(ref, settings)
    except PenstockError as error:
        return error


def _source(ref: InputRef, settings: Settings) -> dict[str, Any]:
    """One input as the journal knows it: its path, and enough of its contents to see that it is another one."""
    size_bytes, sum_ = 0, 0
    for path in _files(ref.path):
        size, sum_ = _size_and_sum(path, sum_)
        size_bytes += size
    known = {"kind": ref.kind, "path": _absolute(ref.path), "bytes": size_bytes, "sum": f"{sum_:08x}"}
    if ref.is_recording:
        beside = read_sidecar(ref.path, settings.episodes.sidecar, 0)
        if beside.files:  # what they say of this recording: a table may get lines for others
            contents = (beside.task, beside.windows, beside.subtasks)
            known["beside"] = f"{zlib.crc32(repr(contents).encode(errors='surrogatepass')):08x}"
    return known


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, but: Sequence[str] = ()) -> list[str]:
    """What a user has to know when the two are not the same; `but` names settings that may differ."""
    texts = []
    if before["penstock"] != now["penstock"]:
        texts.append(f"penstock {now['penstock']} instead of {before['penstock']}")
    if before["strict"] != now["strict"]:
        texts.append(f"{'with' if now['strict'] else 'without'} --strict")
    old, new = ({"output": DEFAULT_OUTPUT, **side["settings"]} for side in (before, now))
    texts += _setting_differences(old, new, "", but)
    texts += source_differences(before["sources"], now["sources"])
    return texts if len(texts) <= _LISTED else [*texts[:_LISTED], f"and {len(texts) - _LISTED:,} more"]


def source_differences(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs; the order does not count: the journal's is kept."""
    old, new = ({real(each["path"]): each for each in side} for side in (before, now))
    texts = [f"input {old[path]['path']} is not given any more" for path in old if path not in new]
    texts += [f"input {new[path]['path']} is new" for path in new if path not in old]
    for path in old:
        was, is_ = old[path], new.get(path, old[path])
        if was["sum"] != is_["sum"]:
            sizes = "" if was["bytes"] == is_["bytes"] else f" ({is_['bytes']:,} bytes instead of {was['bytes']:,})"
            texts.append(f"input {is_['path']} has changed{sizes}")
        elif was.get("beside") != is_.get("beside"):
            texts.append(f"the file beside input {is_['path']} says something else")
    return texts


def _setting_differences(before: Any, now: Any, where: str, but: Sequence[str]) -> Iterator[str]:
    if before == now or where in but:
        return
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            deeper = f"{where}.{key}" if where else str(key)
            yield from _setting_differences(before.get(key), now.get(key), deeper, but)
    elif isinstance(before, Mapping) and now is None:
        yield f"{where} is not given any more"
    elif isinstance(now, Mapping) and before is None:
        yield f"{where} is new"
    else:
        yield f"{where}: {_written(now)} instead of {_written(before)}"


def _written(value: Any) -> str:
    """As a configuration writes it, not as Python does."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _absolute(path: Path) -> str:
    """A resumed job may run in another directory, a shard on another machine."""
    return str(path) if isinstance(path, RemotePath) else os.path.abspath(path)


def real(path: str | Path) -> str:
    return str(path) if isinstance(as_path(path), RemotePath) else os.path.realpath(path)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for here, subdirectories, names in walk(path):
        subdirectories.sort()
        yield from (here / name for name in sorted(names))


def _size_and_sum(path: Path, sum_: int) -> tuple[int, int]:
    with os_errors(RecordingError, f"{path}: cannot be read"), open_source(path) as source:
        size_bytes = source.size_bytes
        sum_ = zlib.crc32(f"{path.name} {size_bytes}".encode(), sum_)
        sum_ = zlib.crc32(source.read(0, _LOOKED_AT_BYTES), sum_)
        if size_bytes > _LOOKED_AT_BYTES:
            last = max(_LOOKED_AT_BYTES, size_bytes - _LOOKED_AT_BYTES)
            sum_ = zlib.crc32(source.read(last, _LOOKED_AT_BYTES), sum_)
    return size_bytes, sum_
