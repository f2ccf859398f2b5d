"""The job: inputs → plan → stream → commit → report."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock._src.conversion.commit import output
from penstock._src.conversion.commit.groups import DEFAULT_GROUP_MB, divide
from penstock._src.conversion.commit.identity import identity, sources
from penstock._src.conversion.commit.join import WORKER_OUTPUTS
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.commit.writing import SHOWN_NOTES, InputProgress, JobInputs, SerialWriter
from penstock._src.conversion.find import find_inputs
from penstock._src.conversion.inputs.input import DatasetSpec, Input, InputRef, OpenOptions, first_whole, open_input
from penstock._src.conversion.report import (
    SHOWN_SOURCES,
    MemoryStage,
    MovedBytes,
    NoProgress,
    Progress,
    Report,
    write_report,
)
from penstock._src.conversion.settings import Settings, read_settings
from penstock._src.conversion.sink import DEFAULT_OUTPUT
from penstock._src.conversion.sink import label as sink_label
from penstock._src.conversion.stop import StopSignals
from penstock._src.lerobot.tasks import table_of
from penstock._src.plan.history import RunOutcome, record
from penstock._src.system import memory as process_memory
from penstock._src.system import units
from penstock._src.system.budget import Budget
from penstock._src.system.cache_directory import cache_directory, has_directory
from penstock._src.system.closing import on_error
from penstock._src.system.files import RemotePath, as_path
from penstock._src.system.limits import read_cpu_limit
from penstock.errors import (
    Interrupted,
    OutputExists,
    OutputFailed,
    PenstockError,
    RecordingError,
    RemoteError,
    UsageError,
)

if TYPE_CHECKING:
    from penstock._src.conversion.bucket.run import Shared
    from penstock._src.lerobot.features import Feature

_STAGES_KEPT = 400
_LISTED = 4  # values that are no numbers, in a note
# These end the job whatever --keep-going says: no other input would fare better.
_ENDS_THE_JOB = (Interrupted, OutputFailed, OutputExists)


def convert(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    config: str | Path | None = None,
    memory: str | int = "auto",
    jobs: str | int = "auto",
    on: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    append: bool = False,
    strict: bool = False,
    keep_going: bool = False,
    overrides: Iterable[str] = (),
    progress: Progress | None = None,
    **values: Any,
) -> Report:
    """Convert recordings, HDF5 files or data sets to one LeRobot data set and say what happened.

    `resume` goes on with a conversion that was ended, `append` adds inputs to a finished data set, `keep_going` leaves
    out inputs that fail. The result does not depend on `jobs` and `memory`, byte for byte. `on="ray"` lets a cluster
    convert them; `jobs` and `memory` are then those of one task.

    >>> penstock.convert("run.bag", "datasets/run", memory="512MiB", video="copy", task="stack the cups")
    """
    if overwrite and (resume or append):
        raise UsageError("--overwrite starts again: it cannot be combined with --resume or --append")
    settings = read_settings(config, [*overrides, *(["bad_messages=reject"] if strict else [])], values)
    job = new_job(
        sources,
        out,
        settings if on is None or append else shared_settings(settings),
        memory=memory if on is None else "auto",
        jobs=jobs if on is None else 1,
        strict=strict,
        keep_going=keep_going,
        progress=progress,
    )
    mode: output.Mode = "resume" if resume else "new"
    if append:
        mode = "append or resume" if resume else "append"
    if on is not None:
        from penstock._src.conversion.shards.ray_run import on_ray

        return on_ray(job, on, mode, overwrite=overwrite, memory=memory, jobs=jobs)
    return job.run(mode, overwrite=overwrite)


def new_job(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: Settings,
    *,
    memory: str | int,
    jobs: str | int,
    strict: bool,
    keep_going: bool,
    progress: Progress | None,
) -> Job:
    """The job of a call, with its inputs found."""
    wanted = [sources] if isinstance(sources, (str, Path)) else list(sources)
    return Job(
        input_refs=find_inputs(wanted, as_path(out)),
        out=as_path(out),
        settings=settings,
        budget=Budget.parse(memory),
        cores=_cores(jobs),
        cores_given=jobs != "auto",
        progress=progress or NoProgress(),
        strict=strict,
        keep_going=keep_going,
    )


def shared_settings(settings: Settings) -> Settings:
    """The settings of a conversion by several machines: videos begin anew with each group, so that nobody copies."""
    if settings.files.group_mb is not None:
        return settings
    return replace(settings, files=replace(settings.files, group_mb=DEFAULT_GROUP_MB))


@dataclass(eq=False)
class Job:
    """One call of `convert`, and everything that its parts share."""

    input_refs: list[InputRef]
    out: Path
    settings: Settings
    budget: Budget
    cores: int
    cores_given: bool
    progress: Progress
    strict: bool = False
    keep_going: bool = False
    spec: DatasetSpec | None = None
    writer: DataSetWriter | None = None
    root: Path = field(default_factory=Path)
    inputs: JobInputs = field(default_factory=JobInputs)
    sources: list[dict[str, Any]] = field(default_factory=list)  # the inputs as the journal will know them
    first_new: int = 0  # the inputs before it were in the data set before this call appended to it
    notes: dict[str, None] = field(default_factory=dict)
    stages: list[MemoryStage] = field(default_factory=list)
    predicted_bytes: int = 0
    processes: int = 1
    joining_bytes: int = 0  # what this process holds while others convert
    stop: StopSignals = field(default_factory=StopSignals)
    known_sources: list[dict[str, Any]] | None = None  # the inputs as a plan knows them: they are not read again
    building: output.OutputDirectory | None = None
    share_out: Callable[[Job], None] | None = None  # lets others write the inputs, instead of this machine alone
    shared: Shared | None = None  # what those agree on, where the output is a bucket
    nodes: tuple[Mapping[str, Any], ...] = ()  # what each machine did, where several did something
    moved: MovedBytes = field(init=False)

    def run(self, mode: output.Mode, *, overwrite: bool) -> Report:
        began = time.perf_counter()
        from penstock._src.conversion.commit.resume import already_whole

        if self.shared is None and (whole := already_whole(self, mode)) is not None:
            return whole
        place = self._building(mode, overwrite=overwrite)
        with process_memory.arrow_from_system(), process_memory.PeakMeter() as meter, self.stop, place as building:
            self.root, self.building = building.root, building
            self.stage("start")
            try:
                self._begin(building, appends=mode.startswith("append"))
                self._write_all()
                self._close()
            except BaseException as error:
                self._abandon(error, mode)
                raise
            self.stage("end")
            report = self._report(meter, time.perf_counter() - began)
            write_report(building.root, report)
            building.finished = True
        if has_directory():  # how good the prediction was, for `penstock plan --history`
            name = Path(report.out).name
            record(RunOutcome("convert", name, report.predicted_peak_bytes, report.peak_rss_bytes), cache_directory())
        return report

    def _building(self, mode: output.Mode, *, overwrite: bool) -> AbstractContextManager[output.OutputDirectory]:
        if not isinstance(self.out, RemotePath):
            return output.building(self.out, mode, overwrite=overwrite)
        from penstock._src.conversion.bucket import staging

        return staging.building(self, self.out, mode, overwrite=overwrite)

    def note(self, text: str) -> None:
        """Tell the user, once."""
        if text not in self.notes:
            if len(self.notes) < SHOWN_NOTES:
                self.notes[text] = None
            self.progress.note(text)

    def _note_all(self, source: str, notes: Sequence[str]) -> None:
        """The notes of one input: they go into the report, and a person sees like ones grouped."""
        notes = [note.removeprefix(f"{source}: ") for note in notes]  # a recording of one file has its name already
        fresh = [note for note in notes if f"{source}: {note}" not in self.notes]
        room = max(0, SHOWN_NOTES - len(self.notes))
        self.notes |= dict.fromkeys(f"{source}: {note}" for note in fresh[:room])
        if fresh:
            self.progress.notes(source, fresh)

    def stage(self, at: str) -> None:
        stage = MemoryStage(at, process_memory.rss_bytes())
        if len(self.stages) >= _STAGES_KEPT:
            del self.stages[1:-1:2]  # a long run keeps its shape, not every point
        self.stages.append(stage)
        self.progress.stage(stage)

    @property
    def upload_bytes(self) -> int:
        """What bringing files to a bucket takes of the memory."""
        return 0 if self.building is None else self.building.upload_bytes

    def open_options(self) -> OpenOptions:
        return OpenOptions(
            self.settings,
            self.budget.limit_bytes - self.upload_bytes,
            self.cores,
            self.strict,
            check_stop=self.stop.check,
            rows_before=0 if self.writer is None else self.writer.frames,
            inputs=len(self.inputs.entries),
        )

    def give_up(self, number: int, error: PenstockError) -> None:
        """An input failed: the job ends with it, or goes on without it."""
        is_of_output = isinstance(error, RemoteError) and f"{error.url}/".startswith(f"{self.out}/")
        if isinstance(error, _ENDS_THE_JOB) or is_of_output:
            raise error
        if not self.keep_going:
            if len(self.inputs.entries) > 1:
                go_on = "--keep-going leaves out the inputs that fail"
                error.hint = f"{error.hint}; {go_on}" if error.hint else go_on
            raise error
        path = self.inputs.entries[number].ref.path
        reason = error.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")
        self.note(f"{path}: failed: {reason}")
        self.inputs.entries[number].failed = reason
        if self.writer is not None:
            self._note_tasks(path.name)
            self.writing().fail(number, reason)

    def writing(self) -> SerialWriter:
        if self.writer is None:
            raise RecordingError("no input could be converted", hint="the notes say why each of them failed")
        return SerialWriter(self.writer, self.inputs, self.budget, self.stop, on_moved=self.moved, on_rows=self.stage)

    def _begin(self, building: output.OutputDirectory, *, appends: bool) -> None:
        if building.holds == "nothing":
            self._check_inputs()
        else:
            from penstock._src.conversion.commit.resume import resume_job

            resume_job(self, building, appends=appends)
        self.moved = MovedBytes(self.progress, [entry.size_bytes for entry in self.inputs.entries])
        for number, entry in enumerate(self.inputs.entries):
            if entry.is_finished:
                self.moved.done(number)

    def _check_inputs(self) -> None:
        """Before anything is converted: an input that cannot be read fails now, not hours later."""
        self.sources, failed = (
            (self.known_sources, {}) if self.known_sources is not None else sources(self.input_refs, self.settings)
        )
        pairs = zip(self.input_refs, self.sources, strict=True)
        self.inputs.entries += [InputProgress(each, known["bytes"]) for each, known in pairs]
        self.divide([self.sources])
        for number, reason in failed.items():
            self.give_up(number, reason)

    def divide(self, batches: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Settle which inputs belong together; `batches` are the inputs of each call that gave some."""
        group_mb = self.settings.files.group_mb
        self.inputs.groups, self.inputs.videos_by_group = divide(batches, group_mb), bool(group_mb)
        if self.building is not None and self.building.videos_by_group is not None:
            self.inputs.videos_by_group = self.building.videos_by_group
            self.inputs.group_shift = self.building.group_shift

    def _write_all(self) -> None:
        """Input after input in this process, or, where more cores help, several at once in others."""
        if self.share_out is not None:
            self.share_out(self)
            return
        todo = deque(number for number, entry in enumerate(self.inputs.entries) if not entry.is_finished)
        while todo:
            number = todo[0]
            try:
                source = self.open_input(number)
            except PenstockError as error:
                todo.popleft()
                self.give_up(number, error)
                continue
            with source:
                if min(self.cores, len(todo)) > 1:
                    from penstock._src.conversion.parallel.pool import processes_for

                    self.processes = processes_for(self, source, len(todo))
                    if self.processes > 1:
                        break
                todo.popleft()
                self.take_input(source, number, last=not todo)
        if todo:
            from penstock._src.conversion.parallel.pool import Parallel

            Parallel(self, list(todo)).run()

    def open_input(self, number: int, options: OpenOptions | None = None) -> Input:
        """Open and show an input; the first one that can be opened begins the data set."""
        options = options or self.open_options()
        source = open_input(self.inputs.entries[number].ref, options, self.spec)
        if self.spec is None and not source.is_whole:
            source = self._let_another_begin(source, number, options)
        self.predicted_bytes = max(self.predicted_bytes, source.memory.peak_bytes)
        budget, peak = (units.format_bytes(n) for n in (options.budget_bytes, source.memory.peak_bytes))
        memory = ("memory", f"budget {budget} · predicted peak {peak}")
        self.progress.plan([*source.lines(), *self._output_lines(), memory])
        self._note_all(source.path.name, source.notes)
        if self.spec is None:
            self.begin_data_set(source.spec(), source.fps, source.features, source.robot_type)
        return source

    def _let_another_begin(self, damaged: Input, number: int, options: OpenOptions) -> Input:
        """The first whole input behind a damaged one settles the data set; without one the damaged one does."""
        with on_error(damaged.close):
            refs = [entry.ref for entry in self.inputs.entries[number + 1 :] if entry.failed is None]
            whole = first_whole(refs, options)
            if whole is None:
                return damaged
            with whole:
                self.note(f"{damaged.path.name} is damaged: the data set has the features of {whole.path.name}")
                self.begin_data_set(whole.spec(), whole.fps, whole.features, whole.robot_type)
        damaged.close()
        return open_input(self.inputs.entries[number].ref, options, self.spec)

    def _output_lines(self) -> list[tuple[str, str]]:
        """What is written, where it is not the usual format."""
        name = self.settings.output
        return [] if name == DEFAULT_OUTPUT else [("output", f"{sink_label(name)} · video={self.settings.video}")]

    def begin_data_set(self, spec: DatasetSpec, fps: int, features: Sequence[Feature], robot_type: str | None) -> None:
        """Make the data set that the first input settles."""
        from penstock._src.conversion.commit.writer import DataSetWriter

        files = self.settings.files
        self.writer = DataSetWriter(
            self.root,
            fps=fps,
            features=features,
            robot_type=robot_type,
            output=self.settings.output,
            data_file_bytes=(files.data_mb or 100) * 2**20,
            video_file_bytes=(files.video_mb or 200) * 2**20,
            identity={**identity(self.settings, self.sources, strict=self.strict), "begun": spec.to_json()},
            chunks=None if self.building is None else self.building.chunks(),
        )
        if self.building is not None:
            self.building.follow(self.writer)
        self.spec = spec
        self.sources.clear()  # the journal knows them now
        for number, reason in ((n, e.failed) for n, e in enumerate(self.inputs.entries) if e.failed is not None):
            self.writing().fail(number, reason)

    def take_input(self, source: Input, number: int, *, last: bool) -> None:
        """Convert an input in this process."""
        try:
            noted = self.writing().take(source, number, last=last)
        except PenstockError as error:
            self.give_up(number, error)
        else:
            self.note_outcome(number, noted)
        self.moved.done(number)

    def note_outcome(self, number: int, noted: Sequence[str]) -> None:
        name = self.inputs.entry(number).ref.name
        self._note_tasks(name)
        self._note_all(name, noted)

    def _note_tasks(self, name: str) -> None:
        writer = self.writing().writer
        for table in writer.tables.values():
            if changed := table.end_input():
                pointing = [each.key for each in writer.features if table_of(each) == table.name]
                columns = ", ".join([*(["task_index"] if table.name == "tasks" else []), *pointing])
                self.note(f"{name}: its {table.name} have other numbers in the merged table: {changed} ({columns})")

    def _close(self) -> None:
        writer = self.writing().writer
        if writer.episodes == 0:
            raise RecordingError("no episode could be converted", hint="the notes say why each of them was left out")
        # NaN and Inf are kept as recorded, left out of the statistics, and named.
        for key, dimensions in writer.bad_values().items():
            values = [
                f"{dimension}: " + " ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
                for dimension, counts in dimensions.items()
            ]
            more = f" and {len(values) - _LISTED:,} more" if len(values) > _LISTED else ""
            listed = ", ".join(values[:_LISTED]) + more
            self.note(f"{key} {listed} (kept as recorded, left out of the statistics)")
        shutil.rmtree(self.root / WORKER_OUTPUTS, ignore_errors=True)
        writer.close()

    def _abandon(self, error: BaseException, mode: output.Mode) -> None:
        """The job fails: what is committed stays, and the error says how to go on."""
        if self.writer is not None:
            self.writer.abandon()
        if self.building is None or not isinstance(error, PenstockError):
            return
        go_on = "--append --resume" if mode.startswith("append") else "--resume"
        if kept := self.building.new_episodes(mode):
            then = f"{kept:,} episode{'s are' if kept != 1 else ' is'} kept: after this is fixed, {go_on} continues"
        elif isinstance(error, OutputFailed) and not (mode == "new" and self.out.exists()):  # none is replaced
            then = f"then run the same command with {go_on}: no episode was finished yet"
        else:
            return
        error.hint = f"{error.hint}; {then}" if error.hint else then

    def _report(self, meter: process_memory.PeakMeter, seconds: float) -> Report:
        if self.spec is None or self.writer is None:  # then nothing was closed either
            raise RecordingError("no input could be converted")
        # The processes of a cluster may be children of this one: they have budgets of their own.
        own_bytes = meter.tree_peak_bytes if self.share_out is None else meter.peak_bytes
        peak_bytes = max([own_bytes, *(stage.rss_bytes for stage in self.stages)])
        over_bytes = max(0, peak_bytes - self.budget.limit_bytes)
        if over_bytes:
            sizes = (peak_bytes, self.budget.limit_bytes, self.predicted_bytes, meter.start_bytes)
            peak, budget, predicted, start = map(units.format_bytes, sizes)
            self.note(
                f"the peak of {peak} is above the budget of {budget} (predicted {predicted}; this process held {start} "
                "before it began): give the next run a larger --memory"
            )
        inputs, failed = self.inputs, self.inputs.failed()
        notes = [*dict.fromkeys([*inputs.notes, *self.notes])]
        if inputs.more_notes:
            notes.append(f"and {inputs.more_notes:,} more notes of inputs")
        paths = dict.fromkeys(str(entry.ref.path) for entry in itertools.islice(inputs.entries, SHOWN_SOURCES))
        return Report(
            out=str(self.out),
            sources=tuple(paths),
            inputs=len(inputs.entries),
            episodes=self.writer.episodes,
            frames=self.writer.frames,
            lost=dict(inputs.lost),
            lost_before=inputs.lost_before,
            failed=failed,
            failed_before=len(failed) - len(inputs.failed(self.first_new)),
            seconds=round(seconds, 4),
            bytes_in=sum(entry.size_bytes for entry in inputs.entries if entry.is_done),
            bytes_out=sum(entry.stat().st_size for entry in self.root.rglob("*") if entry.is_file()),
            peak_rss_bytes=peak_bytes,
            over_budget_bytes=over_bytes,
            predicted_peak_bytes=self.predicted_bytes,
            budget_bytes=self.budget.limit_bytes,
            processes=self.processes,
            fps=self.spec.fps,
            features=self.spec.features,
            alignment=inputs.alignment(),
            notes=tuple(notes),
            memory=tuple(self.stages),
            penstock=__version__,
            nodes=self.nodes,
        )


def _cores(jobs: str | int) -> int:
    granted = read_cpu_limit().count
    return granted if jobs == "auto" else units.parse_workers(jobs, granted, what="--jobs")


__all__ = ["Job", "NoProgress", "Progress", "convert"]
