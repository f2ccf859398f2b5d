"""Published groups into the data set, in the order of the inputs: rows are replayed, videos taken as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.join import join
from penstock._src.conversion.commit.journal import JOURNAL_PATH
from penstock._src.conversion.commit.resume import batches
from penstock._src.conversion.shards.shard_storage import ShardStorage, work_name
from penstock._src.conversion.shards.write import GroupResult
from penstock.errors import DataSetError, carried_error

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job


def work_of(job: Job) -> str:
    """Where the groups of a job lie that has begun its data set."""
    if job.shared is not None:
        return job.shared.work
    journal = job.writing().writer.journal
    task = job.settings.task if job.spec is None else job.spec.settings.task
    return work_name(journal.identity, batches(journal), task)


def is_through(job: Job, group: Group) -> bool:
    return all(job.inputs.entries[number].is_finished for number in group.inputs)


def is_begun(job: Job, group: Group) -> bool:
    """Whether a part of the group is in the data set."""
    entries = [job.inputs.entries[number] for number in group.inputs]
    return any(entry.episodes or entry.is_done for entry in entries)


def take_group(job: Job, storage: ShardStorage, group: Group, work: str, following: Sequence[int] = ()) -> GroupResult:
    """Join the published result of a group; inputs that failed are given up as they would be on this machine.

    `following` are the groups that are asked for next.
    """
    published = storage.fetch(work, group.number, following)
    result, written, writer = GroupResult.from_json(published.result), published.root, job.writing().writer
    if job.building is not None:
        job.building.elsewhere(published.elsewhere)
    if (written / JOURNAL_PATH).is_file():
        for number, noted in join(written, writer, job.inputs, group.first):
            job.note_outcome(number, noted)
    writer.settle()
    job.stage(f"row {writer.frames:,}")
    for number in group.inputs:
        entry = job.inputs.entries[number]
        job.moved.done(number)
        if entry.is_finished:
            continue
        if (failed := result.failed.get(str(number))) is None:  # nothing may be missing without a word
            raise DataSetError(
                f"{entry.ref.path}: what was written of it to {written} is damaged or gone",
                hint=f"remove {written}: the same command converts it again",
            )
        job.give_up(number, carried_error(failed))
    job.predicted_bytes = max(job.predicted_bytes, result.predicted_bytes)
    storage.taken(published)
    return result
