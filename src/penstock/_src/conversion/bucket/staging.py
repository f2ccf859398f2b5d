"""The local directory in which a data set for a bucket is built, and what a call finds there and in the bucket.

CACHE/outputs/NAME-HASH/run.json        what the run read in the bucket, and the chunks that it took
CACHE/outputs/NAME-HASH/set/            the data set; files that are in the bucket take no space any more
CACHE/outputs/NAME-HASH/uploaded.jsonl  those files
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._src.conversion.bucket import publish
from penstock._src.conversion.bucket.place import RUNS_DIR, SHARDS_DIR, BucketSet, Version, chunk_of, runs_in
from penstock._src.conversion.bucket.run import BucketRun, Shared, directory_of
from penstock._src.conversion.bucket.upload import UPLOAD_BYTES, Uploads
from penstock._src.conversion.commit.join import committed
from penstock._src.conversion.commit.journal import JOURNAL_PATH, OWN_DIR, Journal
from penstock._src.conversion.commit.output import Holds, Mode, OutputDirectory, locked, writable
from penstock._src.conversion.report import REPORT_PATH, Report, read_report
from penstock._src.conversion.sink import sink_factory
from penstock._src.lerobot import layout
from penstock._src.system import units
from penstock._src.system.files import RemotePath
from penstock.errors import DataSetError, OutputExists, PenstockError, RemoteChanged, RemoteTaken, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job
    from penstock._src.system.files.remote.client import ObjectInfo

_BASE_NAME = "base"
_NOT_METADATA = (f"{layout.VERSIONS_DIR}/", f"{RUNS_DIR}/", f"{SHARDS_DIR}/")


def check_job(job: Job, *, is_shared: bool = False) -> None:
    """Refuse what a conversion into a bucket cannot do; `is_shared`: by several machines."""
    name = job.settings.output
    if not all(hasattr(sink_factory(name), each) for each in ("number_from", *(["begin_group"] if is_shared else []))):
        raise UsageError(
            f"output={name} cannot be written to {job.out}: its files have fixed names, so a reader could see two "
            "versions mixed",
            hint="convert to a local directory and copy that; output=v3.0 can be written to a bucket",
        )


@contextlib.contextmanager
def building(job: Job, out: RemotePath, mode: Mode, *, overwrite: bool) -> Iterator[OutputDirectory]:
    """Give a local directory to build in. When the block ends, and all is converted, it becomes a version of `out`."""
    check_job(job, is_shared=job.shared is not None)
    place = BucketSet(out)
    with _locked(out):
        run, holds = _prepare(job, place, mode, overwrite) if job.shared is None else _prepare_shared(place, job.shared)
        with Uploads(place, run.root, run.done_path) as uploads:
            work = OutputDirectory(
                run.root,
                out,
                holds,
                chunks=lambda: run.numbering(place),
                follow=lambda writer: uploads.follow(writer, lambda: job.stop.is_requested),
                upload_bytes=UPLOAD_BYTES,
                count_new=lambda: _new_episodes(run),
                videos_by_group=run.shared is not None,
                group_shift=0 if run.shared is None else run.shared.group_shift,
                elsewhere=uploads.add_done,
            )
            job.stop.also_check = uploads.check
            try:
                yield work
                if work.finished:
                    run.is_converted = True
                    run.save()
                    _publish(job, place, run, uploads)
            finally:
                job.stop.also_check = None
                if not run.is_converted and not _new_episodes(run):
                    with contextlib.suppress(PenstockError):  # what ended the conversion counts
                        publish.release(place, run)
                    shutil.rmtree(run.directory, ignore_errors=True)


@contextlib.contextmanager
def _locked(out: RemotePath) -> Iterator[None]:
    directory = directory_of(out)
    with locked(directory.with_name(directory.name + ".lock"), out):
        yield


def _new_episodes(run: BucketRun) -> int:
    return max(0, committed(run.root) - run.episodes_before)


def _publish(job: Job, place: BucketSet, run: BucketRun, uploads: Uploads) -> None:
    """Make a converted data set the current version; whatever ends this, a later call goes on."""
    names = [name for name in publish.names_in(run.root)[0] if name not in uploads.done]
    if names:
        size = units.format_size(uploads.left_bytes(names))
        job.progress.note(f"bringing the last {len(names):,} files ({size}) to {place.url}")
    try:
        publish.publish(place, run, uploads, job.stop.check)
    except RemoteTaken:
        _drop(place, run)
        raise
    except PenstockError as error:
        go_on = "--append --resume" if run.appends else "--resume"
        rest = f"everything is converted: after this is fixed, {go_on} brings the rest to the bucket"
        error.hint = f"{error.hint}; {rest}" if error.hint else rest
        raise
    shutil.rmtree(run.directory, ignore_errors=True)


def _drop(place: BucketSet, run: BucketRun) -> None:
    """A run that will never be published goes, here and in the bucket."""
    publish.remove_run(place, run)
    shutil.rmtree(run.directory, ignore_errors=True)


def _prepare(job: Job, place: BucketSet, mode: Mode, overwrite: bool) -> tuple[BucketRun, Holds]:
    """Make the directory to build in, or find it."""
    if job.settings.files.group_mb:
        raise UsageError(
            f"files.group_mb has no meaning for {job.out}, where one machine writes: its videos follow each other",
            hint="leave it out, or add --on ray or --shard",
        )
    appends = mode.startswith("append")
    run = _finish_published(place)
    current = place.current()
    listing = place.list_files()
    if appends:
        check_ours(place, current, listing)
    else:
        check_free(place, current, listing, overwrite=overwrite or mode == "resume")
    if run is not None and _new_episodes(run) and not overwrite:
        if run.shared is not None:
            raise OutputExists(
                f"{place.url}: a conversion by several machines did not end",
                hint="`penstock commit` or --on ray --resume goes on with it, --overwrite starts again",
            )
        _check_goes_on(place, run, mode, current)
        return run, "unfinished"
    if mode == "resume":
        check_free(place, current, listing, overwrite=False)
    if "resume" in mode and run is None:
        job.note(f"no conversion to {place.url} lies on this machine ({directory_of(place.url)}): it begins anew")
    base = None if current is None else current.etag
    if run is not None and (_new_episodes(run) or (run.base, run.appends) != (base, appends)):
        _drop(place, run)
        run = None
    with writable(directory_of(place.url)):
        return _begin(place, current, listing, run or BucketRun(directory_of(place.url), base, appends))


def _prepare_shared(place: BucketSet, shared: Shared) -> tuple[BucketRun, Holds]:
    """The same for a conversion by several machines: what they share says whether it goes on."""
    directory = directory_of(place.url)
    run, current = BucketRun.load(directory), place.current()
    publish.check_base(place, shared.base, current)
    if run is not None and run.shared is None and _new_episodes(run):
        raise OutputExists(
            f"{place.url}: a conversion by this machine alone, which did not end, lies in {directory}",
            hint="the same command without --on ray or --shard continues it with --resume; or delete that directory",
        )
    if run is not None and run.shared == shared and _new_episodes(run):
        return run, "unfinished"
    if run is not None and run.shared != shared:
        _drop(place, run)
        run = None
    with writable(directory):
        run = run or BucketRun(directory, shared.base, shared.appends, shared=shared)
        return _begin(place, current, place.list_files(), run)


def _finish_published(place: BucketSet) -> BucketRun | None:
    """The run that lies on this machine; where it was published before it ended, it is brought to its end."""
    run = BucketRun.load(directory_of(place.url))
    if run is None:
        shutil.rmtree(directory_of(place.url), ignore_errors=True)  # killed before it was written
        return None
    if publish.is_published(place, run):
        publish.complete(place)
        shutil.rmtree(run.directory)
        return None
    return run


def _check_goes_on(place: BucketSet, run: BucketRun, mode: Mode, current: Version | None) -> None:
    """An unfinished run is there: this call must be the one that continues it, and its base must not have changed."""
    episodes = _new_episodes(run)
    some = f"{episodes:,} episode{'s' if episodes != 1 else ''}"
    if mode not in ("resume", "append or resume") or run.appends != mode.startswith("append"):
        raise OutputExists(
            f"{place.url}: {'an append' if run.appends else 'a conversion'} that did not end lies in {run.directory}, "
            f"with {some} committed",
            hint=f"--append --resume continues it; delete {run.directory} to start again"
            if run.appends
            else "--resume continues it, --overwrite starts again",
        )
    try:
        publish.check_base(place, run.base, current)
    except RemoteTaken:
        _drop(place, run)
        raise


def _begin(
    place: BucketSet, current: Version | None, listing: Mapping[str, ObjectInfo], run: BucketRun
) -> tuple[BucketRun, Holds]:
    """Begin a run, or one that had committed nothing: it keeps the chunk that it took."""
    for name in (run.root, run.directory / _BASE_NAME):
        shutil.rmtree(name, ignore_errors=True)
    run.done_path.unlink(missing_ok=True)
    run.root.mkdir(parents=True)
    if run.appends and current is not None:
        _check_files(place, current, listing)
        _copy_base(place, current, run)
    run.save()
    return run, "copy" if run.appends else "nothing"


def is_ours(current: Version | None, listing: Mapping[str, ObjectInfo]) -> bool:
    """Whether penstock wrote the data set."""
    return current is not None and (current.number is not None or REPORT_PATH in listing)


def check_ours(place: BucketSet, current: Version | None, listing: Mapping[str, ObjectInfo]) -> None:
    """Refuse to append to what penstock did not write."""
    if not is_ours(current, listing):
        what = "does not exist" if current is None else "was not written by penstock"
        raise OutputExists(
            f"{place.url} {what}: there is nothing to append to", hint="leave --append out to start a new one"
        )


def check_free(
    place: BucketSet, current: Version | None, listing: Mapping[str, ObjectInfo], *, overwrite: bool
) -> None:
    """Refuse an output that exists, unless it is ours and may be replaced."""
    foreign = [name for name in listing if not name.startswith(f"{OWN_DIR}/")]
    if current is None and (runs_in(listing) or not foreign):
        return
    if not is_ours(current, listing):
        raise OutputExists(
            f"{place.url} holds {len(foreign):,} objects (e.g. {foreign[0]}) and was not written by penstock: it is "
            "left alone, with or without --overwrite",
            hint="choose another output, or move these objects away yourself",
        )
    if not overwrite:
        raise OutputExists(
            f"{place.url} exists already",
            hint="add --overwrite to replace it, --append to add to it, or choose another output",
        )


def _check_files(place: BucketSet, current: Version, listing: Mapping[str, ObjectInfo]) -> None:
    """All files of the version to append to must be there, as they were written."""
    for name, (size_bytes, etag) in place.files_of(current, listing).files.items():
        there = listing.get(name)
        if there is None or there.size_bytes != size_bytes or (etag and there.etag and etag != there.etag):
            url = place.url_of(name)
            what = "is gone" if there is None else f"was replaced ({there.size_bytes:,} bytes, {size_bytes:,} before)"
            raise RemoteChanged(
                f"{url}: {what} since its data set was written: nothing is appended",
                url=url,
                hint="put the object back, or convert all inputs again with --overwrite",
            )


def _copy_base(place: BucketSet, current: Version, run: BucketRun) -> None:
    """The metadata of a finished data set, as `DataSetWriter.resume` continues it; its files stay in the bucket."""
    begin, base = current.metadata_dir, run.directory / _BASE_NAME
    _fetch(place, begin + JOURNAL_PATH, base / JOURNAL_PATH)
    journal = Journal.read(base)
    sink = sink_factory(journal.header.output)(
        base, journal.header.description, layout.UnsyncedNames(base, fsync=False)
    )
    last = journal.last_episode()
    state = None if last is None or last.state is None else f"{OWN_DIR}/{last.state.name}"
    names = [name.removeprefix(begin) for folder in ("meta", OWN_DIR) for name in place.list_files(begin + folder)]
    for name in names:
        own = Path(name).parent == Path(OWN_DIR)
        into = name if name == state else None if own or chunk_of(name) is not None else sink.name_in_copy(name)
        if into is not None and not name.startswith(_NOT_METADATA):
            _fetch(place, begin + name, run.root / into)
    run.episodes_before = sum(1 for _ in journal.episodes())
    (run.root / OWN_DIR).mkdir(parents=True, exist_ok=True)
    (base / JOURNAL_PATH).rename(run.root / JOURNAL_PATH)


def _fetch(place: BucketSet, name: str, target: Path) -> None:
    data = place.read(name)
    if data is None:
        raise DataSetError(
            f"{place.url_of(name)} is missing, so penstock cannot continue this data set",
            hint="only data sets that penstock wrote can be appended to",
        )
    with layout.writing(target, "cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def already_whole(job: Job, out: RemotePath, mode: Mode, compare: Callable[[Journal], bool]) -> Report | None:
    """The report of a data set that has everything which a call with --resume asks for.

    `compare` says whether the journal of a finished data set is that of this call.
    """
    if "resume" not in mode:
        return None
    check_job(job)
    place = BucketSet(out)
    with _locked(out):
        run = _finish_published(place)
        if run is not None and run.shared is not None:
            return None
        if run is not None and run.is_converted and run.appends == mode.startswith("append"):
            return _publish_rest(job, place, run, mode, compare)
        current = place.current()
        if run is not None or current is None or not is_ours(current, place.list_files()):
            return None
        with metadata_of(place, current, JOURNAL_PATH, REPORT_PATH) as base:
            return read_report(base) if compare(Journal.read(base)) else None


@contextlib.contextmanager
def metadata_of(place: BucketSet, version: Version | None, *names: str) -> Iterator[Path]:
    """A directory with these files of a version, as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        for name in names:
            _fetch(place, ("" if version is None else version.metadata_dir) + name, Path(directory, name))
        yield Path(directory)


def _publish_rest(job: Job, place: BucketSet, run: BucketRun, mode: Mode, compare: Callable[[Journal], bool]) -> Report:
    """A run that had converted everything: what is left goes to the bucket."""
    _check_goes_on(place, run, mode, place.current())
    if not compare(Journal.read(run.root)):
        raise DataSetError(
            f"{place.url}: an append that lies in {run.directory} was made of other inputs or settings",
            hint=f"give the same again, or delete {run.directory} to start again",
        )
    report = read_report(run.root)
    with Uploads(place, run.root, run.done_path) as uploads, job.stop:
        _publish(job, place, run, uploads)
    return report


__all__ = ["already_whole", "building"]
