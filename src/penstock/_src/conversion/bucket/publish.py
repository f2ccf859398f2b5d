"""A converted data set becomes the version that readers see, by one conditional write; what is old goes after it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock._src.conversion.bucket.place import (
    FILES_NAME,
    BucketSet,
    FileList,
    Runs,
    Version,
    chunk_of,
    dump_json,
    run_name,
    version_dir,
    version_of,
)
from penstock._src.conversion.bucket.run import BucketRun
from penstock._src.conversion.bucket.upload import Uploads
from penstock._src.lerobot import layout
from penstock._src.system.files.remote.client import ObjectInfo
from penstock.errors import RemoteTaken

_OF_VERSION = (layout.INFO_PATH, FILES_NAME)  # have no copy under another name


def publish(place: BucketSet, run: BucketRun, uploads: Uploads, check_stop: Callable[[], None]) -> None:
    """Bring everything to the bucket, and make it the current version, where that is still the one it replaces."""
    data, metadata = names_in(run.root)
    uploads.finish(data, check_stop)
    listing = place.list_files()
    base = place.current()
    check_base(place, run.base, base)  # first: whoever published another version removes files of this run
    uploads.check_there({name: info.size_bytes for name, info in listing.items()})
    files = FileList({name: (size_bytes, listing[name].etag) for name, size_bytes in uploads.done.items()})
    if run.appends and base is not None:
        files = FileList({**place.files_of(base, listing).files, **files.files}, base.number)
    check_stop()
    target = version_dir(run.number)
    for name in metadata:
        if name != layout.INFO_PATH:
            place.put(f"{target}/{name}", (run.root / name).read_bytes())
    place.put(f"{target}/{FILES_NAME}", dump_json(files.to_json()))
    info = dump_json({**json.loads((run.root / layout.INFO_PATH).read_text()), layout.METADATA_KEY: target})
    place.put(f"{target}/{layout.INFO_PATH}", info)
    check_stop()
    try:
        place.client.put(place.key(layout.INFO_PATH), info, if_absent=run.base is None, if_match=run.base)
    except RemoteTaken as error:
        if not is_published(place, run):  # else its answer was lost, and others have built on it since
            raise lost(place, place.current()) from error
    complete(place)


def is_published(place: BucketSet, run: BucketRun) -> bool:
    """Whether the current version is that of a run, or has its files: later runs append to it."""
    current = place.current()
    if not run.chunks or current is None or current.number is None:
        return False
    files, before = place.files_of(current, {})
    chunks = set(run.chunks)
    return run.number in (current.number, before) or any(chunk_of(name) in chunks for name in files)


def check_base(place: BucketSet, base: str | None, current: Version | None) -> None:
    """The version that a run replaces, by its ETag, must still be the current one."""
    if (None if current is None else current.etag) != base:
        raise lost(place, current)


def lost(place: BucketSet, current: Version | None) -> RemoteTaken:
    url = str(place.url)
    if current is None:
        return RemoteTaken(
            f"{url}: the data set was removed while this conversion ran: nothing was written to it",
            url=url,
            hint="run the same command again, without --append",
        )
    return RemoteTaken(
        f"{url}: {place.writer_of(current)} was first: it wrote this data set while this conversion ran, "
        "of which nothing is kept",
        url=url,
        hint="--append adds these inputs to it, --overwrite replaces it, or choose another output",
    )


def names_in(root: Path) -> tuple[list[str], list[str]]:
    """The files of a data set: those with rows and frames, and metadata."""
    data: list[str] = []
    metadata: list[str] = []
    for folder, _, names in os.walk(root):
        for name in names:
            relative = Path(folder, name).relative_to(root).as_posix()
            (metadata if chunk_of(relative) is None else data).append(relative)
    return sorted(data), sorted(metadata)


def complete(place: BucketSet) -> None:
    """After a version became current: its metadata under the usual names, and what no version needs goes.

    May be killed and done again, also by another process: each looks in the end whether the version is still current,
    and does it for the new one where it is not, so that the last one to look leaves what is current.
    """
    while True:
        listing = place.list_files()  # before the version is read: what it does not know then, no later version does
        version = place.current()
        if version is None or version.number is None:
            break
        _copy_metadata(place, version, listing)
        _remove_old(place, version, listing)
        if (now := place.current()) is not None and now.etag == version.etag:
            break
    place.forget()


def _copy_metadata(place: BucketSet, version: Version, listing: Mapping[str, ObjectInfo]) -> None:
    begin = version.metadata_dir
    wanted = {name.removeprefix(begin) for name in place.list_files(begin.rstrip("/"))} - {*_OF_VERSION}
    for name in sorted(wanted):
        if (data := place.read(begin + name)) is not None:
            place.put(name, data)
    place.delete([name for name in listing if _is_copy(name) and name not in wanted])


def _is_copy(name: str) -> bool:
    """Whether a file of metadata is one that `_copy_metadata` writes."""
    folder = os.path.dirname(name)
    return name in (layout.SUBTASKS_PATH,) or folder == layout.OWN_DIR or folder.startswith(f"{layout.EPISODES_DIR}/")


def _remove_old(place: BucketSet, version: Version, listing: Mapping[str, ObjectInfo]) -> None:
    """Remove files that the current version does not have, and metadata of others than the one it appended to.

    Whoever began before the version became current cannot publish any more. A run that began since has taken chunks,
    and said on which version it builds.
    """
    files, before = place.files_of(version, listing)
    runs = Runs(place, listing)

    def is_alive(chunk: int) -> bool:
        run = runs.of(chunk)
        return run is not None and run.get("base") == version.etag

    def is_old(name: str) -> bool:
        if (chunk := chunk_of(name)) is not None:
            return name not in files and not is_alive(chunk)
        number = version_of(name)
        return number is not None and number not in (version.number, before) and not is_alive(number)

    place.delete([name for name in listing if is_old(name)])


def release(place: BucketSet, run: BucketRun) -> None:
    """A run that brought nothing to the bucket, and ends, gives its chunks back."""
    place.delete([run_name(chunk) for chunk in run.chunks])


def remove_run(place: BucketSet, run: BucketRun) -> None:
    """Remove what a run brought to the bucket that will not publish it; the chunks that it took stay taken."""
    chunks = set(run.chunks)
    if chunks:
        listing = place.list_files()
        place.delete([name for name in listing if chunk_of(name) in chunks or version_of(name) in chunks])
