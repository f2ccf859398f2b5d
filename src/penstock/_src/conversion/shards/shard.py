"""`penstock convert … --shard 3/8`: this process converts the groups of one shard; `penstock commit` joins all."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.commit.groups import Group, owners
from penstock._src.conversion.commit.resume import already_whole
from penstock._src.conversion.report import MovedBytes
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.plan import ShardPlan, agree, check_unchanged
from penstock._src.conversion.shards.shard_storage import new_attempt
from penstock._src.conversion.shards.write import GroupRequest, GroupResult, write_group
from penstock._src.system import memory as process_memory
from penstock._src.system import units
from penstock.errors import OutputExists, PenstockError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job

_SHARD = re.compile(r"(\d+)/(\d+)\Z")


@dataclass(frozen=True)
class ShardReport:
    """What one shard did; the losses of its inputs are counted when all are committed."""

    shard: str
    groups: int
    converted: int  # of those, by this call: the others were there
    inputs: int
    episodes: int
    frames: int
    failed: dict[str, str]
    bytes_in: int
    seconds: float
    peak_rss_bytes: int
    predicted_peak_bytes: int
    budget_bytes: int

    @property
    def exit_code(self) -> int:
        return 3 if self.failed else 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_shard(text: str) -> tuple[int, int]:
    """`3/8`, counted from 0: (3, 8)."""
    match = _SHARD.match(text)
    number, of = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not 0 <= number < of:
        raise UsageError(
            f"--shard {text}: not a shard", hint="shards are numbered from 0: --shard 0/8 up to --shard 7/8"
        )
    return number, of


def convert_shard(
    job: Job, shard: str, *, append: bool, overwrite: bool, command: str, resume: bool = False
) -> ShardReport:
    """Convert what this shard has to, and is not there yet; with `resume`, a set that has all of it is no error."""
    try:
        return _convert_shard(job, shard, append=append, overwrite=overwrite, command=command)
    except (OutputExists, UsageError):
        if not resume or (whole := already_whole(job, "append or resume" if append else "resume")) is None:
            raise
        return ShardReport(shard, 0, 0, 0, 0, 0, dict(whole.failed), 0, 0.0, 0, 0, job.budget.limit_bytes)


def _convert_shard(job: Job, shard: str, *, append: bool, overwrite: bool, command: str) -> ShardReport:
    number, of = parse_shard(shard)
    storage = shard_storage_of(job.out)
    began_s = time.perf_counter()
    with process_memory.arrow_from_system(), process_memory.PeakMeter() as meter, job.stop:
        plan = agree(job, storage, append=append, overwrite=overwrite, command=command, shards=of)
        job.shared, owner = storage.shared(plan), owners(plan.groups, of)
        groups = [group for group in plan.groups if owner[group.number] == number]
        storage.begin(plan.work)
        published = storage.published(plan.work)
        job.progress.plan([("shard", f"{shard}: {len(groups):,} of {len(plan.groups):,} groups of inputs")])
        job.moved = MovedBytes(job.progress, [group.size_bytes for group in groups])
        results = []
        for index, group in enumerate(groups):
            if group.number not in published:
                results.append(_convert(job, plan, group, index))
            job.moved.done(index)
    trees = storage.read_results(plan.work, [group.number for group in groups])
    every = [GroupResult.from_json(tree) for tree in trees if tree is not None]
    failed = {plan.source(int(n))["path"]: str(error["message"]) for each in every for n, error in each.failed.items()}
    return ShardReport(
        shard=shard,
        groups=len(groups),
        converted=len(results),
        inputs=sum(len(group.inputs) for group in groups),
        episodes=sum(each.episodes for each in every),
        frames=sum(each.frames for each in every),
        failed=failed,
        bytes_in=sum(each.bytes_in for each in results),
        seconds=round(time.perf_counter() - began_s, 3),
        peak_rss_bytes=meter.tree_peak_bytes,
        predicted_peak_bytes=max((each.predicted_bytes for each in results), default=0),
        budget_bytes=job.budget.limit_bytes,
    )


def _convert(job: Job, plan: ShardPlan, group: Group, index: int) -> GroupResult:
    request = GroupRequest(
        group=group,
        refs=plan.found(group),
        spec=plan.spec,
        out=str(job.out),
        attempt=new_attempt(plan.work, group.number),
        budget_bytes=job.budget.limit_bytes,
        threads=job.cores,
        strict=job.strict,
        keep_going=job.keep_going,
        inputs=len(plan.sources),
        skip={n: plan.unreadable[str(n)] for n in group.inputs if str(n) in plan.unreadable},
        group_shift=0 if job.shared is None else job.shared.group_shift,
    )
    before = [int(plan.source(number)["bytes"]) for number in group.inputs]

    def moved(number: int, done_bytes: int) -> None:
        job.moved(index, sum(before[: number - group.first]) + done_bytes)

    with _hinting(job):
        check_unchanged(plan, group, job.settings)
        result = write_group(request, job.stop, moved)
    for number, error in result.failed.items():
        path = plan.source(int(number))["path"]
        job.note(f"{path}: failed: {error['message']}")
    job.stage(f"group {group.number:,} ({units.format_size(group.size_bytes)})")
    return result


@contextlib.contextmanager
def _hinting(job: Job) -> Any:
    try:
        yield
    except PenstockError as error:
        if not job.keep_going and error.exit_code == 1:
            go_on = "--keep-going leaves out the inputs that fail"
            error.hint = f"{error.hint}; {go_on}" if error.hint else go_on
        raise
