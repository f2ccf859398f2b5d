"""Going on with what is committed: a conversion that was ended, or a finished data set that gets more inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.commit import identity as identities
from penstock._src.conversion.commit import output
from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.output import Mode, OutputDirectory, locked
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.commit.writing import InputProgress, JobInputs
from penstock._src.conversion.inputs.input import DatasetSpec, InputRef
from penstock._src.conversion.report import Report, read_report
from penstock._src.conversion.settings import Settings, default_settings
from penstock._src.conversion.sink import DEFAULT_OUTPUT
from penstock._src.system import config
from penstock._src.system.closing import on_error
from penstock._src.system.files import RemotePath, as_path
from penstock.errors import DataSetError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job

_COPIES = ("copy", "copy-only")
_OF_ONE_CALL = ("task",)  # settings that may differ between the calls that make one data set


def already_whole(job: Job, mode: Mode) -> Report | None:
    """The report of a data set that has everything which a call with --resume asks for."""
    if isinstance(job.out, RemotePath):
        from penstock._src.conversion.bucket import staging

        report = staging.already_whole(job, job.out, mode, lambda journal: _is_whole(job, mode, journal))
        if report is not None:
            job.note(f"{job.out} is complete: nothing is left to convert")
        return report
    partial = output.partial_of(job.out)
    if "resume" not in mode or not (output.is_ours(job.out) or partial.exists()):
        return None
    with locked(partial.with_name(partial.name + ".lock"), job.out):  # and what a killed run left of its lock goes
        with output.writable(job.out):
            output.finish_publishing(partial, Path(os.path.realpath(job.out)))
        if partial.exists() or not output.is_ours(job.out):
            return None
        if not _is_whole(job, mode, Journal.read(job.out)):
            return None
        job.note(f"{job.out} is complete already: nothing to do")
        return read_report(job.out)


def _is_whole(job: Job, mode: Mode, journal: Journal) -> bool:
    """Whether a finished data set has everything that the call asks for."""
    before, now = journal.identity, _identity(job)
    if "begun" not in before:
        return False
    if mode == "resume":
        if differences := identities.differences(before, now):
            raise DataSetError(
                f"{job.out} is complete, and was made with other inputs or settings: {'; '.join(differences)}",
                hint="--append adds inputs to it, --overwrite converts everything again",
            )
        return True
    return not _changed(before, now, job.settings) and not _fresh(job, _committed_inputs(journal), now["sources"])


def _identity(job: Job) -> dict[str, Any]:
    if job.known_sources is not None:
        return identities.identity(job.settings, job.known_sources, strict=job.strict)
    known, failed = identities.sources(job.input_refs, job.settings)
    if failed and not job.keep_going:
        raise next(iter(failed.values()))
    return identities.identity(job.settings, known, strict=job.strict)


def batches(journal: Journal) -> list[Sequence[Mapping[str, Any]]]:
    """The inputs that went into a data set, those of each call that gave some."""
    return [journal.identity["sources"], *(each["sources"] for each in _appended(journal))]


def _sources(journal: Journal) -> list[Mapping[str, Any]]:
    """All inputs that went into a data set, in their order."""
    return [source for batch in batches(journal) for source in batch]


def resume_job(job: Job, building: OutputDirectory, *, appends: bool) -> None:
    """Bring a job to where its data set stands; refused, with what differs, when it is not the same job."""
    writer = DataSetWriter.resume(building.root, chunks=building.chunks())
    with on_error(writer.leave):
        before = writer.journal.identity
        if "begun" not in before:
            raise DataSetError(f"{building.out}: this data set was not made by a conversion; it cannot be resumed")
        if appends:
            _append(job, building, writer)
        else:
            _resume(job, building, writer)
        job.divide(batches(writer.journal))
    job.writer = writer
    building.follow(writer)


def _resume(job: Job, building: OutputDirectory, writer: DataSetWriter) -> None:
    before = writer.journal.identity
    if _appended(writer.journal):
        raise UsageError(
            f"{building.root} is a data set to which inputs were being appended",
            hint="give --append with --resume, and the inputs of that call",
        )
    _refuse(building, identities.differences(before, _identity(job)))
    job.spec = DatasetSpec.from_json(before["begun"])
    job.inputs = _inputs(writer.journal, before["sources"], job.input_refs)


def _append(job: Job, building: OutputDirectory, writer: DataSetWriter) -> None:
    before, earlier = writer.journal.identity, _appended(writer.journal)
    now = _identity(job)
    _refuse(building, _changed(before, now, job.settings))
    known = _sources(writer.journal)
    if building.holds == "unfinished":
        begun_with, task = earlier[-1]["sources"], earlier[-1]["task"]
        job.first_new = len(known) - len(begun_with)
        fresh = _fresh(job, _committed_inputs(writer.journal, job.first_new), now["sources"])
        _refuse(building, identities.source_differences(begun_with, fresh))
    else:
        job.first_new = len(known)
        fresh = _fresh(job, _committed_inputs(writer.journal), now["sources"])
        known += fresh
        if not fresh:
            raise _nothing_new(building.out)
        task = job.settings.task
        writer.note({"append": {"sources": fresh, "task": task}})
    job.spec = _spec_before(before, task, job.settings)
    job.settings = job.spec.settings
    job.inputs = _inputs(writer.journal, known, job.input_refs, first_new=job.first_new)


def _spec_before(before: Mapping[str, Any], task: str, settings: Settings) -> DatasetSpec:
    """What the first call settled, with what each call has for itself."""
    spec = DatasetSpec.from_json(before["begun"])
    own = spec.settings if task == Settings.task else replace(spec.settings, task=task)
    if {own.video, settings.video} <= {*_COPIES}:
        own = replace(own, video=settings.video)
    return spec._replace(settings=own)


def plan_append(job: Job, journal: Journal) -> tuple[DatasetSpec, list[dict[str, Any]]]:
    """What an append to a finished data set would convert, and with which settings; changes nothing."""
    before, now = journal.identity, _identity(job)
    if found := _changed(before, now, job.settings):
        raise DataSetError(
            f"{job.out}: this call cannot append to the data set: {'; '.join(found)}",
            hint="give the same settings again, or choose another output",
        )
    fresh = _fresh(job, _sources(journal), now["sources"])
    if not fresh:
        raise _nothing_new(job.out)
    return _spec_before(before, job.settings.task, job.settings), fresh


def _nothing_new(out: Path) -> UsageError:
    return UsageError(
        f"{out} holds all of these inputs already: there is nothing to append",
        hint="with --append --resume this is no error",
    )


def _appended(journal: Journal) -> list[Mapping[str, Any]]:
    return [note["append"] for note in journal.notes() if "append" in note]


def _fresh(job: Job, known: Sequence[Mapping[str, Any]], sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The inputs that are not in the data set yet; a changed one is neither the old one nor a new one."""
    old = {(each["sum"], each["bytes"]) for each in known}
    paths = {identities.real(each["path"]) for each in known}
    fresh = []
    for each in sources:
        if (each["sum"], each["bytes"]) in old:
            job.note(f"{each['path']} is in the data set already: left out")
        elif identities.real(each["path"]) in paths:
            raise DataSetError(
                f"{each['path']} was converted before and has changed since",
                hint="convert all inputs anew, or give it another name if it is another recording",
            )
        else:
            fresh.append(each)
    return fresh


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], settings: Settings) -> list[str]:
    """What the call asks for and the data set is not; what it leaves open follows the data set."""
    before = {**before, "settings": {"output": DEFAULT_OUTPUT, **before["settings"]}}
    requested = _requested_settings(
        config.plain(settings), config.plain(default_settings(settings.output)), before["settings"]
    )
    if requested["video"] in _COPIES and before["settings"]["video"] in _COPIES:
        requested["video"] = before["settings"]["video"]  # both give the same bytes: each call has its own
    return identities.differences(
        before, {**now, "settings": requested, "sources": before["sources"]}, but=_OF_ONE_CALL
    )


def _requested_settings(now: Any, default: Any, before: Any) -> Any:
    if now == default:  # also an empty mapping, such as `features`, which names nothing
        return before
    if isinstance(now, Mapping) and isinstance(default, Mapping) and isinstance(before, Mapping):
        return {key: _requested_settings(value, default.get(key), before.get(key)) for key, value in now.items()}
    return now


def _refuse(building: OutputDirectory, differences: Sequence[str]) -> None:
    if differences:
        goes_on = building.holds == "unfinished"
        raise DataSetError(
            f"{building.out}: cannot {'resume' if goes_on else 'append to'} this data set with other inputs or "
            f"settings: {'; '.join(differences)}",
            hint="give the same inputs and settings again, or choose another output"
            + (f" (delete {building.root} to start again)" if goes_on else ""),
        )


def _committed_inputs(journal: Journal, stop: int | None = None) -> list[Mapping[str, Any]]:
    """The first inputs of a data set, without those that failed and left nothing in it: they may be given again."""
    sources = _sources(journal)
    entries = _inputs(journal, sources).entries
    pairs = list(zip(sources, entries, strict=True))[:stop]
    return [each for each, entry in pairs if entry.failed is None or entry.episodes]


def _inputs(
    journal: Journal, sources: Sequence[Mapping[str, Any]], refs: Sequence[InputRef] = (), *, first_new: int = 0
) -> JobInputs:
    """What became of the inputs; those that are given have the names that this call gives them."""
    names = {identities.real(each.path): each.path for each in refs}
    paths = [names.get(identities.real(each["path"]), as_path(each["path"])) for each in sources]
    pairs = zip(sources, paths, strict=True)
    inputs = JobInputs(
        [InputProgress(InputRef(each["kind"], path), each["bytes"]) for each, path in pairs], first_new=first_new
    )
    inputs.add_journal(journal)
    return inputs
