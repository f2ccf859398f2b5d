"""A data set as input: features are declared, rows name their tasks; v2.1 becomes v3.0, v3.0 is moved or merged."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.report import count_of
from penstock._src.conversion.cameras.camera import video_lines
from penstock._src.conversion.cameras.declared import DeclaredCamera, plan_camera, refuse_encoding
from penstock._src.conversion.cameras.image_pass import sampled_rows
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.inputs.input import (
    DatasetSpec,
    EpisodeCallbacks,
    EpisodePlan,
    Input,
    InputOutcome,
    OpenOptions,
    State,
)
from penstock._src.conversion.inputs.store_columns import StoreCamera
from penstock._src.conversion.inputs.store_episode import EpisodeWork, stream_episode
from penstock._src.conversion.settings import Settings, without_effect, without_left_out
from penstock._src.lerobot.features import ROW_KEYS, Feature
from penstock._src.lerobot.read.frames import ends_note
from penstock._src.lerobot.read.reader import DataSet, ReadRows
from penstock._src.lerobot.read.reader import open_data_set as open_lerobot
from penstock._src.lerobot.tasks import renumber, renumbered
from penstock._src.media.image import codec, depth
from penstock._src.media.video.hardware import device_notes
from penstock._src.plan.conversion_memory import (
    FETCH_MIN_BYTES,
    CameraDemand,
    MemoryDemand,
    MemoryPlan,
    Reads,
    VectorDemand,
    plan_memory,
)
from penstock._src.stores.lerobot.episode_table import EpisodeTable
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.lerobot.survey import DataSetSurvey, survey
from penstock._src.stores.store import Column, ImageArray, ImageSource, Packets, Scratch
from penstock._src.system import memory as process_memory
from penstock._src.system import units
from penstock.errors import DataSetCorrupt, DataSetError, ImageError, PenstockError

_COPIES_OF_PAGES = 2
_COPIES_OF_IMAGES = 5
# Its rows, episodes and tasks are kept as they are.
_NOT_ASKED = (
    *("timeline", "stride", "sample_drop", "time", "missing", "tolerance"),
    *("task", "episodes", "split_episodes", "depth", "depth_range"),
)
_JPEG = frozenset({"copy", "mjpeg"})  # both are JPEG frames in a video: moved, or made by penstock


def open_data_set(path: Path, options: OpenOptions, first_spec: DatasetSpec | None) -> DataSetInput:
    """Open and plan a data set; after the first input, with what that one settled."""
    settings = options.settings if first_spec is None else first_spec.settings
    data = open_lerobot(path)
    own = {key: feature for key, feature in data.info.features.items() if key not in ROW_KEYS}
    chosen = without_left_out(own, settings, data.root, strict=first_spec is None and options.inputs == 1)
    data = data.without([key for key in own if key not in chosen])
    if first_spec is None and settings.fps is not None and settings.fps != data.info.fps:
        raise DataSetError(
            f"{data.root}: its rows are at {data.info.fps} fps, and fps={settings.fps} was requested: the rows of a "
            "data set are not resampled",
            hint=f"leave fps out, or set fps={data.info.fps}",
        )
    unknown = [name for name in settings.leave_out if name not in own]
    return DataSetInput(data, _survey(data, settings, options), options, first_spec, unknown)


class DataSetInput(Input):
    """The state after an episode: the next place in the episodes table, and how many rows had another timestamp."""

    def __init__(
        self,
        data: DataSet,
        survey: DataSetSurvey,
        options: OpenOptions,
        first_spec: DatasetSpec | None,
        unknown: Sequence[str],
    ) -> None:
        settings = options.settings if first_spec is None else first_spec.settings
        self.path, self.size_bytes, self.fps = data.root, survey.size_bytes, data.info.fps
        self._data, self._survey, self._store = data, survey, LeRobotStore.in_order(data, survey)
        own = [feature for key, feature in data.info.features.items() if key not in ROW_KEYS]
        planned = [plan_camera(feature, survey, settings) for feature in own if feature.is_camera]
        self._cameras = tuple(camera for camera, _ in planned)
        refuse_encoding(self._data, self._survey, self._cameras, settings)
        new = {camera.key: camera.feature for camera in self._cameras}
        self.features = _in_order(tuple(new.get(each.key, each) for each in own), first_spec)
        self.codecs = {camera.key: _codec(camera, first_spec) for camera in self._cameras}
        self.encodes = any(camera.encoded for camera in self._cameras)
        # The user's word, else the data set's own.
        self.robot_type = data.info.robot_type if settings.robot_type == "unknown" else settings.robot_type
        self.settings = replace(settings, fps=self.fps, robot_type=self.robot_type or settings.robot_type)
        self.notes = (
            *(note for _, notes in planned for note in notes),
            *self._more_notes(settings, first_spec, unknown),
            *device_notes(self.codecs.values(), settings.encoding.device),
        )
        self.memory = self._plan_memory(settings, options)
        process_memory.give_back_freed()

    def close(self) -> None:
        self._store.close()

    def next_episode(self, state: State | None) -> EpisodePlan | None:
        position = bisect_left(self._survey.usable, (state or {}).get("next", 0))
        if position == self._store.episodes:
            return None
        rows = int(np.diff(self._store.episode_starts[position : position + 2])[0])
        return EpisodePlan(rows, None, (position, state))

    def write(self, plan: EpisodePlan, episode: EpisodeWriter, callbacks: EpisodeCallbacks) -> State:
        position, state = plan.detail
        number = self._survey.usable[position]
        rows = self._store.begin(position, self.memory.rows_per_flush)
        stream_episode(self._work(position, number, plan.rows, rows), episode, callbacks)
        retimed, apart_s = ((state or {}).get(name, 0) for name in ("retimed", "apart_s"))
        return {"next": number + 1, "retimed": retimed + rows.retimed, "apart_s": max(apart_s, rows.apart_s)}

    def _work(self, position: int, number: int, count: int, rows: EpisodeTable) -> EpisodeWork:
        """Each camera of the episode: moved as it is, decoded and encoded, or with the rows of the table."""
        named = partial(named_error, f"{self.path}: episode {self._store.episode_number(position)}")
        sampled = frozenset(sampled_rows(range(count), self.settings.image_samples).tolist())
        kept = [each.key for each in self._cameras if not each.codec and number not in each.encoded]
        table = DeclaredRows(self._data, number, self.features, rows, kept, sampled, named)
        cameras: list[StoreCamera] = []
        moved: list[tuple[Feature, Packets]] = []
        for camera in self._cameras:
            packets = self._store.packets(camera.key, position)
            if number in camera.encoded:
                cameras.append(encoded_camera(camera, self._store.columns[camera.key], packets, table))
            elif packets is not None:
                moved.append((camera.feature, packets))
        first, total = int(self._data.episodes.first_row[number]), max(self._data.info.total_frames, 1)
        return EpisodeWork(
            self,
            np.arange(count),
            range(self.size_bytes * first // total, self.size_bytes * (first + count) // total),
            table.read,
            tuple(cameras),
            tuple(moved),
            named=named,
            strict=True,
        )

    def finish(self, state: State | None) -> InputOutcome:
        bad, state = self._survey.bad, state or {}
        lost = {"episode of a data set that cannot be used": bad} if bad else {}
        notes = [f"{count_of(bad, 'episode')} left out, the first: {self._survey.first_problem}"] if lost else []
        if retimed := state.get("retimed", 0):
            apart = f"by up to {state['apart_s']:.3g} s"
            notes.append(f"{retimed:,} rows had another timestamp than their frame, {apart}; the frame's is used")
        return InputOutcome(lost, tuple(notes))

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {each.key: each.to_json() for each in self.features}
        for tree in described.values():
            tree.pop("info", None)
        for camera in self._cameras:
            described[camera.key] = {
                "size_px": list(camera.size_px),
                "recorded_as": camera.codec or "images",
                "stored_as": camera.stored_as if camera.encoded else "copied",
            }
        return described

    def lines(self) -> list[tuple[str, str]]:
        usable = self._store.episodes
        lines = [
            (f"{self.path.name} ", f"{units.format_size(self.size_bytes)} · {self._store.kind}"),
            ("rows", f"{self._store.rows:,} at {self.fps} fps · {count_of(usable, 'episode')}"),
        ]
        if not usable:
            return lines
        conversions = [camera.conversion(self._data, usable) for camera in self._cameras]
        lines += video_lines(conversions, self.settings.encoding, self.memory.threads)
        numbers = [f"{each.key} {'×'.join(map(str, each.shape))}" for each in self.features if not each.is_camera]
        return [*lines, ("numbers", " · ".join(numbers))] if numbers else lines

    def _more_notes(self, settings: Settings, first_spec: DatasetSpec | None, unknown: Sequence[str]) -> list[str]:
        notes = without_effect(settings, _NOT_ASKED, "data sets") if first_spec is None else []
        notes += [f"leave_out: there is no {name} in it" for name in unknown if first_spec is None]
        info = self._data.info
        if first_spec is not None and info.robot_type not in (None, first_spec.settings.robot_type):
            notes.append(
                f"its robot is {info.robot_type!r}, the data set's is {first_spec.settings.robot_type!r}: "
                "a data set has one name for all"
            )
        if self._survey.undeclared:
            shown = ", ".join(self._survey.undeclared[:8])
            notes.append(f"left out, for info.json does not declare them: {shown}")
        if self._survey.derived:
            notes.append(f"{', '.join(self._survey.derived)}: derived, data files have no such column")
        usable = np.array(self._survey.usable, np.int64)
        notes += [note for key in info.video_keys if (note := ends_note(self._data, key, usable)) is not None]
        for key, stored in self._survey.recast.items():
            notes.append(f"{key} is stored as {stored} and declared as {info.features[key].dtype}, which it becomes")
        return notes

    def _plan_memory(self, settings: Settings, options: OpenOptions) -> MemoryPlan:
        survey, lengths = self._survey, self._data.episodes.length
        indexes = sum(each.index_bytes for each in survey.cameras.values())
        largest = max((each.largest_sample_bytes for each in survey.cameras.values()), default=0)
        in_table = sum(2 * survey.image_bytes.get(each.key, 0) for each in self._cameras if each.stored_as != "images")
        numbers = [VectorDemand(key, 1, "int64") for key in ROW_KEYS]
        for each in self.features:
            if each.is_text:
                numbers.append(VectorDemand(each.key, 32, "int64"))
            elif not each.is_camera:
                numbers.append(VectorDemand(each.key, math.prod(each.shape), each.dtype))
        demand = partial(
            MemoryDemand,
            cameras=tuple(_camera_demand(camera, survey) for camera in self._cameras),
            vectors=tuple(numbers),
            rows=int(max((lengths[number] for number in survey.usable), default=0)),
            index_bytes=indexes + len(lengths) * 256 + self._store.reading_bytes,
            chunk_size=settings.rosbag.chunk_size,
            threads=options.threads,
            decoded=tuple(
                _camera_demand(camera, survey)._replace(stored_as=camera.codec)
                for camera in self._cameras
                if camera.codec and (camera.encoded or camera.codec != "mjpeg")
            ),
            # The rows of a flush are there as they were read beside those that are written.
            row_copy_bytes=16 * sum(each.values for each in numbers),
            row_extra_bytes=in_table,
            rows_before=options.rows_before,
            rows_after=options.rows_before + int(sum(lengths[number] for number in survey.usable)),
            episodes=options.inputs * max(1, len(survey.usable)),
            field_part="",
        )
        # A page is held packed and unpacked; images on their way pass through Arrow's buffers and Python's.
        passing = _COPIES_OF_PAGES * survey.page_bytes
        # Frames that are decoded lie in two buffers, of one row of all cameras at least.
        decoded = [each.source.shape for each in self._cameras if each.encoded and each.codec]
        passing += max(0, 2 * sum(height * width * 3 for height, width, _ in decoded) - FETCH_MIN_BYTES)
        first = plan_memory(demand(reads=Reads(largest, passing_bytes=passing)), options.budget_bytes)
        passing += _COPIES_OF_IMAGES * first.rows_per_flush * sum(survey.image_bytes.values())
        return plan_memory(demand(reads=Reads(largest, passing_bytes=passing)), options.budget_bytes)


def _survey(data: DataSet, settings: Settings, options: OpenOptions) -> DataSetSurvey:
    drops = settings.bad_episodes == "drop"
    try:
        return survey(data, drop=drops and not options.strict)
    except DataSetCorrupt as error:
        if drops:
            error.hint = "without --strict such episodes are left out and counted (exit code 3)"
        raise


def _in_order(features: tuple[Feature, ...], first_spec: DatasetSpec | None) -> tuple[Feature, ...]:
    """The order of the first input's data set, where it has the same features."""
    if first_spec is None or {feature.key for feature in features} != {entry[0] for entry in first_spec.signature}:
        return features
    by_key = {feature.key: feature for feature in features}
    return tuple(by_key[entry[0]] for entry in first_spec.signature)


def _codec(camera: DeclaredCamera, first_spec: DatasetSpec | None) -> str:
    """What the camera's frames are, in the words of the first input's data set where they mean the same."""
    codec = {entry[0]: entry[4] for entry in first_spec.signature}.get(camera.key) if first_spec is not None else None
    return codec if codec in _JPEG and camera.stored_as in _JPEG else camera.stored_as


def _camera_demand(camera: DeclaredCamera, survey: DataSetSurvey) -> CameraDemand:
    height, width = max(camera.source.shape[:2], camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    stored_as = camera.stored_as if camera.encoded or camera.stored_as == "images" else "copy"
    videos = survey.cameras.get(camera.key)
    one = max(survey.image_bytes.get(camera.key, 0), videos.largest_sample_bytes if videos is not None else 0)
    return CameraDemand(width, height, stored_as, max(one, width * height // 3 if camera.encoded else 0))


class DeclaredRows:
    """The rows of an episode as they are: numbers, texts, and images that stay in the table (`kept`)."""

    def __init__(
        self,
        data: DataSet,
        number: int,
        features: Sequence[Feature],
        rows: EpisodeTable,
        kept: Sequence[str],
        sampled: frozenset[int],
        named: Callable[[str, PenstockError], PenstockError],
    ) -> None:
        self._data, self._number, self._features, self._rows = data, number, features, rows
        self._kept, self._sampled, self._named = frozenset(kept), sampled, named
        self._in_table = frozenset(key for key, each in data.info.features.items() if each.dtype == "image")
        self._images: ReadRows = {}
        self._start = 0

    def read(self, start: int, stop: int, episode: EpisodeWriter) -> tuple[dict[str, Any], NDArray[np.int64]]:
        self._images, self._start = {}, start  # those before are gone before the next are read
        values = self._rows.take(stop - start)
        self._images = {each.key: values[each.key] for each in self._features if each.key in self._in_table}
        numbers = episode.take_tables(self._data.tables)
        tasks = renumbered(np.asarray(values["task_index"]), numbers["tasks"], f"{self._data.root}: task_index")
        columns: dict[str, Any] = {}
        for feature in self._features:
            if feature.key in self._kept:
                columns[feature.key] = self._kept_images(feature, episode)
            elif not feature.is_camera:
                columns[feature.key] = values[feature.key]
                if feature.dtype == "string" and None in columns[feature.key]:
                    text = f"column {feature.key!r}: an empty value in episode {self._number}"
                    raise DataSetCorrupt(text, hint="fill it in first")
        renumber(self._features, columns, numbers, f"{self._data.root}: episode {self._number}")
        return columns, tasks

    def images(self, key: str, rows: Sequence[int]) -> list[bytes]:
        """Rows of the episode that were read last."""
        images = [self._images[key][row - self._start] for row in rows]
        for row, each in zip(rows, images, strict=True):
            if not isinstance(each, bytes):
                raise ImageError(
                    f"row {row:,} has no image in the table",
                    hint="images that lie in files of their own are not read; embed them with LeRobot first",
                )
        return images

    def _kept_images(self, feature: Feature, episode: EpisodeWriter) -> list[bytes]:
        try:
            images = self.images(feature.key, range(self._start, self._start + len(self._images[feature.key])))
            for row, each in enumerate(images, self._start):
                if row in self._sampled:
                    pixels = depth.decode(each) if feature.is_depth else codec.decode(each)
                    episode.add_image_sample(feature.key, pixels)
        except ImageError as error:
            raise self._named(feature.key, error) from error
        return images


class _Decoded(ImageSource):
    """The frames of one camera and episode, decoded in order."""

    def __init__(self, packets: Packets, camera: DeclaredCamera) -> None:
        height, width = camera.source.shape[:2]
        self.scratch_bytes = height * width * 3
        self._frames = packets.decoded(range(packets.count))

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        return (next(self._frames) for _ in rows)


class _Encoded(ImageSource):
    """The images of one camera in the rows of the table."""

    scratch_bytes = 1  # they lie in the rows

    def __init__(self, table: DeclaredRows, camera: DeclaredCamera) -> None:
        self._table, self._camera = table, camera

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        height, width = self._camera.source.shape[:2]
        for row, data in zip(rows, self._table.images(self._camera.key, rows), strict=True):
            actual = codec.size_of(data)
            if actual != (height, width):
                size = f"{actual[1]}×{actual[0]} px, info.json says {width}×{height}"
                raise ImageError(f"the image of row {row:,} is {size}")
            yield np.frombuffer(data, np.uint8)

    def read_block(self, rows: Sequence[int], memory: NDArray[np.uint8]) -> list[ImageArray | ImageError]:
        return list(self.read(rows, Scratch()))


def encoded_camera(camera: DeclaredCamera, column: Column, packets: Packets | None, table: DeclaredRows) -> StoreCamera:
    """A camera whose images are encoded: those of a video, or those of the rows of a table."""
    source: ImageSource = _Encoded(table, camera) if packets is None else _Decoded(packets, camera)
    return StoreCamera(
        key=camera.key,
        name=camera.key,
        kind="raw",
        recorded_px=(camera.source.shape[0], camera.source.shape[1]),
        size_px=camera.size_px,
        output=camera.stored_as,  # type: ignore[arg-type]  # what is encoded is never "copy"
        keeps_jpeg=True,
        column=column,
        source=source,
        is_checked=False,
        is_decoded=bool(camera.codec),
    )


def named_error(where: str, key: str, error: PenstockError) -> PenstockError:
    """What is wrong with an image, with the episode and the camera that it belongs to."""
    return DataSetCorrupt(f"{where}, camera {key!r}: {error.message}", hint=error.hint)
