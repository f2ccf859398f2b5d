"""`Loader`: batches from a store, at random, through a memory budget.

    loader = penstock.Loader(store, penstock.Window(action=range(20)), batch_size=64, memory="2GiB", seed=0)
    for batch in loader: ...

The order depends on the seed and the epoch alone. Batches are views of recycled slots: one that is kept stays as it
is, one that is dropped costs no memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn

from penstock._src.load import outcome, settings
from penstock._src.load.choose_engine import CANNOT_TRAVEL, ENGINES, ThreadEngine, engine_for
from penstock._src.load.describe import describe
from penstock._src.load.device.target import ContinuousPass, target_for
from penstock._src.load.engine.job import BatchJob
from penstock._src.load.engine.remote import ahead_bytes, allow_ahead, remote_bytes
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.engine.source import ImageSize, Normalize, Shaping, sources_of
from penstock._src.load.engine.tables import table_bytes
from penstock._src.load.epoch import BatchRecipe, SharedPass, plan_from
from penstock._src.load.losses import Losses
from penstock._src.load.memory_split import TABLE_SHARE, engine_bytes, split_memory
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.process.slots import SharedSlots
from penstock._src.load.process.spec import spec_for
from penstock._src.load.sampling.position_map import Batch, check_alike, encoded_by_all, notes_of_order, order_of
from penstock._src.load.sampling.resume import STATE_VERSION, resumed
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.settings import Mix
from penstock._src.load.views.choose_views import attach_views, full_bytes_of, held_bytes, stats_of_views
from penstock._src.load.views.view import View
from penstock._src.plan.load_plan import LoadPlan
from penstock._src.plan.view_choice import fit_whole
from penstock._src.profile.record.registry import AccessPath, register, unregister
from penstock._src.profile.stats import LoaderInfo
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget, Reservation
from penstock._src.system.units import format_bytes
from penstock.errors import BudgetExceeded, UsageError

_INDEX_BYTES_PER_ROW = 8  # of one image column: offset and size of a packet
_ENDED = "this pass has ended: the loader started another one, its position was set, or it was closed"


class Loader:
    """Batches of samples, prepared ahead of the training step; a context manager.

    `batch_size` is the global one: with `shard=(rank, world)` each process yields `batch_size / world` samples of every
    global batch. `memory` bounds everything that the loader holds beside the interpreter; what slots, threads and
    numbers leave of it is for the view. `engine` says who makes the batches: "thread", threads of this process, or
    "process", a process of its own, which takes nothing from the training step. `notes` says what was decided;
    `stats()` what happened. `plan` (`penstock.plan_loading`) decides batch and image size, memory, view, threads and
    prefetch.
    """

    _planned_run: outcome.PlannedRun | None = None

    def __init__(
        self,
        store: Store | Mix,
        window: Sampling | None = None,
        batch_size: int = 64,
        image_size: ImageSize = (224, 224),
        memory: str | int | Budget = "auto",
        view: str | Mapping[str, View] = "auto",
        threads: int | str = "auto",
        seed: int = 0,
        shuffle: bool | str = True,
        shard: tuple[int, int] | None = None,
        device: Any = None,
        on_error: str = "raise",
        *,
        max_skip_rate: float = 0.01,
        dtype: str = "uint8",
        normalize: Normalize = None,
        exact: bool = False,
        resize: str = "linear",
        output: str = "auto",
        drop_last: bool | None = None,
        prefetch: int | str = "auto",
        gpu_decode: bool | str = "auto",
        engine: str = "auto",
        plan: LoadPlan | None = None,
    ) -> None:
        self._options = {name: each for name, each in locals().items() if name not in ("self", "plan")}  # for `variant`
        if plan is not None:
            settings.check_planned(plan.loader_options, self._options, Loader.__init__)
            self._options.update(plan.loader_options)
            batch_size, image_size, memory = (self._options[name] for name in ("batch_size", "image_size", "memory"))
            view, threads, prefetch = (self._options[name] for name in ("view", "threads", "prefetch"))
        self._mix = settings.mix_for(store)
        self.window = settings.window_for(window)
        skips = settings.one_of("on_error", on_error, ("raise", "skip")) == "skip"
        most_skipped = settings.rate_for(max_skip_rate)
        self._shard = settings.shard_for(shard)
        self._init_empty()
        self._pid = os.getpid()
        self._guard = (self._pid, threading.RLock())
        shaping = Shaping(image_size, exact, resize, dtype, normalize)
        for each in self._mix.stores:
            shaping.check_names(each)
        gpu_decode = settings.gpu_decode_for(gpu_decode, view)
        is_open = gpu_decode == view == "auto"  # until it is known whether views in memory hold all images
        self._target = target_for(device, output, False if is_open else gpu_decode, shaping)
        self._budget, ruled_by = settings.budget_for(memory)
        self.notes += (f"memory: {ruled_by}",) if ruled_by else ()
        self._limit_bytes = self._budget.free_bytes  # others may hold a part of a budget that is shared
        self._bind(isinstance(store, Mix), shuffle, seed)
        if is_open and not fit_whole(full_bytes_of(self._sources), self._limit_bytes):
            self._target = target_for(device, output, gpu_decode, shaping)
        self._batches = settings.batches_for(self.samples, batch_size, drop_last, self._shard)
        self._losses = Losses(self._batches, skips, most_skipped)
        self._encoded = encoded_by_all(self._sources, self._target.keeps_encoded)
        self._choose_engine(engine, threads, prefetch)
        try:
            self._attach(view)
        except BaseException:
            self._release()
            raise
        self._reset_position()
        self._planned_run = outcome.follow(self, plan, self._shard.world)
        register(self)

    def _bind(self, is_mix: bool, shuffle: bool | str, seed: int) -> None:
        """The stores as batches need them, and the order of their samples."""
        bound = [self.window.bind(each) for each in self._mix.stores]
        self._sources = sources_of(bound, self._target.shaping, self._limit_bytes // TABLE_SHARE, is_mix=is_mix)
        check_alike(self._sources)
        self._order = order_of(self._mix, [each.bound.count for each in self._sources], shuffle, seed)

    def _choose_engine(self, engine: str, threads: int | str, prefetch: int | str) -> None:
        """Which engine makes the batches, and how memory is shared out for it."""
        self._engine_kind, why = engine_for(settings.one_of("engine", engine, ENGINES), self._target)
        try:
            self._split_memory(self._threads(threads), prefetch)
        except BudgetExceeded as error:
            if engine != "auto" or self._engine_kind == "thread":
                raise
            self._engine_kind, why = "thread", f"because memory has no room for an engine process: {error.message}"
            self._split_memory(self._threads(threads), prefetch)
        self.notes += (f"engine: {self._engine_kind}, {why}",)

    def _init_empty(self) -> None:
        """So that a loader whose construction fails can be closed as any other."""
        self.notes: tuple[str, ...] = ()
        self._reserved: list[Reservation] = []
        self._views: list[View] = []
        self._pass: ContinuousPass | None = None  # the user is within an epoch of it
        self._paused: ContinuousPass | None = None  # made ahead, for the epoch that follows
        self._ended: Callable[[], ContinuousPass | None] = lambda: None  # the pass that was ended last
        self._closed = False

    def _reset_position(self) -> None:
        self._engine: ThreadEngine | ProcessEngine | None = None
        self.epoch = 0
        self._position = 0
        self._resumes = False
        self._turn: object = None  # of the iterator that was made last
        self._counts = {"batches": 0, "view_hits": 0, "images_made": 0}

    # Sharing out

    @property
    def _own_batch_size(self) -> int:
        """Of this process; of a batch larger than all there is, what there is."""
        world = self._shard.world
        return min(self._batches.batch_size // world, -(-self.samples // world))

    @property
    def _recipe(self) -> BatchRecipe:
        return BatchRecipe(self._order, self._sources, self._encoded)

    def _threads(self, threads: int | str) -> int:
        if threads == "auto" and all(self._encoded(column) for source in self._sources for column in source.images):
            # Bytes are only moved; each thread more takes Python's lock from the one that decodes, or from the step.
            return 2 if self._engine_kind == "process" else 1
        return settings.threads_for(threads)

    def _split_memory(self, threads: int, prefetch: int | str) -> None:
        own = self._own_batch_size
        images = [column for source in self._sources for column in source.images]
        self._layout = lay_out(self._sources[0].shapes(own, without=self._encoded))
        numbers = sum(
            min(table_bytes({o.column: s.store.column(o.column) for o in s.number_outputs}.values(), s.store.rows),
                s.numbers.held_bytes)
            for s in self._sources
        )  # fmt: skip
        image_rows = sum(len(source.images) * source.store.rows for source in self._sources)
        slots = None if prefetch == "auto" else settings.slots_for(prefetch)
        self._ahead_bytes = ahead_bytes(self._sources, own, self._limit_bytes)
        self.memory_split = split_memory(
            self._limit_bytes,
            threads=threads,
            slots=slots,
            slot_bytes=self._layout.n_bytes,
            thread_bytes=max(source.scratch_bytes() for source in self._sources),
            table_bytes=numbers,
            index_bytes=min(image_rows * _INDEX_BYTES_PER_ROW, self._limit_bytes // 8),
            encoded_bytes=max(source.encoded_bytes(own, self._encoded) for source in self._sources),
            engine_bytes=engine_bytes(self._engine_kind, decodes_on_device=any(map(self._encoded, images))),
            remote_bytes=remote_bytes(self._ahead_bytes),
            budget=self._budget,
        )
        self._reserved.append(self._budget.reserve("loader", self.memory_split.fixed_bytes))
        if self.memory_split.threads < threads:
            self.notes += (f"memory: {self.memory_split.threads} of {threads} threads, because each holds "
                           f"{format_bytes(self.memory_split.thread_bytes)}",)  # fmt: skip
        ring = f"{self.memory_split.slots} slots of {format_bytes(self.memory_split.slot_bytes)} for batches"
        self.notes += (f"threads: {self.memory_split.threads}, {ring}", *notes_of_order(self._order))
        self.notes += tuple(note for source in self._sources for note in source.describe())

    def _attach(self, choice: str | Mapping[str, View]) -> None:
        if not isinstance(choice, Mapping):
            settings.one_of("view", choice, settings.VIEWS)
        if any(self._encoded(column) for column in self._sources[0].images):
            self.notes += ("images are decoded on the device: no view is made", *self._target.notes)
            return
        self._views, notes = attach_views(self._sources, choice, self.memory_split.left_bytes)
        held = held_bytes(self._views)
        self._reserved.append(self._budget.reserve("views", min(held, self._budget.free_bytes)))
        self.notes += (*notes, *self._target.notes)

    # The order

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self._batches)

    @property
    def samples(self) -> int:
        """Samples of one epoch, of all shards."""
        return int(self._order.count)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the beginning of this epoch."""
        wanted = settings.epoch_for(epoch)
        self._end_pass()
        self.epoch, self._position, self._resumes = wanted, 0, True

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, JSON-safe: behind the last batch that was handed out."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "position": self._position,
            "order": self._order.describe(),
            "window": self.window.describe(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind the batch after which `state` was taken; batch size, threads and shards may be others."""
        epoch, position = resumed(state, self.state_dict(), self.samples)
        self._end_pass()
        self.epoch, self._position, self._resumes = epoch, position, True

    # Passing

    def __iter__(self) -> Iterator[Batch]:
        self._check_open()
        self._end_pass()
        if self._position and not self._resumes:  # the pass before was left in the middle
            self.epoch, self._position = self.epoch + 1, 0
        self._turn = turn = object()
        return SharedPass(self._batches_of_epoch(turn))

    def _batches_of_epoch(self, turn: object) -> Generator[Batch, None, None]:
        if self._turn is not turn:
            raise UsageError(_ENDED)
        own = self._start_pass(turn)
        try:
            is_over = not len(replace(self._batches, start=self._position))
            batches = own.begin(self.epoch, self, is_over)
            while self._turn is turn:
                asked_s = perf_counter()
                ready = batches.next()
                with self._position_lock():
                    if self._turn is not turn:
                        break
                    if ready is None:
                        own.pause(self.epoch + 1)
                        self.epoch, self._position, self._resumes = self.epoch + 1, 0, False
                        return
                    job, batch = ready
                    self._count(job, asked_s)
                    kept = self._losses.without(job, batch)
                    self._position, self._resumes = job.after, False  # not before: what is refused was not handed out
                    if job.is_last:
                        own.pause(self.epoch + 1)  # not all loops ask whether there is more
                del job, batch, ready
                if kept is not None:
                    yield kept
                    del kept
        finally:
            self._end_pass(turn)
        raise UsageError(_ENDED)

    def _position_lock(self) -> threading.RLock:
        """Held where a pass begins or ends, and where the place in the order changes: any thread may end a pass."""
        if self._guard[0] != os.getpid():
            self._guard = (os.getpid(), threading.RLock())  # a thread of the parent may have held it at the fork
        return self._guard[1]

    def _start_pass(self, turn: object) -> ContinuousPass:
        with self._position_lock():
            if self._turn is not turn or self._closed:
                raise UsageError(_ENDED)  # meanwhile, by another thread
            paused, self._paused = self._paused, None
            if paused is not None and not paused.is_paused_at(self.epoch, self._position):
                paused.close()
                paused = None
            if self._engine is None or self._pid != os.getpid():
                self._begin_work()
            self._pass = paused if paused is not None else self._new_pass()
            return self._pass

    def _new_pass(self) -> ContinuousPass:
        assert self._engine is not None
        plan = plan_from(self.epoch, replace(self._batches, start=self._position), self._batches)
        grow = weakref.WeakMethod(self._one_more_slot)  # its threads know the pass, and must not know the loader
        own = self._engine.begin(plan, self.epoch, self._recipe, grow)
        return ContinuousPass(own, self._target)

    def _drop_paused(self) -> None:
        """Drop the batches prepared for an epoch that has not started."""
        paused, self._paused = self._paused, None
        if paused is not None:
            paused.close()

    def _begin_work(self) -> None:
        engine: ThreadEngine | ProcessEngine
        if self._engine_kind == "process":
            engine = self._process_engine()
        else:
            allow_ahead(self._ahead_bytes)
            engine = ThreadEngine(self._sources, self._layout, self.memory_split, self._target)
        # Last and together: Ctrl-C may come in between, and a child must not take its parent's for its own.
        self._engine, self._pid = engine, os.getpid()

    def _process_engine(self) -> ThreadEngine | ProcessEngine:
        """The engine process; where it cannot have the store and was not asked for, threads."""
        tables_bytes, own = self._limit_bytes // TABLE_SHARE, self._own_batch_size
        device = str(self._target.device)
        spec = spec_for(self._recipe, self.window, self._layout, tables_bytes, self.memory_split.threads, own, device)
        spec = replace(spec, ahead_bytes=self._ahead_bytes)
        try:
            return ProcessEngine(spec, SharedSlots(self._layout, self.memory_split.slots, self._target.register))
        except CANNOT_TRAVEL as error:
            reason = f"the store or the window cannot be sent to another process: {error}"
            if self._options["engine"] == "process":
                raise UsageError(f'engine="process": {reason}', hint='engine="thread"') from error
            self._engine_kind = "thread"
            self.notes += (f"engine: thread, because {reason}",)
            allow_ahead(self._ahead_bytes)
            return ThreadEngine(self._sources, self._layout, self.memory_split, self._target)

    def _one_more_slot(self) -> None:
        """All slots are in the hands of the user's code: where there is memory for one more, it is made."""
        engine = self._engine
        if engine is None:
            raise UsageError(_ENDED)  # closed meanwhile
        count, n_bytes, limit_bytes = len(engine.slots), self.memory_split.slot_bytes, self._budget.limit_bytes
        try:
            self._reserved.append(self._budget.reserve("slots of batches that are kept", n_bytes))
            engine.add_slot()
        except (BudgetExceeded, OSError) as error:
            reason = f"the budget of {format_bytes(limit_bytes)} has no room for another {format_bytes(n_bytes)}"
            hint = "copy what you keep (array.copy(), tensor.clone()), or give a larger memory=…"
            if isinstance(error, OSError):  # each slot of an engine process takes a descriptor
                self._reserved.pop().release()
                reason, hint = f"the system refuses another one: {error}", hint.partition(", or")[0]
            held = f"all {count} batches of this loader are still held by your code"
            raise BudgetExceeded(f"{held}, and {reason}", size=n_bytes, limit=limit_bytes, hint=hint) from error

    def _end_pass(self, turn: object = None) -> None:
        """End the pass; with `turn`, unless another iterator was made since. Nothing is under way for it afterwards."""
        with self._position_lock():
            if turn is not None and self._turn is not turn:
                return
            self._turn = None
            own, self._pass = self._pass, None  # first: a waiting thread must not take this for the end of the epoch
            if own is not None and own.is_paused:
                self._paused = own
                return
            if own is not None:
                self._ended = weakref.ref(own)
        if (ended := self._ended()) is not None:  # another thread may just be closing it
            ended.close()

    # What happened

    @property
    def is_full(self) -> bool:
        """Whether every slot holds a batch, complete or under way."""
        return self._engine is not None and self._engine.slots.is_empty

    @property
    def n_ready(self) -> int:
        """Batches that are complete and not taken yet."""
        return 0 if self._pass is None else self._pass.n_complete

    def _count(self, job: BatchJob, asked_s: float) -> None:
        if self._planned_run is not None:
            self._planned_run.take(job.size, asked_s, self.epoch, self)
        self._counts["batches"] += 1
        self._counts["view_hits"] += job.hits
        self._counts["images_made"] += job.made
        if self._engine is not None and self._engine.unread_notes:
            self.notes += tuple(self._engine.take_notes())

    def stats(self) -> dict[str, Any]:
        """What was handed out, lost, decoded and answered by views so far; and what memory is held."""
        if not self._closed:
            self._note_stats()
        samples = {"samples": self._losses.kept, "skipped": self._losses.skipped}
        return {**self._counts, **samples, "memory": self.memory_split.describe(), **self._last_stats}

    def _note_stats(self) -> None:
        """Keep the statistics of views and engine while they exist."""
        engine = self._engine if self._engine is not None and self._pid == os.getpid() else None
        views = stats_of_views(self._sources, {} if engine is None else engine.view_counts)
        engine_stats = {"kind": self._engine_kind} if engine is None else engine.describe()
        self._last_stats = {"views": views, "engine": engine_stats}

    # The subject of a verdict

    def describe(self) -> LoaderInfo:
        """How it is set up, what a batch needs, and what it takes to make it again."""
        return describe(self)

    def calibrate(self, ways: Sequence[str], threads: Sequence[int]) -> dict[str, AccessPath]:
        """What one image takes by each way into a batch, measured on some fifty rows."""
        from penstock._src.load.bench.calibrate import calibrate

        self._drop_paused()  # its threads would be at work beside what is measured
        return calibrate(self._sources, ways, threads, device=str(self._options["device"] or "cpu"))

    def variant(self, **options: Any) -> Loader:
        """A loader of the same store, window and order, with some options changed."""
        self._drop_paused()  # for the same reason
        return Loader(**{**self._options, **options})

    # The end

    def close(self) -> None:
        """End threads, give memory back; more than once is fine."""
        if self._closed:
            return
        if self._planned_run is not None:
            self._planned_run.end()
        unregister(self)
        self._note_stats()
        self._closed = True
        self._end_pass()
        self._drop_paused()
        if self._engine is not None and self._pid == os.getpid():
            self._engine.close()
        self._engine = None
        self._target.close()
        for view in self._views:
            view.close()
        for source in self._sources:
            source.numbers.close()
        self._release()

    def _release(self) -> None:
        while self._reserved:
            self._reserved.pop().release()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this loader is closed already")

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Loader holds threads and memory: it is neither copied nor pickled",
            hint="make one in each process: stores and windows can be pickled; for workers: penstock.torch.Dataset",
        )

    def __repr__(self) -> str:
        return f"<Loader: {self.samples:,} samples in {len(self):,} × {self._batches.batch_size}, {self.window!r}>"
