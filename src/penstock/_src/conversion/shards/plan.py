"""What all shards of a conversion agree on: inputs, settings and what the first input settles, in one small file.

Whichever shard comes first writes it, once. Every other one compares its own call with it and refuses to take part in
another conversion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock._src.conversion.commit import identity as identities
from penstock._src.conversion.commit.groups import Group, divide
from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.resume import batches, plan_append
from penstock._src.conversion.inputs.input import DatasetSpec, InputRef, first_whole, open_input
from penstock._src.conversion.settings import Settings
from penstock._src.conversion.shards.shard_storage import PLAN, ShardStorage, work_name
from penstock._src.system import config
from penstock.errors import DataSetError, PenstockError, RemoteTaken

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job


@dataclass(frozen=True)
class ShardPlan:
    """One conversion that is shared out; `sources` are the inputs of this call, as the journal will know them."""

    identity: Mapping[str, Any]  # of the data set: penstock, settings, strict
    settings: Mapping[str, Any]  # of this call
    plain_spec: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]
    before: Sequence[Sequence[Mapping[str, Any]]]  # the inputs of earlier calls, where this one appends
    unreadable: Mapping[str, str]  # inputs that --keep-going leaves out, by number
    is_append: bool
    overwrite: bool
    command: str  # that of the call, without --shard
    shards: int  # how many the first call spoke of
    run: Mapping[str, Any] | None = None  # what `ShardStorage.new_run` gave

    @cached_property
    def spec(self) -> DatasetSpec:
        return DatasetSpec.from_json(self.plain_spec)

    @cached_property
    def first_input(self) -> int:
        return sum(len(batch) for batch in self.before)

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of this call."""
        every = divide([*self.before, self.sources], self.spec.settings.files.group_mb)
        return [group for group in every if group.first >= self.first_input]

    def source(self, number: int) -> Mapping[str, Any]:
        return self.sources[number - self.first_input]

    def found(self, group: Group) -> tuple[InputRef, ...]:
        sources = map(self.source, group.inputs)
        return tuple(InputRef(each["kind"], each["path"]) for each in sources)

    @cached_property
    def work(self) -> str:
        """The name under which its groups lie."""
        return work_name(self.identity, [*self.before, self.sources], self.spec.settings.task, self.run)

    def call_settings(self) -> Settings:
        return config.build(Settings, self.settings)


def read_plan(storage: ShardStorage) -> ShardPlan | None:
    (tree,) = storage.read([PLAN])
    return None if tree is None else ShardPlan(**tree)


def agree(
    job: Job, storage: ShardStorage, *, append: bool, overwrite: bool, command: str = "", shards: int = 1
) -> ShardPlan:
    """The plan that is there, if this call asks for the same; else a new one."""
    plan = read_plan(storage)
    if plan is not None:
        found = _differences(plan, job, append)
        if not found and _is_open(storage, plan, overwrite):
            return plan
        if found and not overwrite:
            raise DataSetError(
                f"{job.out}: shards of another call lie in {storage.where}: {'; '.join(found)}",
                hint="give the same inputs and settings again, or --overwrite, or commit what is there first",
            )
        storage.remove_all(plan)
    with storage.check_output(job, append=append, overwrite=overwrite) as journal:
        made = _new_plan(job, journal, overwrite=overwrite, command=command, shards=shards)
    made = replace(made, run=storage.new_run())
    storage.put(PLAN, asdict(made), once=True)
    agreed = read_plan(storage) or made
    if agreed.sources != made.sources or agreed.settings != made.settings:
        raise DataSetError(f"{job.out}: another call began to share out a conversion to it", hint="run this one again")
    return agreed


def _is_open(storage: ShardStorage, plan: ShardPlan, overwrite: bool) -> bool:
    """Whether a plan can still be committed."""
    try:
        return storage.committed(plan) is None
    except RemoteTaken:
        if not overwrite:
            raise
        return False


def _new_plan(job: Job, journal: Journal | None, *, overwrite: bool, command: str, shards: int) -> ShardPlan:
    """`journal`: of the data set that is appended to."""
    plain = dict(identities.identity(job.settings, [], strict=job.strict))
    settings = dict(plain["settings"])
    before: list[Sequence[Mapping[str, Any]]] = []
    unreadable: dict[str, str] = {}
    if journal is not None:
        spec, sources = plan_append(job, journal)
        before, plain = batches(journal), dict(journal.identity)
        del plain["begun"]
    else:
        sources, failed = identities.sources(job.input_refs, job.settings)
        for number, error in failed.items():
            if not job.keep_going:
                raise error
            unreadable[str(number)] = error.message
        spec = _first(job, set(failed))
    identity = {name: plain[name] for name in ("penstock", "settings", "strict")}
    is_append = journal is not None
    return ShardPlan(
        identity, settings, spec.to_json(), sources, before, unreadable, is_append, overwrite, command, shards
    )


def _first(job: Job, unreadable: set[int]) -> DatasetSpec:
    """What the first input settles that can be opened."""
    failed: PenstockError | None = None
    options = job.open_options()._replace(inputs=len(job.input_refs))
    for number, found in enumerate(job.input_refs):
        if number in unreadable:
            continue
        try:
            with open_input(found, options) as source:
                whole = None if source.is_whole else first_whole(job.input_refs[number + 1 :], options)
                if whole is None:
                    return source.spec()
                with whole:
                    return whole.spec()
        except PenstockError as error:
            if not job.keep_going:
                raise
            failed = failed or error
    raise failed or DataSetError("no input can be read")


def _differences(plan: ShardPlan, job: Job, append: bool) -> list[str]:
    """What this call asks for and the plan is not; contents of inputs are compared by those who read them."""
    now = identities.identity(job.settings, [], strict=job.strict)
    before = {**plan.identity, "settings": plan.settings, "sources": []}
    found = identities.differences({**before, "sources": []}, now)
    if append != plan.is_append:
        found.append(f"{'with' if append else 'without'} --append")
    mine = {identities.real(each.path) for each in job.input_refs}
    planned = {identities.real(each["path"]) for each in plan.sources}
    # Inputs that were in the data set already are not part of an append.
    missing = sorted(planned - mine)
    extra = sorted(mine - planned) if not plan.is_append else []
    found += [f"input {path} is not given any more" for path in missing[:4]]
    return found + [f"input {path} is new" for path in extra[:4]]


def check_unchanged(plan: ShardPlan, group: Group, settings: Settings) -> None:
    """Refuse a group whose inputs are not those that were planned."""
    numbers = [number for number in group.inputs if str(number) not in plan.unreadable]
    found = [InputRef(each["kind"], each["path"]) for each in map(plan.source, numbers)]
    now, failed = identities.sources(found, settings)
    for error in failed.values():
        raise error
    if changed := identities.source_differences([plan.source(number) for number in numbers], now):
        raise DataSetError(
            f"{'; '.join(changed)} since the conversion was shared out",
            hint="give --overwrite to begin anew with the inputs as they are now",
        )


def job_of(plan: ShardPlan, job: Job) -> Job:
    """The job that commits a plan: its inputs, as they were when it was made."""
    found = [InputRef(each["kind"], os.fspath(each["path"])) for each in plan.sources]
    known = [dict(each) for each in plan.sources]
    return replace(job, input_refs=found, settings=plan.call_settings(), known_sources=known)
