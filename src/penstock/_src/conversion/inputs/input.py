"""What a conversion reads — recordings, HDF5 files, data sets — behind one interface."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._src import formats
from penstock._src.conversion.settings import Settings, plain_settings
from penstock._src.formats.format import RECORDING_INPUT, load
from penstock._src.plan.conversion_memory import MemoryPlan
from penstock._src.system import config
from penstock._src.system.closing import Closing, on_error
from penstock._src.system.files import as_path
from penstock.errors import DataSetError, PenstockError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.commit.episode import EpisodeWriter
    from penstock._src.lerobot.features import Feature

RECORDING = "recording"
"""The kind of every recording; opening it shows which format it has. A store has the kind of its format."""
_EXACT_SECONDS = 2048  # LeRobot keeps times as float32 and compares them within 0.1 ms, which fails from here on
LOOKED_AT = 8
"""Inputs that are opened to find a whole one."""
State = dict[str, Any]  # JSON-safe: it lies in the journal beside the episode after which it holds


class InputRef:
    """One thing to convert. Of a fleet there are a hundred thousand, so the path is kept as a text."""

    __slots__ = ("_path", "kind")

    def __init__(self, kind: str, path: Path | str) -> None:
        self.kind = kind
        self._path = str(path)

    @property
    def is_recording(self) -> bool:
        return self.kind == RECORDING

    @property
    def path(self) -> Path:
        return as_path(self._path)

    @property
    def name(self) -> str:
        return os.path.basename(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputRef) and (self.kind, self._path) == (other.kind, other._path)

    def __hash__(self) -> int:
        return hash((self.kind, self._path))


class OpenOptions(NamedTuple):
    """What an input is opened with: the settings, the memory it may plan with, and how it treats damage."""

    settings: Settings
    budget_bytes: int
    threads: int
    strict: bool = False
    compared_bytes: int | None = None  # of columns that may be derived from others; None: all of them
    check_stop: Callable[[], None] | None = None  # called now and then while an input is opened; may raise to end it
    rows_before: int = 0  # rows that the data set has already
    inputs: int = 1  # of the whole job


class EpisodePlan(NamedTuple):
    """The next episode of an input; `detail` is the input's own."""

    rows: int
    task: str | None  # None: the rows name their tasks
    detail: Any = None


class EpisodeCallbacks(NamedTuple):
    """The callbacks for the progress of an episode; both may raise to stop it."""

    on_moved: Callable[[int], None]  # bytes of the input read so far, from its beginning
    on_rows: Callable[[int], None]  # rows of this episode flushed so far


class InputOutcome(NamedTuple):
    """What became of one input, once it is through."""

    lost: Mapping[str, int]
    notes: tuple[str, ...] = ()
    alignment: Mapping[str, Any] | None = None


class RetryEpisode(Exception):
    """The episode cannot be written as planned: it is dropped, and planned anew from `state`."""

    def __init__(self, state: State) -> None:
        super().__init__("the episode has to be planned again")
        self.state = state


class DatasetSpec(NamedTuple):
    """What the first input settles for all that follow, in this process or another."""

    source: str
    settings: Settings
    fps: int
    signature: list[Any]
    features: Mapping[str, Any]
    kind: str
    by_name: bool = False  # no features are configured: names and contents decide on every input's columns

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "settings": plain_settings(self.settings), "features": dict(self.features)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> DatasetSpec:
        return DatasetSpec(**{**tree, "settings": config.build(Settings, tree["settings"])})


class Input(Closing, ABC):
    """One opened input, planned to the row: it gives episodes one after the other.

    `next_episode(state)` and `finish(state)` depend on `state` and on the file alone, so that a conversion which was
    killed goes on from the state in its journal as if nothing had happened.
    """

    kind: str  # that of what was found, set by `open_input`
    path: Path
    size_bytes: int
    fps: int
    settings: Settings  # with everything filled in that the input settles
    features: tuple[Feature, ...]
    codecs: Mapping[str, str]  # by camera: what its frames are stored as
    memory: MemoryPlan
    notes: tuple[str, ...] = ()
    robot_type: str | None = None
    by_name = False  # whether no features are configured
    is_whole = True  # False where it was found damaged when it was opened
    encodes = False  # whether images are encoded, so that more cores help

    @abstractmethod
    def close(self) -> None:
        """Give back files."""

    @abstractmethod
    def next_episode(self, state: State | None) -> EpisodePlan | None:
        """The episode after the one that left `state` (None: the first); None when there is no more."""

    @abstractmethod
    def write(self, plan: EpisodePlan, episode: EpisodeWriter, callbacks: EpisodeCallbacks) -> State:
        """Stream the episode's rows and frames, without committing; the state after it. May raise `RetryEpisode`."""

    @abstractmethod
    def finish(self, state: State | None) -> InputOutcome:
        """What was lost and noted, after the last episode left `state`."""

    def resumed(self, state: State) -> State:
        """A state out of the journal of a process that ended, made ready for this one."""
        return state

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Where each feature comes from and what becomes of it, for the report."""

    @abstractmethod
    def lines(self) -> list[tuple[str, str]]:
        """What will happen, for people: (label, text)."""

    def signature(self) -> list[Any]:
        """What must be the same in every input of a data set, as JSON keeps it."""
        return [
            [each.key, each.dtype, list(each.shape), list(each.names or ()), self.codecs.get(each.key, "")]
            for each in self.features
        ]

    def _too_long(self, seconds: float, remedy: str = "") -> list[str]:
        """The note on the longest episode, where LeRobot does not resolve its times."""
        if seconds <= _EXACT_SECONDS:
            return []
        return [
            f"an episode of {int(seconds):,} s is longer than the 2,048 s that LeRobot's float32 times resolve to its "
            f"0.1 ms: read it with LeRobotDataset(..., tolerance_s=1e-3){remedy}"
        ]

    def spec(self) -> DatasetSpec:
        features = self.describe()
        return DatasetSpec(str(self.path), self.settings, self.fps, self.signature(), features, self.kind, self.by_name)

    def check_fits(self, first: DatasetSpec) -> None:
        """Refuse an input that would make another data set than the first one began."""
        if self.fps == first.fps and self.signature() == first.signature:
            return
        raise DataSetError(
            f"{self.path} does not fit the data set begun with {first.source}: {self._difference(first)}",
            hint=self._remedy(first),
        )

    def _remedy(self, first: DatasetSpec) -> str:
        one, other = ({entry[0] for entry in each} for each in (self.signature(), first.signature))
        if one == other:
            return "convert it on its own, or set fps, resize, fields and names in a configuration"
        names = ",".join(sorted(one ^ other))
        return f"start anew with 'leave_out=[{names}]', which takes what both have, or convert it on its own"

    def _difference(self, first: DatasetSpec) -> str:
        if self.fps != first.fps:
            return f"{self.fps} fps against {first.fps}"
        own, expected = ({entry[0]: entry for entry in each} for each in (self.signature(), first.signature))
        if lacking := [key for key in expected if key not in own]:
            return f"it has no {lacking[0]}"
        if more := [key for key in own if key not in expected]:
            return f"it also has {more[0]}"
        for key, entry in own.items():
            words = ("dtype", "shape", "names", "codec")
            for name, here, there in zip(words, entry[1:], expected[key][1:], strict=True):
                if here != there:
                    return f"the {name} of {key} is {here} against {there}"
        return "its features are in another order"


def first_whole(refs: Sequence[InputRef], options: OpenOptions) -> Input | None:
    """The first of these that opens without a loss, for a data set whose first input is damaged: what that one lacks
    would be missing in all."""
    for ref in refs[:LOOKED_AT]:
        try:
            source = open_input(ref, options)
        except PenstockError:
            continue  # its own turn says why
        if source.is_whole:
            return source
        source.close()
    return None


def _opener(ref: InputRef) -> Callable[..., Input]:
    if ref.is_recording:
        return load(RECORDING_INPUT)  # type: ignore[no-any-return]
    of = formats.get(ref.kind)
    if of.not_converted:
        raise UsageError(
            f"{ref.path} is {of.noun}, which is not converted: {of.not_converted}",
            hint=f"it is loaded as it is: penstock.open({str(ref.path)!r})",
        )
    return of.load("convert")  # type: ignore[no-any-return]


def open_input(ref: InputRef, options: OpenOptions, first_spec: DatasetSpec | None = None) -> Input:
    """Open and plan one input; `first_spec` describes the data set that the first input began."""
    opened: Input = _opener(ref)(ref.path, options, first_spec)
    opened.kind = ref.kind
    if first_spec is not None:
        with on_error(opened.close):
            opened.check_fits(first_spec)
    return opened
