"""`penstock commit OUT`: the shards of a conversion become one data set; rows and metadata are written, videos stay."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._src.conversion.bucket.staging import refuse_sharing
from penstock._src.conversion.commit import output
from penstock._src.conversion.commit.groups import Group, owners
from penstock._src.conversion.commit.journal import JOURNAL_PATH, Journal
from penstock._src.conversion.job import Job
from penstock._src.conversion.report import NoProgress, Progress, Report, read_report
from penstock._src.conversion.shards import place
from penstock._src.conversion.shards.nodes import NodeTable
from penstock._src.conversion.shards.plan import ShardPlan, job_of, read_plan
from penstock._src.conversion.shards.take import is_through, take_group, work_of
from penstock._src.system.budget import Budget
from penstock._src.system.files import as_path
from penstock.errors import DataSetError, RecordingError

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 6


def commit(out: str | Path, *, memory: str | int = "auto", progress: Progress | None = None) -> Report:
    """Make one data set of what `--shard` calls have converted; refused, with what is missing, until all have."""
    refuse_sharing(as_path(out), "penstock commit")
    out = Path(out)
    plan = read_plan(out)
    if plan is None:
        if output.is_ours(out):
            return read_report(out)
        raise DataSetError(
            f"{out}: no shard of a conversion is there", hint="penstock convert SRC… OUT --shard 0/4 makes the first"
        )
    work = plan.work(out)
    if _is_committed(out, work.name):
        place.discard(place.shards_of(out))
        return read_report(out)
    if not output.partial_of(out).exists():  # else some of it is in the data set already
        _refuse_missing(plan, work, plan.groups)
    job = job_of(plan, _job(out, plan, memory, progress or NoProgress()))
    job.share_out = partial(_take_all, plan)
    report = job.run(_mode(out, plan), overwrite=plan.overwrite and not output.partial_of(out).exists())
    place.discard(place.shards_of(out))
    return report


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


def _mode(out: Path, plan: ShardPlan) -> output.Mode:
    if output.partial_of(out).exists():
        return "append or resume" if plan.is_append else "resume"
    return "append" if plan.is_append else "new"


def _is_committed(out: Path, work: str) -> bool:
    """Whether a commit that was killed at its very end had come through."""
    if not output.is_ours(out):
        return False
    return any(note.get("shards") == work for note in Journal.read(out).notes())


def _refuse_missing(plan: ShardPlan, work: Path, groups: Sequence[Group]) -> None:
    missing = [group for group in groups if not place.is_published(work, group.number)]
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


def _take_all(plan: ShardPlan, job: Job) -> None:
    """Called by the job once it knows what the data set holds already."""
    work = plan.work(job.out)
    left = [group for group in job.inputs.groups if not is_through(job, group)]
    if job.spec is not None and work_of(job) != work:
        raise DataSetError(
            f"{job.out} has changed since its shards were planned: they cannot be added to it",
            hint=f"remove {place.shards_of(job.out)} and convert them again",
        )
    _refuse_missing(plan, work, left)
    if job.spec is None:
        _begin(plan, job, work)
    job.writing().writer.note({"shards": work.name})
    nodes = NodeTable()
    for group in left:
        job.stop.check()
        nodes.add(take_group(job, group, work))
    job.nodes = nodes.rows()


def _begin(plan: ShardPlan, job: Job, work: Path) -> None:
    """Make the data set as the first group has it."""
    for group in plan.groups:
        written = place.result_of(work, group.number)
        if (written / JOURNAL_PATH).is_file():
            description = Journal.read(written).header.description
            job.begin_data_set(plan.spec, description.fps, description.features, description.robot_type)
            return
    raise RecordingError("no input could be converted", hint="each shard printed why its inputs failed")
