"""How many processes share a job: one, unless pictures are encoded or the user says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.conversion.inputs.input import Input
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.job import Job

MIB = 2**20
# The process that joins: libraries, and the pieces in which it moves frames; besides that, the rows of one flush.
JOINING_BYTES = 144 * MIB
_WORTH_IT_BYTES = 64 * MIB  # starting processes takes longer than converting less than this


def processes_for(job: Job, source: Input, inputs: int) -> int:
    """How many processes convert the inputs that are left, the first of which is `source`."""
    wanted = min(job.cores, inputs)
    if wanted < 2:
        return 1
    if not job.cores_given:
        if not source.encodes:
            return 1
        left_bytes = sum(entry.size_bytes for entry in job.ledger.entries if not entry.is_through)
        if left_bytes < _WORTH_IT_BYTES:
            return 1
    joining_bytes = JOINING_BYTES + source.memory.joining_bytes
    fitting = (job.budget.limit_bytes - joining_bytes) // max(source.memory.least_bytes, 1)
    if fitting < wanted:
        # The same words for every input that finds it so, and said once.
        wanted_first = min(job.cores, len(job.ledger.entries) - job.first_new)
        limit, least = (units.format_bytes(n) for n in (job.budget.limit_bytes, source.memory.least_bytes))
        job.note(
            f"{max(fitting, 1)} instead of {wanted_first} inputs at a time: the budget is {limit}, and each takes "
            f"{least} at least, beside {units.format_bytes(joining_bytes)} for joining them"
        )
    job.joining_bytes = joining_bytes
    return int(max(1, min(wanted, fitting)))


def budget_per_process(limit_bytes: int, joining_bytes: int, processes: int) -> int:
    """What each of the processes that convert may plan with."""
    return (limit_bytes - joining_bytes) // processes
