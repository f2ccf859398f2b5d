"""A store as input: its features settled, then episode by episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.report import count_of
from penstock._src.conversion.cameras.camera import video_lines
from penstock._src.conversion.cameras.image_pass import UnusableImage, UnusableImageFound
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.inputs.input import (
    DatasetSpec,
    EpisodeCallbacks,
    EpisodePlan,
    Input,
    InputOutcome,
    OpenOptions,
    RetryEpisode,
    State,
)
from penstock._src.conversion.inputs.store_columns import open_store_columns
from penstock._src.conversion.inputs.store_episode import EpisodeWork, block_row_bytes, stream_episode
from penstock._src.conversion.mapping.columns_by_name import SUCCESS, map_columns
from penstock._src.conversion.mapping.next_columns import CHILD_BYTES, next_features, refuse_new
from penstock._src.conversion.settings import FeatureSettings, Settings, TopicSource, without_effect, without_left_out
from penstock._src.media.video.hardware import device_notes
from penstock._src.plan.conversion_memory import (
    FETCH_MIN_BYTES,
    MemoryDemand,
    MemoryPlan,
    Reads,
    VectorDemand,
    plan_memory,
)
from penstock._src.stores.opening import open_store
from penstock._src.stores.roles import SUCCESSES
from penstock._src.stores.store import Store
from penstock._src.system import memory as process_memory
from penstock._src.system import units
from penstock._src.system.closing import on_error
from penstock.errors import ConfigError, StoreError

_EPISODE_BYTES = 400  # one episode in the list of them
_RETRIES = 8  # an image that only decoding shows to be broken is found when it is sampled
_MOST_NOTES = 20
_EMPTY = "episode without a usable row"
_NOT_ASKED = (
    "timeline",
    "time",
    "missing",
    "tolerance",
    "episodes",
    "split_episodes",
)  # a store has its rows and episodes
_USUAL = Settings()


def open_store_input(path: Path, options: OpenOptions, first_spec: DatasetSpec | None = None) -> StoreInput:
    """Open and plan any store; after the first input of a data set, with what that one settled."""
    return _planned(open_store, path, options, first_spec)


def open_hdf5_input(path: Path, options: OpenOptions, first_spec: DatasetSpec | None = None) -> StoreInput:
    """Open and plan an HDF5 file; where features are configured, what is wrong with other columns is no matter."""
    from penstock._src.stores.hdf5.store import open_hdf5

    settings = options.settings if first_spec is None else first_spec.settings
    by_name = not settings.features if first_spec is None else first_spec.by_name
    topics = {source.topic.strip("/") for feature in settings.features.values() for source in feature.sources}
    hdf5 = settings.hdf5
    opener = partial(
        open_hdf5,
        columns=None if by_name else sorted(topics.difference(SUCCESSES)) or None,
        channels=hdf5.channels,
        pixels=hdf5.pixels,
        mask=hdf5.mask,
        allow_external=hdf5.allow_external,
        defers=True,
    )
    return _planned(opener, path, options, first_spec)


def _planned(
    opener: Callable[[Path], Store], path: Path, options: OpenOptions, first_spec: DatasetSpec | None
) -> StoreInput:
    store = opener(path)
    with on_error(store.close):
        return StoreInput(store, options, first_spec)


class StoreInput(Input):
    """The state after an episode: the number of the next one, its images known to be unusable, and what was lost."""

    def __init__(
        self,
        store: Store,
        options: OpenOptions,
        first_spec: DatasetSpec | None = None,
    ) -> None:
        settings = options.settings if first_spec is None else first_spec.settings
        self.path, self.size_bytes = store.path, store.size_bytes
        self._store, self._options = store, options
        lengths = np.maximum(np.diff(store.episode_starts) - 2 * settings.sample_drop, 0)
        self._lengths = -(-lengths // (settings.stride or 1))
        if not self._lengths.any():
            raise StoreError(f"{self.path} has no rows", hint="it was recorded empty; leave it out")
        self.fps = _rate(store, settings, options)
        notes = self._rate_notes(settings, _USUAL if first_spec is not None else settings)
        notes += self._lost_notes()
        self.by_name = not settings.features if first_spec is None else first_spec.by_name
        if self.by_name and first_spec is None:
            settings, found_notes = self._by_name(settings)
            notes += found_notes
        features = without_left_out(settings.features, settings, self.path, strict=first_spec is None)
        settings = replace(settings, features=features)
        first = int(np.flatnonzero(self._lengths)[0])
        self._columns = open_store_columns(store, int(store.episode_starts[first]), settings)
        if self.by_name and first_spec is not None:
            notes += self._like_first(settings, first_spec)
        notes += self._success_notes(settings)
        unknown = settings.robot_type == _USUAL.robot_type
        self.robot_type = store.robot_type if unknown and store.robot_type else settings.robot_type
        self.settings = replace(settings, fps=self.fps, robot_type=self.robot_type)
        self.features = self._columns.features()
        self.codecs = {camera.key: camera.stored_as for camera in self._columns.cameras}
        self.encodes = any(not camera.copied for camera in self._columns.cameras)
        for camera in self._columns.cameras:
            camera.refuse_encoding(self.path)
        self.memory = self._plan_memory()
        notes += device_notes(self.codecs.values(), settings.encoding.device)
        self.notes = (*store.notes, *notes)
        process_memory.give_back_freed()

    def _by_name(self, settings: Settings) -> tuple[Settings, Sequence[str]]:
        """The settings with the features found by name, and notes."""
        mapped = map_columns(self._store, with_depth=settings.depth != "off")
        features = dict(mapped.features)
        if SUCCESS not in features and any(success is not None for success in self._successes()):
            features[SUCCESS] = FeatureSettings((TopicSource("success"),))
        settings = replace(settings, features=features)
        after = next_features(self._store, settings, self._options)
        return replace(settings, features=features | after.features), (*mapped.notes, *after.notes)

    def _like_first(self, settings: Settings, first_spec: DatasetSpec) -> Sequence[str]:
        """Notes on what the first input of the data set left out; refused where this store needs it."""
        after = next_features(self._store, settings, self._options)
        refuse_new(self.path, after, settings, first_spec.source)
        if after.features:
            return [f"left out, as {first_spec.source} has none: {', '.join(after.features)}"]
        return after.notes

    def _rate_notes(self, settings: Settings, requested: Settings) -> list[str]:
        """`requested`: the user's own settings, or the defaults where the first input has chosen them."""
        store, fps = self._store, self.fps
        notes: list[str] = []
        if store.fps is not None and store.fps_from:
            same = abs(store.fps / (settings.stride or 1) - fps) < 1e-6
            taken = "" if same else f", taken as {fps} fps as requested: no row is left out or added"
            notes.append(f"{store.fps_from}: {store.fps:g} rows a second{taken}")
        notes += without_effect(requested, _NOT_ASKED, store.plural)
        notes += self._too_long(int(self._lengths.max()) // fps)
        empty = int(np.count_nonzero(self._lengths == 0))
        if empty:
            notes.append(f"{empty:,} of {len(self._lengths):,} episodes have no rows")
        return notes

    def _lost_notes(self) -> list[str]:
        lost = self._store.lost
        if not lost:
            return []
        group, count = next(iter(lost)), len(lost)
        some = f"{sum(lost.values()):,} rows of {count:,} demonstration{'s' if count > 1 else ''} without actions"
        if self._options.strict:
            raise StoreError(
                f"{self.path}: {some}, the first is {group}",
                hint="without --strict they are left out and counted (exit code 3)",
            )
        return [f"lost: {some}, the first is {group}"]

    def _successes(self) -> list[bool | None]:
        return [self._store.success(position) for position in range(self._store.episodes)]

    def _success_notes(self, settings: Settings) -> list[str]:
        successes = self._successes()
        known = [success for success in successes if success is not None]
        count, unknown = len(successes), len(successes) - len(known)
        if self._columns.has_success:
            text = f"{SUCCESS} is true in the last row of {sum(known):,} of {count:,} episodes"
            return [text + (f"; nothing is known of {unknown:,}, which count as failed" if unknown else "")]
        if known and self.by_name and SUCCESS not in settings.features:
            return [f"success of {len(known):,} episodes left out: the data set was started without {SUCCESS}"]
        return []

    def close(self) -> None:
        self._store.close()

    def next_episode(self, state: State | None) -> EpisodePlan | None:
        state = self._past_empty(state or _first_state())
        position = state["next"]
        if position >= self._store.episodes:
            return None
        task = self.settings.task
        if task == _USUAL.task:
            task = self._store.task(position) or task
        return EpisodePlan(len(self._rows(state)), task, state)

    def write(self, plan: EpisodePlan, episode: EpisodeWriter, callbacks: EpisodeCallbacks) -> State:
        state: State = plan.detail
        position, count = state["next"], self._store.episodes
        span_bytes = range(self.size_bytes * position // count, self.size_bytes * (position + 1) // count)
        try:
            stream_episode(self._work(state, span_bytes), episode, callbacks)
        except UnusableImageFound as problem:
            raise RetryEpisode(self._without(state, problem.images)) from None
        return {**state, "next": position + 1, "bad": {}, "attempts": 0}

    def finish(self, state: State | None) -> InputOutcome:
        state = self._past_empty(state or _first_state())
        lost = {"demonstration without actions": len(self._store.lost)} if self._store.lost else {}
        empty = Counter({_EMPTY: len(self._store.empty)} if self._store.empty else {})
        return InputOutcome({**lost, **(empty + Counter(state["lost"]))}, tuple(state["notes"]))

    def describe(self) -> dict[str, Any]:
        return self._columns.describe()

    def lines(self) -> list[tuple[str, str]]:
        store, rows = self._store, int(self._lengths.sum())
        known_by = f" · {store.episodes_from}" if store.episodes_from else ""
        lines = [
            (self.path.name + " ", f"{units.format_size(self.size_bytes)} · {store.kind}"),
            ("rows", f"{rows:,} at {self.fps} fps · {count_of(store.episodes, 'episode')}{known_by}"),
        ]
        conversions = [camera.conversion(rows) for camera in self._columns.cameras]
        lines += video_lines(conversions, self.settings.encoding, self.memory.threads)
        for column in self._columns.numbers:
            names = " + ".join(part.name for part in column.parts)
            lines.append(("numbers", f"{column.key} {column.size} ← {names}"))
        return lines

    def _work(self, state: State, span_bytes: range) -> EpisodeWork:
        rows = self._rows(state)
        success = self._columns.has_success and bool(self._store.success(state["next"]))
        return EpisodeWork(
            self,
            rows,
            span_bytes,
            partial(self._read_numbers, rows, success),
            self._columns.cameras,
            row_number=self._store.row_number,
        )

    def _read_numbers(
        self, rows: NDArray[np.int64], success: bool, start: int, stop: int, episode: EpisodeWriter
    ) -> tuple[dict[str, Any], None]:
        """The numbers of an episode, and whether it succeeded."""
        some = rows[start:stop]
        columns: dict[str, Any] = {each.key: each.read(self._store, some) for each in self._columns.numbers}
        if self._columns.has_success:
            columns[SUCCESS] = np.zeros((stop - start, 1), np.bool_)
            columns[SUCCESS][-1] = success and stop == len(rows)
        return columns, None

    def _rows(self, state: State) -> NDArray[np.int64]:
        """The rows that are left when those with unusable images are gone."""
        position = state["next"]
        begin, end = (int(each) for each in self._store.episode_starts[position : position + 2])
        drop, stride = self.settings.sample_drop, self.settings.stride or 1
        rows = np.arange(begin + drop, max(end - drop, begin + drop), stride, dtype=np.int64)
        return rows[~np.isin(rows, [row for bad in state["bad"].values() for row in bad])]

    def _past_empty(self, state: State) -> State:
        """Beyond episodes without a usable row, which are counted."""
        while state["next"] < self._store.episodes and not len(self._rows(state)):
            lost = dict(Counter(state["lost"]) + Counter([_EMPTY]))
            note = f"{self._store.episode_label(state['next'])} has no usable row and is left out"
            state = {**state, "next": state["next"] + 1, "bad": {}, "attempts": 0, "lost": lost}
            state["notes"] = _with_note(state["notes"], note)
        return state

    def _without(self, state: State, unusable: Sequence[UnusableImage]) -> State:
        """The state in which broken images are left out, and counted."""
        text = f"{unusable[0].name}: row {self._store.row_number(unusable[0].number):,}: {unusable[0].reason}"
        last = state["attempts"] >= _RETRIES
        if self.settings.bad_messages == "reject" or self._options.strict or last:
            drop = "without --strict penstock" if self._options.strict else "bad_messages=drop"
            hint = f"{drop} leaves their rows out and counts them (exit code 3)"
            raise StoreError(
                f"{self.path}: {len(unusable)} unusable images, the first: {text}", hint=None if last else hint
            )
        bad = {key: set(rows) for key, rows in state["bad"].items()}
        lost: Counter[str] = Counter(state["lost"])
        fresh = {(each.owner, each.number): each for each in unusable if each.number not in bad.get(each.owner, ())}
        for each in fresh.values():
            bad.setdefault(each.owner, set()).add(each.number)
            lost[f"unusable image: {each.name}"] += 1
        label = self._store.episode_label(state["next"])
        note = f"{label}: {len(fresh)} unusable images are left out with their rows, the first: {text}"
        return {
            **state,
            "attempts": state["attempts"] + 1,
            "bad": {key: sorted(rows) for key, rows in bad.items()},
            "lost": dict(lost),
            "notes": _with_note(state["notes"], note),
        }

    def _plan_memory(self) -> MemoryPlan:
        columns, store, options = self._columns, self._store, self._options
        two_rows = 2 * block_row_bytes(columns.cameras)
        largest = max((camera.source.largest_bytes for camera in columns.cameras), default=0)
        passing = store.scratch_bytes(columns.names()) + max(0, two_rows - max(FETCH_MIN_BYTES, 2 * largest))
        child = CHILD_BYTES if options.inputs > 1 else 0
        demand = MemoryDemand(
            cameras=tuple(camera.demand for camera in columns.cameras),
            vectors=tuple(VectorDemand(each.key, each.size, each.dtype) for each in columns.numbers),
            rows=int(self._lengths.max()),
            index_bytes=store.reading_bytes + child + _EPISODE_BYTES * store.episodes,
            reads=Reads(largest, 0, passing),
            chunk_size=self.settings.rosbag.chunk_size,
            threads=options.threads,
            # The rows of a flush are read at once: as they lie in the store, and joined to one column.
            row_copy_bytes=max((each.passing_bytes for each in columns.numbers), default=0),
            rows_before=options.rows_before,
            input_bytes=self.size_bytes if columns.cameras else 0,  # numbers need no buffers
            rows_after=options.rows_before + int(self._lengths.sum()),
            episodes=options.inputs * store.episodes,
            field_part="[0:1000]",
        )
        return plan_memory(demand, options.budget_bytes)


def _rate(store: Store, settings: Settings, options: OpenOptions) -> int:
    """Rows per second, as given or as the store says; stores have no times to measure it by."""
    stride = settings.stride or 1
    if options.settings.fps is not None:
        return options.settings.fps
    if store.fps is not None:
        rate = store.fps / stride
        if rate < 1 or abs(rate - round(rate)) > 1e-6:
            raise ConfigError(
                f"{store.path}: {store.fps_from or store.kind} says {store.fps:g} rows a second, which makes {rate:g} "
                f"with stride {stride}: LeRobot takes whole rates",
                hint="give fps=30 (or what is meant)",
            )
        return round(rate)
    if settings.fps is not None:
        return settings.fps
    raise ConfigError(f"{store.path} does not say how many rows a second has", hint=f"give {store.fps_hint}")


def _first_state() -> State:
    return {"next": 0, "bad": {}, "attempts": 0, "lost": {}, "notes": []}


def _with_note(notes: list[str], note: str) -> list[str]:
    """Bounded, since the state lies beside every episode of the journal."""
    if len(notes) > _MOST_NOTES:
        return notes
    return [*notes, note if len(notes) < _MOST_NOTES else "and further ones, which are counted above"]
