"""`MultimodalReplayBuffer`: transitions of HDF5 files for offline RL; numbers in memory, images read when sampled.

buffer = MultimodalReplayBuffer(action_dim=4, joint_dim=16, max_size=int(1e6))
buffer.load_from_hdf5("offline_dataset.hdf5")
left, right, whole, joint, action, *following, reward, not_done = buffer.sample(256)
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._src.load import settings
from penstock._src.load.choose_engine import ENGINES
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.engine.source import ImageSize, Shaping
from penstock._src.load.memory_split import ENGINE_BYTES, LIBRARIES_BYTES, TABLE_SHARE, engine_bytes
from penstock._src.load.replay.async_buffer import AsyncSampleBuffer
from penstock._src.load.replay.batches import ReplayBatches
from penstock._src.load.replay.file import ReplayFile, load_file, load_text, moments
from penstock._src.load.replay.options import ReplayOutput, paths_for, replay_request, seed_for
from penstock._src.profile.record.steps import LoaderPass, this_thread
from penstock._src.stores.hdf5.guard import is_guard_fork
from penstock._src.system.budget import Budget
from penstock._src.system.memory import rss_bytes
from penstock._src.system.units import format_bytes
from penstock.errors import StoreError, UsageError

__all__ = ["AsyncSampleBuffer", "MultimodalReplayBuffer"]

_ENGINE_SHARE = 4  # an engine process may take a fourth of the memory
_USUAL_BATCHES = 3 * 256  # samples whose memory is kept free when a view takes the rest


class _Forks:
    """Which fork of which process this one is: (2, 1) is the first child of the second child. Every fork is counted,
    by one thread at a time, so that no two children have the same numbers."""

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.buffers: weakref.WeakSet[MultimodalReplayBuffer] = weakref.WeakSet()
        self._count = 0
        self._lock = threading.Lock()
        os.register_at_fork(before=self._before, after_in_parent=self._lock.release, after_in_child=self._in_child)

    def _before(self) -> None:
        self._lock.acquire()
        if not is_guard_fork():  # it samples nothing, and how many there are depends on the machine
            self._count += 1

    def _in_child(self) -> None:
        self._lock.release()
        self.numbers, self._count = (*self.numbers, self._count), 0
        for buffer in list(self.buffers):
            buffer._begin_in_child(self.numbers)


_FORKS = _Forks()


class _Loaded(NamedTuple):
    """All files so far; replaced as a whole, so that a thread that samples sees one state."""

    files: tuple[ReplayFile, ...]
    ends: NDArray[np.int64]
    """Samples of the buffer up to and with each file."""

    @property
    def size(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


class MultimodalReplayBuffer:
    """Random transitions of cameras, joints, actions and rewards, sampled with replacement; a context manager.

    Columns have the usual names (`left_image`, `right_image`, `global_image`, `joint` or `qpos`, …) or those given,
    whole or their last part. `memory` bounds what the buffer holds: numbers, threads, batches that are in use, and
    the view. Any thread may sample. Which transitions come is decided by `seed`.
    """

    def __init__(
        self,
        action_dim: int,
        joint_dim: int = 16,
        max_size: int = int(1e6),
        *,
        images: Sequence[str] | None = None,
        joint: str | None = None,
        action: str | None = None,
        reward: str | None = None,
        terminal: str | None = None,
        image_size: ImageSize = (224, 224),
        exact: bool = False,
        memory: str | int | Budget = "auto",
        view: str = "off",
        threads: int | str = "auto",
        seed: int | None = 0,
        device: Any = None,
        output: str = "auto",
        engine: str = "auto",
        quiet: bool = False,
    ) -> None:
        names = {"joint": joint, "action": action, "reward": reward, "terminal": terminal}
        self._request = replay_request(action_dim, joint_dim, images, names)
        self.max_size = settings.count_for("max_size", max_size)
        self._shaping = Shaping(image_size, exact)
        self._view = settings.one_of("view", view, settings.VIEWS)
        self._threads = settings.threads_for(threads)
        self._output = ReplayOutput(settings.one_of("output", output, settings.OUTPUTS), device)
        self._quiet = quiet
        self._budget = Budget.parse(memory)
        self._engine_kind, self._engine_reason = self._choose_engine(settings.one_of("engine", engine, ENGINES))
        self._seed = seed_for(seed)
        own_bytes = engine_bytes(self._engine_kind, decodes_on_device=False)
        self._reserved = [self._budget.reserve("libraries", LIBRARIES_BYTES) if self._engine_kind == "thread"
                          else self._budget.reserve("engine process", own_bytes)]  # fmt: skip
        self._scratch = self._budget.reserve("threads", 0)
        self._loaded = _Loaded((), np.zeros(0, np.int64))
        self._left_out: tuple[str, ...] = ()
        self._engine_notes: tuple[str, ...] = ()
        self._begin(self._seed)
        self._closed = False
        self._batches = self._new_batches()
        self._feeding = LoaderPass(self)
        self._moments: tuple[int, NDArray[np.float64], NDArray[np.float64]] | None = None
        _FORKS.buffers.add(self)

    def _choose_engine(self, engine: str) -> tuple[str, str]:
        """(thread or process, why)."""
        if engine != "auto":
            return engine, "as asked"
        if not self._output.gives_tensors:
            return "thread", "for numpy batches"
        if self._budget.limit_bytes < _ENGINE_SHARE * ENGINE_BYTES:
            return "thread", f"for a process of its own would take {format_bytes(ENGINE_BYTES)} of the memory"
        return "process", "so that no thread of the buffer takes Python's lock from torch"

    def _begin(self, seed: np.random.SeedSequence) -> None:
        self._random = np.random.default_rng(seed)
        self._loading, self._sampling = threading.Lock(), threading.Lock()

    def _new_batches(self) -> ReplayBatches:
        return ReplayBatches(self._budget, self._threads, self._engine_kind == "process")

    def _begin_in_child(self, numbers: tuple[int, ...]) -> None:
        """A fork copies the generator: each child samples with one of its own, or all would sample the same. Threads of
        the parent, and what they held, are not here."""
        self._begin(np.random.SeedSequence(self._seed.entropy, spawn_key=numbers))
        self._batches = self._new_batches()

    # Loading

    def load_from_hdf5(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        num_traj: int | None = None,
        **options: Any,
    ) -> None:
        """Add the transitions of a file, or of several: numbers are read now, images when they are sampled.

        `num_traj` limits how many transitions are taken, from the beginning. `options` are those of `penstock.open`:
        `channels="first"`, `mask="train"`, `allow_external=True`.
        """
        left = None if num_traj is None else settings.count_for("num_traj", num_traj)
        paths = paths_for(path)
        with self._loading:
            self._check_open()
            for number, each in enumerate(paths):
                if number and (left == 0 or self.size == self.max_size):
                    self._leave(paths[number:], "num_traj" if left == 0 else "max_size")
                    break
                file = self._load(each, left, options)
                left = None if left is None else left - file

    def _leave(self, paths: Sequence[Path], reason: str) -> None:
        names = ", ".join(str(each) for each in paths[:8]) + (", …" if len(paths) > 8 else "")
        text = f"not opened, because {reason} is reached: {len(paths):,} files ({names})"
        self._left_out = (*self._left_out, text)
        if not self._quiet:
            print(text)

    def _load(self, path: Path, limit: int | None, options: dict[str, Any]) -> int:
        room = self.max_size - self.size
        if room < 1:
            raise UsageError(
                f"{path}: the buffer holds max_size={self.max_size:,} transitions already, none of these would be used",
                hint=f"MultimodalReplayBuffer(…, max_size={self.max_size * 2}); it costs no memory by itself",
            )
        before_bytes = rss_bytes()
        tables = sum(file.source.numbers.in_memory_bytes for file in self._loaded.files)
        table_limit = max(self._budget.limit_bytes // TABLE_SHARE - tables, 0)
        most = room if limit is None else min(room, limit)
        file = load_file(path, self._request, self._shaping, table_limit, most, options)
        try:
            self._check_alike(file)
            self._charge(file)
            if self._engine_kind == "thread":
                file.fill()
        except BaseException:
            file.close()
            raise
        ends = np.append(self._loaded.ends, self.size + file.count)
        self._loaded = _Loaded((*self._loaded.files, file), ends)
        if not self._quiet:
            print(load_text(file, self.size, room, limit, rss_bytes() - before_bytes))
        return file.count

    def _check_alike(self, file: ReplayFile) -> None:
        if not self._loaded.files:
            return
        first = self._loaded.files[0]
        if file.image_shapes != first.image_shapes:
            channels = [[shape[0] for shape in each.image_shapes] for each in (file, first)]
            raise StoreError(
                f"images of {file.store.path} are {file.image_shapes}, those of {first.store.path} "
                f"{first.image_shapes}: files of one buffer must give the same batches",
                hint="image_size=(height, width) brings all cameras to one size" if channels[0] == channels[1] else
                "their cameras or channels are others: give each kind of file a buffer of its own",
            )  # fmt: skip

    def _charge(self, file: ReplayFile) -> None:
        """Hold the memory that the file's numbers, its threads and its view take."""
        numbers = file.source.numbers.held_bytes
        file.reservations.append(self._budget.reserve(f"numbers of {file.store.path.name}", numbers))
        self._scratch.resize(max(self._scratch.n_bytes, self._threads * file.source.scratch_bytes()))
        if self._view != "off":
            batches = sum(int(np.prod(shape)) for shape in file.image_shapes) * 2 * _USUAL_BATCHES
            held = file.attach_views(self._view, self._budget.free_bytes - batches)
            file.reservations.append(self._budget.reserve(f"views of {file.store.path.name}", held))

    # Sampling

    def sample(self, batch_size: int = 256) -> tuple[Any, ...]:
        """`batch_size` random transitions: images, joint, action, next images, next joint, reward, not_done.

        Images are uint8 (B, channels, height, width), others float32 (B, n); torch tensors where torch is installed.
        """
        if this_thread.is_ahead:
            return self._sample(batch_size)
        start_ns = self._feeding.ask()
        batch = self._sample(batch_size)
        self._feeding.take(start_ns, True)
        return batch

    def _sample(self, batch_size: int) -> tuple[Any, ...]:
        size = settings.count_for("batch_size", batch_size)
        with self._sampling:
            loaded = self._something_loaded()
            layout = lay_out(self._shapes(loaded.files[0], size))
            # The memory first: a batch that does not fit takes none, and no samples of the seed's order either.
            draw = partial(self._draw, loaded.size, size)
            return self._output.convert(self._batches.sample(loaded.files, draw, size, self._shaping, layout))

    def _draw(self, count: int, size: int) -> NDArray[np.int64]:
        return self._random.integers(0, count, size)

    def _something_loaded(self) -> _Loaded:
        self._check_open()
        if not self._loaded.size:
            raise UsageError("the replay buffer is empty", hint="buffer.load_from_hdf5('data.hdf5') first")
        return self._loaded

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this replay buffer is closed")

    def _shapes(self, file: ReplayFile, size: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """The arrays of a batch, in the order in which they are handed out."""
        images = [((size, *shape), "uint8") for shape in file.image_shapes]
        joint, one = ((size, self._request.joint_dim), "float32"), ((size, 1), "float32")
        return {
            **{f"image {number}": each for number, each in enumerate(images)},
            "joint": joint,
            "action": ((size, self._request.action_dim), "float32"),
            **{f"next image {number}": each for number, each in enumerate(images)},
            "next joint": joint,
            "reward": one,
            "not_done": one,
        }

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a replay buffer holds threads and open files: it is neither copied nor pickled",
            hint="make one in each process, or fork: a forked buffer goes on by itself",
        )

    def add(self, *_: object, **__: object) -> NoReturn:
        """Refused: what is sampled lies in files."""
        raise NotImplementedError(
            "add() is not offered: transitions are not kept in memory but read from HDF5 files. "
            "Write them to a file with h5py (observations/…, actions, rewards, terminals), close it, and call "
            "load_from_hdf5(path); docs/train/replay.md shows how"
        )

    # Asking

    @property
    def size(self) -> int:
        """Transitions that are sampled from."""
        return self._loaded.size

    def __len__(self) -> int:
        return self.size

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided while files were loaded."""
        self._engine_notes += tuple(self._batches.take_notes())
        files = (note for file in self._loaded.files for note in file.notes)
        return (*files, *self._left_out, f"engine: {self._engine_kind}, {self._engine_reason}", *self._engine_notes)

    @property
    def action_mean(self) -> Any:
        """Mean of every action dimension over all transitions in the buffer."""
        return self._output.single(self._action_moments()[0])

    @property
    def action_std(self) -> Any:
        """Standard deviation of every action dimension over all transitions in the buffer."""
        return self._output.single(self._action_moments()[1])

    def _action_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with self._sampling:
            loaded = self._something_loaded()
            if self._moments is None or self._moments[0] != loaded.size:
                self._moments = (loaded.size, *self._measured_moments(loaded.files))
            return self._moments[1:]

    def _measured_moments(self, files: Sequence[ReplayFile]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """With numbers that are read for it where the engine process has them."""
        if self._engine_kind == "thread":
            return moments(files)
        with self._budget.reserve("numbers for the mean", sum(file.source.numbers.held_bytes for file in files)):
            try:
                for file in files:
                    file.fill()
                return moments(files)
            finally:
                for file in files:
                    file.source.numbers.close()

    # The end

    def close(self) -> None:
        """Close files, end threads, give memory back; waits for a `sample` under way. More than once is fine."""
        with self._loading, self._sampling:
            if self._closed:
                return
            self._closed = True
            self._batches.close()
            for file in self._loaded.files:
                file.close()
            for reservation in (*self._reserved, self._scratch):
                reservation.release()

    def __enter__(self) -> MultimodalReplayBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.size:,} of at most {self.max_size:,} transitions"
        return f"<MultimodalReplayBuffer of {len(self._loaded.files)} files: {state}>"
