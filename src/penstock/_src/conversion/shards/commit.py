"""`penstock commit OUT`: the shards of a conversion become one data set; rows and metadata are written, videos stay."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._src.conversion.commit import output
from penstock._src.conversion.commit.groups import Group, owners
from penstock._src.conversion.commit.journal import JOURNAL_PATH, Journal
from penstock._src.conversion.job import Job
from penstock._src.conversion.report import NoProgress, Progress, Report
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.nodes import NodeTable
from penstock._src.conversion.shards.plan import ShardPlan, job_of, read_plan
from penstock._src.conversion.shards.shard_storage import ShardStorage
from penstock._src.conversion.shards.take import is_through, take_group, work_of
from penstock._src.system.budget import Budget
from penstock._src.system.files import as_path
from penstock.errors import DataSetError, RecordingError, RemoteTaken

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 6
_AHEAD = 8  # results of groups that are on their way


def commit(out: str | Path, *, memory: str | int = "auto", progress: Progress | None = None) -> Report:
    """Make one data set of what `--shard` calls have converted; refused, with what is missing, until all have."""
    out = as_path(out)
    storage = shard_storage_of(out)
    plan = read_plan(storage)
    if (report := storage.committed(plan)) is None:
        if plan is None:
            first = "penstock convert SRC… OUT --shard 0/4 makes the first"
            raise DataSetError(f"{out}: no shard of a conversion is there", hint=first)
        report = _commit(storage, plan, _job(out, plan, memory, progress or NoProgress()))
    storage.remove_all(plan)
    return report


def _commit(storage: ShardStorage, plan: ShardPlan, job: Job) -> Report:
    is_begun = storage.is_begun()
    if not is_begun:  # else some of it is in the data set already
        _refuse_missing(plan, storage, plan.groups)
    job = job_of(plan, job)
    job.shared, job.share_out = storage.shared(plan), partial(_take_all, plan, storage)
    modes: tuple[output.Mode, output.Mode] = ("append or resume", "resume") if is_begun else ("append", "new")
    try:
        return job.run(modes[0 if plan.is_append else 1], overwrite=plan.overwrite and not is_begun)
    except RemoteTaken:
        storage.remove_all(plan)
        raise


def _job(out: Path, plan: ShardPlan, memory: str | int, progress: Progress) -> Job:
    return Job(
        input_refs=[],
        out=out,
        settings=plan.call_settings(),
        budget=Budget.parse(memory),
        cores=1,
        cores_given=True,
        progress=progress,
        strict=bool(plan.identity["strict"]),
        keep_going=True,  # what failed was published by a call that left it out
    )


def _refuse_missing(plan: ShardPlan, storage: ShardStorage, groups: Sequence[Group]) -> None:
    published = storage.published(plan.work)
    missing = [group for group in groups if group.number not in published]
    if not missing:
        return
    owner = owners(plan.groups, plan.shards)
    named = [str(plan.source(number)["path"]) for group in missing for number in group.inputs]
    more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
    shards = sorted({owner[group.number] for group in missing})
    first = f"{plan.command} --shard {shards[0]}/{plan.shards}"
    others = f", and so on for the shards {', '.join(map(str, shards[1:]))}" if len(shards) > 1 else ""
    raise DataSetError(
        f"{len(missing):,} of {len(groups):,} groups are missing, {len(named):,} inputs: "
        f"{', '.join(named[:_NAMED])}{more}",
        hint=f"run `{first}`{others}; then commit again",
    )


def _take_all(plan: ShardPlan, storage: ShardStorage, job: Job) -> None:
    """Called by the job once it knows what the data set holds already."""
    left = [group for group in job.inputs.groups if not is_through(job, group)]
    if job.spec is not None and work_of(job) != plan.work:
        raise DataSetError(
            f"{job.out} has changed since its shards were planned: they cannot be added to it",
            hint=f"remove {storage.where} and convert them again",
        )
    _refuse_missing(plan, storage, left)
    if job.spec is None:
        _begin(plan, storage, job)
    job.writing().writer.note({"shards": plan.work})
    nodes, numbers = NodeTable(), [group.number for group in left]
    for at, group in enumerate(left):
        job.stop.check()
        nodes.add(take_group(job, storage, group, plan.work, numbers[at + 1 : at + 1 + _AHEAD]))
    job.nodes = nodes.rows()


def _begin(plan: ShardPlan, storage: ShardStorage, job: Job) -> None:
    """Make the data set as the first group has it."""
    for group in plan.groups:
        written = storage.fetch(plan.work, group.number).root
        if (written / JOURNAL_PATH).is_file():
            description = Journal.read(written).header.description
            job.begin_data_set(plan.spec, description.fps, description.features, description.robot_type)
            return
    raise RecordingError("no input could be converted", hint="each shard printed why its inputs failed")
