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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn

from penstock.errors import BudgetExceeded, UsageError
from penstock.load import settings
from penstock.load.choose_views import attach_views, stats_of_views
from penstock.load.chosen import Batch, Chosen, check_alike, encoded_by_all, notes_of_order, order_of
from penstock.load.crew import Crew
from penstock.load.epoch import Feed, Pass, Taking, plan_from
from penstock.load.job import Job
from penstock.load.losses import Losses
from penstock.load.resume import STATE_VERSION, resumed
from penstock.load.settings import Mix
from penstock.load.shares import TABLE_SHARE, share_out
from penstock.load.slots import Ring, lay_out
from penstock.load.source import ImageSize, Normalize, Shaping, sources_of
from penstock.load.subject import Setup, describe
from penstock.load.tables import table_bytes
from penstock.load.target import Running, target_for
from penstock.load.view import View
from penstock.load.window import Sampling
from penstock.plan.load_plan import LoadPlan
from penstock.profile.loader_info import LoaderInfo
from penstock.profile.record.loader_pass import loader_id
from penstock.profile.record.registry import AccessPath, register, unregister
from penstock.stores.store import Store
from penstock.system.budget import Budget, Reservation
from penstock.system.units import format_bytes

_INDEX_BYTES_PER_ROW = 8  # of one picture column: offset and size of a packet
_ENDED = "this pass has ended: another one of the same loader was begun, its place was set, or it was closed"


class Loader:
    """Batches of samples, prepared by threads ahead of the training step; a context manager.

    `batch_size` is the global one: with `shard=(rank, world)` each process yields `batch_size / world` samples of every
    global batch. `memory` bounds everything that the loader holds beside the interpreter; what slots, threads and
    numbers leave of it is for the view. `notes` tells what was decided; `stats()` what happened. `plan`
    (`penstock.plan_loading`) decides batch and image size, memory, view, threads and prefetch.
    """

    def __init__(
        self,
        store: Store | Mix,
        window: Sampling | None = None,
        batch_size: int = 64,
        image_size: ImageSize = (224, 224),
        memory: str | int | Budget = "2GiB",
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
        plan: LoadPlan | None = None,
    ) -> None:
        self._asked = {name: value for name, value in locals().items() if name not in ("self", "plan")}  # for `variant`
        if plan is not None:
            settings.check_planned(plan.loader_options, self._asked, Loader.__init__)
            self._asked.update(plan.loader_options)
            batch_size, image_size, memory = (self._asked[name] for name in ("batch_size", "image_size", "memory"))
            view, threads, prefetch = (self._asked[name] for name in ("view", "threads", "prefetch"))
        self._mix = settings.mix_for(store)
        self.window = settings.window_for(window)
        skips = settings.one_of("on_error", on_error, ("raise", "skip")) == "skip"
        most_skipped = settings.rate_for(max_skip_rate)
        self._shard = settings.shard_for(shard)
        self._hold_nothing()
        self._pid = os.getpid()
        self._guard = (self._pid, threading.RLock())
        shaping = Shaping(image_size, exact, resize, dtype, normalize)
        for each in self._mix.stores:
            shaping.check_names(each)
        self._target = target_for(device, output, settings.gpu_decode_for(gpu_decode, view), shaping)
        self._budget, ruled_by = settings.budget_for(memory)
        self.notes += (f"memory: {ruled_by}",) if ruled_by else ()
        self._limit_bytes = self._budget.free_bytes  # others may hold a part of a budget that is shared
        bound = [self.window.bind(each) for each in self._mix.stores]
        tables_bytes = self._limit_bytes // TABLE_SHARE
        self._sources = sources_of(bound, self._target.shaping, tables_bytes, is_mix=isinstance(store, Mix))
        check_alike(self._sources)
        self._order = order_of(self._mix, [each.bound.count for each in self._sources], shuffle, seed)
        self._batches = settings.batches_for(self._total, batch_size, drop_last, self._shard)
        self._losses = Losses(self._batches, skips, most_skipped)
        self._encoded = encoded_by_all(self._sources, self._target.keeps_encoded)
        self._share_out(self._threads(threads), prefetch)
        try:
            self._attach(view)
        except BaseException:
            self._release()
            raise
        self._stand_at_the_beginning()
        register(self)

    def _hold_nothing(self) -> None:
        """So that a loader whose making fails can be let go as any other."""
        self.notes: tuple[str, ...] = ()
        self._reserved: list[Reservation] = []
        self._views: list[View] = []
        self._pass: Running | None = None  # the user is within an epoch of it
        self._rest: Running | None = None  # made ahead, for the epoch that follows
        self._closed = False

    def _stand_at_the_beginning(self) -> None:
        self._crew: Crew | None = None
        self._ring: Ring | None = None
        self.epoch = 0
        self._position = 0
        self._resumes = False
        self._turn: object = None  # of the iterator that was made last
        self._counts = {"batches": 0, "view_hits": 0, "pictures_made": 0}

    # Sharing out

    @property
    def _total(self) -> int:
        return int(self._order.count)

    def _threads(self, asked: int | str) -> int:
        if asked == "auto" and all(self._encoded(column) for source in self._sources for column in source.pictures):
            return 1  # bytes are only moved, and each thread more takes Python's lock from the training step
        return settings.threads_for(asked)

    def _share_out(self, threads: int, prefetch: int | str) -> None:
        world = self._shard.world
        own = min(self._batches.batch_size // world, -(-self._total // world))  # a batch larger than all there is
        self._layout = lay_out(self._sources[0].shapes(own, without=self._encoded))
        numbers = sum(
            min(table_bytes({o.column: s.store.column(o.column) for o in s.number_outputs}.values(), s.store.rows),
                s.numbers.held_bytes)
            for s in self._sources
        )  # fmt: skip
        pictures = sum(len(source.pictures) * source.store.rows for source in self._sources)
        slots = None if prefetch == "auto" else settings.slots_for(prefetch)
        self.shares = share_out(
            self._limit_bytes,
            threads=threads,
            slots=slots,
            slot_bytes=self._target.slot_bytes(self._layout.n_bytes),
            thread_bytes=max(source.scratch_bytes() for source in self._sources),
            table_bytes=numbers,
            index_bytes=min(pictures * _INDEX_BYTES_PER_ROW, self._limit_bytes // 8),
            encoded_bytes=max(source.encoded_bytes(own, self._encoded) for source in self._sources),
            budget=self._budget,
        )
        self._reserved.append(self._budget.reserve("loader", self.shares.fixed_bytes))
        if self.shares.threads < threads:
            self.notes += (f"memory: {self.shares.threads} of {threads} threads, for each holds "
                           f"{format_bytes(self.shares.thread_bytes)}",)  # fmt: skip
        ring = f"{self.shares.slots} slots of {format_bytes(self.shares.slot_bytes)} for batches"
        self.notes += (f"threads: {self.shares.threads}, {ring}", *notes_of_order(self._order))
        self.notes += tuple(note for source in self._sources for note in source.describe())

    def _attach(self, choice: str | Mapping[str, View]) -> None:
        if not isinstance(choice, Mapping):
            settings.one_of("view", choice, settings.VIEWS)
        if any(self._encoded(column) for column in self._sources[0].pictures):
            self.notes += ("pictures are decoded on the device: no view is made", *self._target.notes)
            return
        self._views, notes = attach_views(self._sources, choice, self.shares.left_bytes)
        held = sum(view.n_bytes for view in self._views if view.path is None)
        self._reserved.append(self._budget.reserve("views", min(held, self._budget.free_bytes)))
        self.notes += (*notes, *self._target.notes)

    # The order

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self._batches)

    @property
    def samples(self) -> int:
        """Samples of one epoch, of all shards."""
        return self._total

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
        epoch, position = resumed(state, self.state_dict(), self._total)
        self._end_pass()
        self.epoch, self._position, self._resumes = epoch, position, True

    # Passing

    def __iter__(self) -> Iterator[Batch]:
        self._check_open()
        self._end_pass()
        if self._position and not self._resumes:  # the pass before was left in the middle
            self.epoch, self._position = self.epoch + 1, 0
        self._turn = turn = object()
        return Taking(self._batches_of_epoch(turn))

    def _batches_of_epoch(self, turn: object) -> Generator[Batch, None, None]:
        if self._turn is not turn:
            raise UsageError(_ENDED)
        own = self._start_pass(turn)
        try:
            handed = own.begin(self.epoch, self)
            while self._turn is turn:
                found = handed.next()
                with self._placing():
                    if self._turn is not turn:
                        break
                    if found is None:
                        own.rest(self.epoch + 1, end_is_due=False)
                        self.epoch, self._position, self._resumes = self.epoch + 1, 0, False
                        return
                    job, batch = found
                    self._count(job)
                    kept = self._losses.without(job, batch)
                    self._position, self._resumes = job.after, False  # not before: what is refused was not handed out
                    if job.is_last:
                        own.rest(self.epoch + 1, end_is_due=True)  # not all loops ask whether there is more
                del job, batch, found
                if kept is not None:
                    yield kept
                    del kept
        finally:
            if self._turn is turn:
                self._end_pass()
        raise UsageError(_ENDED)

    def _placing(self) -> threading.RLock:
        """Held where a pass begins or ends, and where the place in the order changes: any thread may end a pass."""
        if self._guard[0] != os.getpid():
            self._guard = (os.getpid(), threading.RLock())  # a thread of the parent may have held it at the fork
        return self._guard[1]

    def _start_pass(self, turn: object) -> Running:
        with self._placing():
            if self._turn is not turn or self._closed:
                raise UsageError(_ENDED)  # meanwhile, by another thread
            rest, self._rest = self._rest, None
            if rest is not None and not rest.rests_at(self.epoch, self._position):
                rest.close()
                rest = None
            if self._crew is None or self._pid != os.getpid():
                self._begin_work()
            self._pass = rest if rest is not None else self._new_pass()
            return self._pass

    def _new_pass(self) -> Running:
        crew, ring = self._crew, self._ring
        assert crew is not None and ring is not None
        plan = plan_from(self.epoch, replace(self._batches, start=self._position), self._batches)
        grow = weakref.WeakMethod(self._one_more_slot)  # its threads know the pass, and must not know the loader
        feed = Feed(plan, Chosen(self._order, self._sources), ring, crew, self._encoded)
        feed.ledger.begin(self.epoch)  # before its thread starts: nothing of this epoch is made ahead
        return Running(Pass(feed, grow), self._target)

    def _drop_rest(self) -> None:
        """Give up what was made ahead of an epoch that has not begun."""
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.close()

    def _begin_work(self) -> None:
        for source in self._sources:
            source.numbers.fill()
        ring = Ring(self._layout, self.shares.slots, self._target.slot_memory)
        # Last and together: Ctrl-C may come in between, and a child must not take its parent's for its own.
        self._crew, self._ring, self._pid = Crew(self.shares.threads), ring, os.getpid()

    def _one_more_slot(self) -> None:
        """All slots are in the hands of the user's code: where there is memory for one more, it is made."""
        ring = self._ring
        if ring is None:
            raise UsageError(_ENDED)  # closed meanwhile
        count, slot = len(ring.slots), format_bytes(self.shares.slot_bytes)
        try:
            self._reserved.append(self._budget.reserve("slots of batches that are kept", self.shares.slot_bytes))
        except BudgetExceeded as error:
            raise BudgetExceeded(
                f"all {count} batches of this loader are still held by your code, and "
                f"{format_bytes(self._budget.limit_bytes)} hold no further one of {slot}",
                size=error.size,
                limit=error.limit,
                hint="copy what you keep (array.copy(), tensor.clone()), or give a larger memory=…",
            ) from error
        ring.add()

    def _end_pass(self) -> None:
        with self._placing():
            self._turn = None
            own, self._pass = self._pass, None  # first: one who waits for a batch must not take it for the epoch's end
            if own is not None and own.is_at_rest:
                self._rest = own
                return
        if own is not None:
            own.close()

    # What happened

    @property
    def is_full(self) -> bool:
        """Whether every slot holds a batch, or one in the making."""
        return self._ring is not None and self._ring.is_dry

    def _count(self, job: Job) -> None:
        self._counts["batches"] += 1
        self._counts["view_hits"] += job.hits
        self._counts["pictures_made"] += job.made

    def stats(self) -> dict[str, Any]:
        """What was handed out, lost, decoded and answered by views so far; and what memory is held."""
        if not self._closed:
            self._told = stats_of_views(self._sources)
        handed = {"samples": self._losses.kept, "skipped": self._losses.skipped}
        return {**self._counts, **handed, "memory": self.shares.describe(), "views": dict(self._told)}

    # The subject of a verdict

    @property
    def serial(self) -> int:
        """The number by which the profiler knows its passes."""
        return loader_id(self)

    def describe(self) -> LoaderInfo:
        """How it is set up, what a batch needs, and what it takes to make it again."""
        own, n_bytes = self._batches.batch_size // self._shard.world, self._layout.n_bytes
        setup = Setup(self._asked, self._mix, self.window, self._sources, self.shares, own, n_bytes, self._encoded)
        return describe(setup, text=repr(self), batches=len(self), samples=self.samples, counts=self._counts)

    def calibrate(self, ways: Sequence[str], threads: Sequence[int]) -> dict[str, AccessPath]:
        """What one picture takes by each way into a batch, measured on some fifty rows."""
        from penstock.load.calibrate import calibrate

        self._drop_rest()  # its threads would be at work beside what is measured
        return calibrate(self._sources, ways, threads, device=str(self._asked["device"] or "cpu"))

    def variant(self, **options: Any) -> Loader:
        """A loader of the same store, window and order, with some options changed."""
        self._drop_rest()  # for the same reason
        return Loader(**{**self._asked, **options})

    # The end

    def close(self) -> None:
        """End threads, give memory back; more than once is fine."""
        if self._closed:
            return
        unregister(self)
        self._told = stats_of_views(self._sources)
        self._closed = True
        self._end_pass()
        self._drop_rest()
        if self._crew is not None and self._pid == os.getpid():
            self._crew.close()
        self._crew = self._ring = None
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
            hint="make one in each process: stores and windows do travel; worker processes: penstock.torch.Dataset",
        )

    def __repr__(self) -> str:
        return f"<Loader: {self._total:,} samples in {len(self):,} × {self._batches.batch_size}, {self.window!r}>"
