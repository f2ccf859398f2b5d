"""`penstock convert … --on ray`: one task per group of inputs; this process joins what they publish, in order.

Ray places tasks; everything else is done here. `memory=` only admits a task, so the task keeps to its budget itself. A
task that is lost with its worker or node is done again in a new attempt, one that lacks memory with twice as much, both
a finite number of times. What an attempt that was given up still writes is nobody's result (shard_storage.py).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.output import Mode
from penstock._src.conversion.commit.resume import already_whole
from penstock._src.conversion.shards.choose_storage import shard_storage_of
from penstock._src.conversion.shards.cluster import (
    WORKER_BYTES,
    ClusterNode,
    MissingNodes,
    connected,
    fitting,
    nodes_of,
    share_bytes,
)
from penstock._src.conversion.shards.nodes import NodeTable
from penstock._src.conversion.shards.plan import ShardPlan, agree, job_of, read_plan
from penstock._src.conversion.shards.ray_task import run_group
from penstock._src.conversion.shards.shard_storage import ShardStorage, new_attempt
from penstock._src.conversion.shards.take import is_begun, is_through, take_group, work_of
from penstock._src.conversion.shards.write import GroupRequest
from penstock._src.system import units
from penstock._src.system.budget import AUTO_MOST_BYTES
from penstock._src.system.files import RemotePath
from penstock.errors import (
    Interrupted,
    OutputExists,
    PenstockError,
    RecordingError,
    RemoteTaken,
    UsageError,
    carried_error,
)

if TYPE_CHECKING:
    from penstock._src.conversion.job import Job
    from penstock._src.conversion.report import Report

_WAIT_S = 0.25
_SHOW_EVERY_S = 5.0
_NODES_EVERY_S = 5.0
_STOP_S = 20.0  # how long tasks may take to put their files in order
_MOST_LOSSES = 4  # of one input: workers and nodes that ended under it
_MOST_GROWTHS = 3  # of the memory of one group
_LEAST_BUDGET_BYTES = 128 * 2**20
_SLOW_TIMES, _SLOW_LEAST_S = 3.0, 60.0
_MIB = 2**20


def on_ray(
    job: Job, on: str, mode: Mode, *, overwrite: bool, memory: str | int = "auto", jobs: str | int = "auto"
) -> Report:
    """Run a job on a cluster; `memory` and `jobs` are those of one task."""
    with connected(on) as ray:
        nodes = nodes_of(ray)
        most_cpus = int(max((node.cpus for node in nodes), default=1)) or 1
        cpus = 1 if jobs == "auto" else units.parse_workers(jobs, most_cpus, what="--jobs")
        given_bytes = None if memory == "auto" else units.parse_bytes(memory)
        if given_bytes is not None:
            fitting(nodes, cpus, given_bytes + WORKER_BYTES)
        storage = shard_storage_of(job.out)
        plan, begins_anew = None, "resume" not in mode
        if isinstance(job.out, RemotePath):
            if (whole := already_whole(job, mode)) is not None:
                return whole
            plan, begins_anew = _plan(job, storage, mode, overwrite), False
            job = job_of(plan, job)
            job.shared = storage.shared(plan)
        run = _RayRun(ray, job, storage, cpus, given_bytes, nodes)
        job.share_out = lambda _: run.run(begins_anew=begins_anew)
        try:
            report = job.run(mode, overwrite=overwrite)
        except RemoteTaken:
            storage.remove_all(plan)
            raise
        storage.remove_all(plan)
        return report


def _plan(job: Job, storage: ShardStorage, mode: Mode, overwrite: bool) -> ShardPlan:
    """The plan that is there, or a new one: in a bucket, names of files are agreed on beforehand."""
    plan = read_plan(storage)
    if plan is not None and "resume" not in mode and not overwrite and storage.committed(plan) is None:
        raise OutputExists(
            f"{job.out}: a conversion by several machines did not end",
            hint="--resume goes on with it, --overwrite starts again",
        )
    if plan is not None and overwrite:
        storage.remove_all(plan)
    return agree(job, storage, append=mode.startswith("append"), overwrite=overwrite)


@dataclass
class _GroupState:
    """How a group fares over its attempts."""

    budget_bytes: int
    growths: int = 0
    losses: Counter[int] = field(default_factory=Counter)  # by input
    skip: dict[int, str] = field(default_factory=dict)


@dataclass
class _Attempt:
    """A task that was handed to Ray."""

    group: Group
    name: str
    budget_bytes: int
    node: str = ""
    began_s: float = 0.0  # when its first progress was seen


class _RayRun:
    """The groups of a job that are left, on a cluster."""

    def __init__(
        self, ray: Any, job: Job, storage: ShardStorage, cpus: int, given_bytes: int | None, nodes: list[ClusterNode]
    ) -> None:
        self._storage = storage
        self._ray, self._job, self._cpus, self._given_bytes, self._nodes = ray, job, cpus, given_bytes, nodes
        self._task = ray.remote(run_group)
        self._order: deque[Group] = deque()
        self._waiting: deque[Group] = deque()
        self._done: dict[int, PenstockError | None] = {}
        self._states: dict[int, _GroupState] = {}
        self._running: dict[Any, _Attempt] = {}
        self._missing, self._table = MissingNodes(), NodeTable()
        self._taken_s: list[float] = []  # what groups took, for those that take long
        self._slow: set[int] = set()
        self._looked_s = self._shown_s = self._nodes_s = time.monotonic()
        self._budget_bytes = 0
        self._work = ""

    def run(self, *, begins_anew: bool) -> None:
        """Convert and join all groups; what is joined or published stays whatever happens.

        With `begins_anew`, what an earlier run published is not used.
        """
        self._begin(begins_anew)
        try:
            while self._order:
                self._submit()
                self._collect(_WAIT_S)
                self._look()
                if self._job.stop.is_requested:
                    self._stop()
                self._take_finished()
                if self._job.stop.is_requested:
                    raise Interrupted("interrupted")
        finally:
            self._job.nodes = self._table.rows()
            self._cancel()

    def _begin(self, begins_anew: bool) -> None:
        """Plan the memory with the first input that is left, and settle which groups are to do."""
        job = self._job
        task_bytes = self._given_bytes or min(share_bytes(self._nodes, self._cpus), AUTO_MOST_BYTES) - WORKER_BYTES
        budget_bytes = max(task_bytes - job.upload_bytes, _LEAST_BUDGET_BYTES)
        options = job.open_options()._replace(budget_bytes=budget_bytes, threads=self._cpus)
        for number, entry in enumerate(job.inputs.entries):
            if entry.is_finished:
                continue
            try:
                with job.open_input(number, options) as source:
                    peak_bytes = max(source.memory.peak_bytes, _LEAST_BUDGET_BYTES) + job.upload_bytes
            except PenstockError as error:
                job.give_up(number, error)
                continue
            self._budget_bytes = self._given_bytes or -(-peak_bytes // (16 * _MIB)) * 16 * _MIB
            fitting(self._nodes, self._cpus, self._budget_bytes + WORKER_BYTES)
            break
        self._work = work_of(job)
        if begins_anew:
            self._storage.remove_all(None)
        self._storage.begin(self._work)
        published = self._storage.published(self._work)
        self._order = deque(group for group in job.inputs.groups if not is_through(job, group))
        for group in list(self._order):
            if group.number in published:
                self._done[group.number] = None
            elif is_begun(job, group):  # a part of it is in the data set, written by this machine: the rest follows
                self._convert_here(group)
                self._order.remove(group)
            else:
                self._waiting.append(group)
        job.processes = self._slots()
        memory = units.format_bytes(self._budget_bytes)
        named = f"{len(self._order):,} groups of inputs on {len(self._nodes)} nodes, {job.processes} at a time"
        job.progress.plan([("ray", f"{named} · each {self._cpus} CPU, {memory}")])

    def _convert_here(self, group: Group) -> None:
        for number in group.inputs:
            if not self._job.inputs.entries[number].is_finished:
                try:
                    source = self._job.open_input(number)
                except PenstockError as error:
                    self._job.give_up(number, error)
                    continue
                with source:
                    self._job.take_input(source, number, last=False)

    def _slots(self) -> int:
        return sum(node.slots(self._cpus, self._budget_bytes + WORKER_BYTES) for node in self._nodes)

    def _submit(self) -> None:
        """Keep as many tasks with Ray as its nodes run, and as many again that wait there."""
        now_s = time.monotonic()
        if now_s - self._nodes_s >= _NODES_EVERY_S:
            self._nodes_s, self._nodes = now_s, nodes_of(self._ray)
            tasks_bytes = [attempt.budget_bytes + WORKER_BYTES for attempt in self._running.values()]
            if (text := self._missing.look(self._nodes, self._cpus, tasks_bytes)) is not None:
                self._job.note(text)
        while self._waiting and len(self._running) < max(2, 2 * self._slots()):
            self._start(self._waiting.popleft())

    def _start(self, group: Group) -> None:
        job, state = self._job, self._states.setdefault(group.number, _GroupState(self._budget_bytes))
        if job.spec is None:
            raise RecordingError("no input could be converted")
        entries = [job.inputs.entries[number] for number in group.inputs]
        failed = {n: e.failed for n, e in zip(group.inputs, entries, strict=True) if e.failed is not None}
        attempt = _Attempt(group, new_attempt(self._work, group.number), state.budget_bytes)
        request = GroupRequest(
            group=group,
            refs=tuple(entry.ref for entry in entries),
            spec=job.spec,
            out=str(job.out),
            attempt=attempt.name,
            budget_bytes=state.budget_bytes,
            threads=self._cpus,
            strict=job.strict,
            keep_going=job.keep_going,
            inputs=len(job.inputs.entries),
            skip={**failed, **state.skip},
            more_memory_follows=self._larger(state) is not None,
            group_shift=0 if job.shared is None else job.shared.group_shift,
        )
        options = self._task.options(
            num_cpus=self._cpus,
            memory=state.budget_bytes + WORKER_BYTES,
            max_retries=0,  # the next attempt is ours: with another directory, and perhaps more memory
            scheduling_strategy="SPREAD",
            name=f"penstock {group.number}",
        )
        self._running[options.remote({"penstock": __version__, "request": request.to_json()})] = attempt

    def _collect(self, timeout_s: float) -> None:
        if not self._running:
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=timeout_s)
        for reference in ready:
            attempt = self._running.pop(reference)
            try:
                answer = self._ray.get(reference)
            except (self._ray.exceptions.RayError, SystemError) as error:
                self._lost(attempt, error)
                continue
            if "result" in answer:
                self._done[attempt.group.number] = None
                self._taken_s.append(float(answer["result"]["seconds"]))
            elif "error" in answer:
                self._failed(attempt, answer)
            elif not self._job.stop.is_requested:
                self._told_to_stop(attempt)

    def _told_to_stop(self, attempt: _Attempt) -> None:
        """Not by this driver: by another machine, or its node saw late that tasks may run."""
        if self._storage.is_asked_to_stop(self._work):
            raise Interrupted(f"{self._job.out}: the conversion was stopped, or committed by another machine")
        self._forget(attempt)
        self._waiting.appendleft(attempt.group)

    def _failed(self, attempt: _Attempt, answer: dict[str, Any]) -> None:
        error = carried_error(answer["error"])
        if answer.get("needs_memory"):
            self._grow(attempt, int(answer["input"]), error.message)
        elif isinstance(error, UsageError) or answer.get("of_output"):
            raise error
        else:
            self._done[attempt.group.number] = error
            self._table.row(str(answer["node"])).failed += 1

    def _lost(self, attempt: _Attempt, error: Exception) -> None:
        """The worker or the node of an attempt ended under it."""
        group = attempt.group
        if self._storage.is_published(self._work, group.number):
            self._done[group.number] = None
            return
        progress = self._storage.read_progress([attempt.name])[0] or {}
        number, node = int(progress.get("input", group.first)), str(progress.get("node", attempt.node))
        self._forget(attempt)
        if isinstance(error, self._ray.exceptions.TaskCancelledError):
            return
        if node:
            self._table.row(node).lost += 1
        path = self._job.inputs.entries[number].ref.path
        over_bytes = progress.get("over_bytes")
        if over_bytes is not None or isinstance(error, self._ray.exceptions.OutOfMemoryError):
            held = f"held {units.format_bytes(over_bytes)}" if over_bytes is not None else "was ended by Ray"
            self._grow(attempt, number, f"{path}: its task {held}")
            return
        state = self._states[group.number]
        state.losses[number] += 1
        raised = getattr(error, "cause", None) or error  # what the task raised; Ray's own text begins with a process
        cause = str(raised).strip().splitlines()[0] if str(raised).strip() else type(raised).__name__
        if state.losses[number] < _MOST_LOSSES:
            self._job.note(f"{path}: its task was lost ({type(error).__name__}): done again")
            self._waiting.appendleft(group)
        else:
            self._skip(group, number, f"its task was lost {_MOST_LOSSES} times, last: {cause}")

    def _larger(self, state: _GroupState) -> int | None:
        """The memory of the next attempt; None where there is none."""
        most_bytes = max((node.memory_bytes for node in self._nodes if node.cpus >= self._cpus), default=0)
        wanted = min(2 * state.budget_bytes, most_bytes - WORKER_BYTES)
        return wanted if wanted > state.budget_bytes and state.growths < _MOST_GROWTHS else None

    def _grow(self, attempt: _Attempt, number: int, reason: str) -> None:
        state = self._states[attempt.group.number]
        before, larger = units.format_bytes(state.budget_bytes), self._larger(state)
        if larger is None:
            self._skip(attempt.group, number, f"{reason}, and {before} is the most that a task can have here")
            return
        self._job.note(f"{reason}, of {before}: again with {units.format_bytes(larger)}")
        state.budget_bytes, state.growths = larger, state.growths + 1
        self._waiting.appendleft(attempt.group)

    def _skip(self, group: Group, number: int, reason: str) -> None:
        """An input cannot be converted here: the group goes on without it, or the job ends with it."""
        path = self._job.inputs.entries[number].ref.path
        text = reason if reason.startswith(f"{path}") else f"{path}: {reason}"
        if self._job.keep_going:
            state = self._states[group.number]
            state.skip[number] = text
            state.growths = 0
            self._waiting.appendleft(group)
        else:
            self._done[group.number] = RecordingError(text, hint="the logs of Ray say more (`ray logs`)")

    def _take_finished(self) -> None:
        while self._order and self._order[0].number in self._done:
            group = self._order.popleft()
            error = self._done.pop(group.number)
            if error is not None:
                self._job.give_up(group.first, error)
            self._table.add(take_group(self._job, self._storage, group, self._work))
            self._states.pop(group.number, None)

    def _look(self) -> None:
        """What the attempts say: bytes for the bar, memory and rates for the lines of the nodes."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._storage.look_every_s:
            return
        self._looked_s = now_s
        latest, attempts = {}, list(self._running.values())
        every = self._storage.read_progress([attempt.name for attempt in attempts])
        for attempt, progress in zip(attempts, every, strict=True):
            if progress is None:
                continue
            latest[attempt.group.number] = progress
            attempt.node, attempt.began_s = str(progress.get("node", "")), attempt.began_s or now_s
            self._table.row(attempt.node).budget_bytes = attempt.budget_bytes
            for number, done_bytes in progress.get("moved", {}).items():
                self._job.moved(int(number), int(done_bytes))
        self._table.now(latest)
        if now_s - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = now_s
            self._job.progress.nodes([*self._table.lines(), *self._slow_lines(now_s)])

    def _slow_lines(self, now_s: float) -> list[str]:
        """Groups that take much longer than the others did."""
        if not self._taken_s:
            return []
        usual_s = sorted(self._taken_s)[len(self._taken_s) // 2]
        limit_s = max(_SLOW_LEAST_S, _SLOW_TIMES * usual_s)
        lines = []
        for attempt in self._running.values():
            taking_s = now_s - attempt.began_s if attempt.began_s else 0.0
            if taking_s > limit_s:
                name = self._job.inputs.entries[attempt.group.first].ref.name
                lines.append(f"slow: {name} on {attempt.node}: {taking_s:.0f} s, others took {usual_s:.0f} s")
                if attempt.group.number not in self._slow:
                    self._slow.add(attempt.group.number)
                    self._job.note(f"{name} on {attempt.node} takes more than {limit_s:.0f} s")
        return lines

    def _stop(self) -> None:
        """Tell every task to put its files in order, wait for it, then end those that do not."""
        self._storage.ask_to_stop(self._work)
        self._waiting.clear()
        end_s = time.monotonic() + _STOP_S
        while self._running and time.monotonic() < end_s:
            self._collect(_WAIT_S)
            self._waiting.clear()
        self._cancel()

    def _cancel(self) -> None:
        for reference, attempt in self._running.items():
            self._ray.cancel(reference, force=True)
            self._forget(attempt)
        self._running.clear()

    def _forget(self, attempt: _Attempt) -> None:
        self._storage.discard(attempt.name)
        self._storage.end_progress(attempt.name)
