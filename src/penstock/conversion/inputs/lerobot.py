"""A LeRobot data set as input: v2.1 becomes v3.0, v3.0 is moved, encoded anew or merged."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.conversion.cameras.dataset_cameras import DataSetCamera, plan_camera, refuse_encoding
from penstock.conversion.cameras.encoding_anew import video_lines
from penstock.conversion.commit.episode import EpisodeWriter
from penstock.conversion.inputs.dataset_episode import Reading, Retimed, columns_to_read, stream_episode
from penstock.conversion.inputs.dataset_survey import Survey, survey
from penstock.conversion.inputs.input import Begun, EpisodePlan, Input, Means, Outcome, Run, State
from penstock.conversion.settings import Settings, without_effect, without_left_out
from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot.features import ROW_KEYS, Feature
from penstock.lerobot.read.frames import FrameFinder, ends_note
from penstock.lerobot.read.reader import DataSet
from penstock.lerobot.read.reader import open_data_set as open_lerobot
from penstock.lerobot.read.row_stream import RowStream
from penstock.media.video.hardware import device_notes
from penstock.plan.conversion_memory import CameraLoad, Load, MemoryPlan, Reads, VectorLoad, plan_memory
from penstock.system import memory as process_memory
from penstock.system import units

_LIBRARY_BYTES = 8 << 20  # the part of Arrow that reads rows
_COPIES_OF_PAGES = 2
_COPIES_OF_PICTURES = 5
# Its rows, episodes and tasks are kept as they are.
_NOT_ASKED = (
    *("timeline", "stride", "sample_drop", "time", "missing", "tolerance"),
    *("task", "episodes", "split_episodes", "depth", "depth_range"),
)
_JPEG = frozenset({"copy", "mjpeg"})  # both are JPEG frames in a video: moved, or made by penstock


def open_data_set(path: Path, means: Means, begun: Begun | None) -> DataSetInput:
    """Open and plan a data set; after the first input, with what that one settled."""
    return DataSetInput(open_lerobot(path), means, begun)


class DataSetInput(Input):
    """The state after an episode: the next place in the episodes table, and how many rows had another timestamp."""

    kind = "lerobot"

    def __init__(self, data: DataSet, means: Means, begun: Begun | None) -> None:
        settings = means.settings if begun is None else begun.settings
        own = {feature.key: feature for feature in _own_features(data)}
        chosen = without_left_out(own, settings, data.root, strict=begun is None and means.inputs == 1)
        data = data.without([key for key in own if key not in chosen])
        self.path = data.root
        self.fps = data.info.fps
        self._data = data
        self._check_settings(settings, begun)
        self._survey = _survey(data, settings, means)
        self.size_bytes = self._survey.size_bytes
        planned = [plan_camera(feature, self._survey, settings) for feature in _own_features(data) if feature.is_camera]
        self._cameras = tuple(camera for camera, _ in planned)
        refuse_encoding(data, self._survey, self._cameras, settings)
        self.features = _in_order(self._new_features(), begun)
        self.codecs = {camera.key: _codec(camera, begun) for camera in self._cameras}
        self.encodes = any(camera.encoded for camera in self._cameras)
        self.robot_type = _robot_type(settings, data)
        self.settings = replace(settings, fps=self.fps, robot_type=self.robot_type or settings.robot_type)
        self.notes = (
            *(note for _, notes in planned for note in notes),
            *self._more_notes(settings, begun, [name for name in settings.leave_out if name not in own]),
            *device_notes(self.codecs.values(), settings.encoding.device),
        )
        self.memory = self._plan_memory(settings, means)
        self._rows = RowStream(data, columns_to_read(data), self.memory.rows_per_flush)
        self._reading = Reading(
            data=data,
            tables=data.tables,
            features=self.features,
            cameras=self._cameras,
            finder=FrameFinder(data),
            rows=self._rows,
            settings=settings,
            rows_per_flush=self.memory.rows_per_flush,
            block_bytes=self.memory.fetch_bytes,
            threads=self.memory.threads,
        )
        process_memory.give_back_freed()

    def close(self) -> None:
        self._rows.close()

    def next_episode(self, state: State | None) -> EpisodePlan | None:
        usable = self._survey.usable
        place = bisect_left(usable, (state or {}).get("next", 0))
        if place == len(usable):
            return None
        number = usable[place]
        rows, episode = int(self._data.episodes.length[number]), int(self._data.episodes.index[number])
        return EpisodePlan(rows, None, f"episode {episode:,}", (number, state))

    def write(self, plan: EpisodePlan, episode: EpisodeWriter, run: Run) -> State:
        number, state = plan.detail
        before, total = int(self._data.episodes.first_row[number]), max(self._data.info.total_frames, 1)

        def on_frames(rows: int) -> None:
            run.on_moved(self.size_bytes * (before + rows) // total)

        retimed = stream_episode(self._reading, number, episode, on_frames, run.on_rows)
        before_it = Retimed(*((state or {}).get(name, 0) for name in ("retimed", "apart_s")))
        together = before_it.and_also(retimed)
        return {"next": number + 1, "retimed": together.rows, "apart_s": together.apart_s}

    def finish(self, state: State | None) -> Outcome:
        lost = {"episode of a data set that cannot be used": self._survey.bad} if self._survey.bad else {}
        bad = "1 episode" if self._survey.bad == 1 else f"{self._survey.bad:,} episodes"
        notes = [f"{bad} left out, the first: {self._survey.first_problem}"] if lost else []
        if retimed := (state or {}).get("retimed", 0):
            apart_s = (state or {}).get("apart_s", 0.0)
            apart = f"by up to {apart_s:.3g} s"
            notes.append(f"{retimed:,} rows had another timestamp than their frame's, {apart}; they have that now")
        return Outcome(lost, tuple(notes))

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {}
        by_key = {camera.key: camera for camera in self._cameras}
        for feature in self.features:
            camera = by_key.get(feature.key)
            if camera is None:
                described[feature.key] = {"dtype": feature.dtype, "shape": list(feature.shape)}
                described[feature.key]["names"] = None if feature.names is None else list(feature.names)
            else:
                described[feature.key] = {
                    "size_px": list(camera.size_px),
                    "recorded_as": camera.codec or "images",
                    "stored_as": camera.stored_as if camera.encoded else "copied",
                }
        return described

    def lines(self) -> list[tuple[str, str]]:
        info, usable = self._data.info, len(self._survey.usable)
        rows = sum(int(self._data.episodes.length[number]) for number in self._survey.usable)
        lines = [
            (f"{self.path.name} ", f"{units.format_size(self.size_bytes)} · LeRobot {info.version}"),
            ("rows", f"{rows:,} at {self.fps} fps · {usable:,} episode{'s' if usable != 1 else ''}"),
        ]
        if not usable:
            return lines
        fates = [(camera.key, camera.fate(usable), camera.to_encode(self._data)) for camera in self._cameras]
        lines += video_lines(fates, self.settings.encoding, self.memory.threads)
        numbers = [f"{each.key} {'×'.join(map(str, each.shape))}" for each in self.features if not each.is_camera]
        return [*lines, ("numbers", " · ".join(numbers))] if numbers else lines

    def _difference(self, first: Begun) -> str:
        if self.fps != first.fps:
            return f"{self.fps} fps against {first.fps}"
        mine, theirs = ({entry[0]: entry for entry in each} for each in (self.signature(), first.signature))
        for key in theirs:
            if key not in mine:
                return f"it has no {key}"
        for key, entry in mine.items():
            if key not in theirs:
                return f"it has {key} besides"
            for name, here, there in zip(("dtype", "shape", "names", "codec"), entry[1:], theirs[key][1:], strict=True):
                if here != there:
                    return f"the {name} of {key} is {here} against {there}"
        return "its features stand in another order"

    def _remedy(self, first: Begun) -> str:
        one, other = ({entry[0] for entry in each} for each in (self.signature(), first.signature))
        if first.kind != self.kind or one == other:
            return super()._remedy(first)
        names = ",".join(sorted(one ^ other))
        return f"start anew with 'leave_out=[{names}]', which takes what both have, or convert it on its own"

    def _check_settings(self, settings: Settings, begun: Begun | None) -> None:
        if begun is None and settings.fps is not None and settings.fps != self.fps:
            raise DataSetError(
                f"{self.path}: its rows are at {self.fps} fps and fps={settings.fps} was asked: the rows of a data set "
                "are taken as they are",
                hint=f"leave fps out, or set fps={self.fps}",
            )

    def _new_features(self) -> tuple[Feature, ...]:
        cameras = {camera.key: camera.feature for camera in self._cameras}
        return tuple(cameras.get(feature.key, feature) for feature in _own_features(self._data))

    def _more_notes(self, settings: Settings, begun: Begun | None, unknown: list[str]) -> list[str]:
        notes = without_effect(settings, _NOT_ASKED, "data sets") if begun is None else []
        notes += [f"leave_out: there is no {name} in it" for name in unknown if begun is None]
        info = self._data.info
        if begun is not None and info.robot_type not in (None, begun.settings.robot_type):
            notes.append(
                f"its robot is {info.robot_type!r}, the data set's is {begun.settings.robot_type!r}: "
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

    def _plan_memory(self, settings: Settings, means: Means) -> MemoryPlan:
        found, lengths = self._survey, self._data.episodes.length
        largest = max((each.largest_sample_bytes for each in found.cameras.values()), default=0)
        in_table = sum(2 * found.picture_bytes.get(each.key, 0) for each in self._cameras if each.stored_as != "images")
        numbers = [_vector_load(feature) for feature in self.features if not feature.is_camera]
        numbers += [VectorLoad(key, 1, "int64") for key in ROW_KEYS]
        load = partial(
            Load,
            cameras=tuple(_load(camera, found) for camera in self._cameras),
            vectors=tuple(numbers),
            rows=int(max((lengths[number] for number in found.usable), default=0)),
            index_bytes=sum(each.index_bytes for each in found.cameras.values()) + len(lengths) * 256 + _LIBRARY_BYTES,
            chunk_size=settings.rosbag.chunk_size,
            threads=means.threads,
            decoded=tuple(
                replace(_load(camera, found), stored_as=camera.codec)
                for camera in self._cameras
                if camera.codec and (camera.encoded or camera.codec != "mjpeg")
            ),
            # The rows of a flush are there as they were read beside those that are written.
            row_copy_bytes=16 * sum(each.values for each in numbers),
            row_extra_bytes=in_table,
            rows_before=means.rows_before,
            rows_after=means.rows_before + int(sum(lengths[number] for number in found.usable)),
            episodes=means.inputs * max(1, len(found.usable)),
            field_part="",
        )
        # A page is held packed and unpacked; pictures on their way pass through Arrow's buffers and Python's.
        passing = _COPIES_OF_PAGES * found.page_bytes
        first = plan_memory(load(reads=Reads(largest, passing_bytes=passing)), means.budget_bytes)
        passing += _COPIES_OF_PICTURES * first.rows_per_flush * sum(found.picture_bytes.values())
        return plan_memory(load(reads=Reads(largest, passing_bytes=passing)), means.budget_bytes)


def _survey(data: DataSet, settings: Settings, means: Means) -> Survey:
    drops = settings.bad_episodes == "drop"
    try:
        return survey(data, drop=drops and not means.strict)
    except DataSetCorrupt as error:
        if drops:
            error.hint = "without --strict such episodes are left out and counted (exit code 3)"
        raise


def _own_features(data: DataSet) -> list[Feature]:
    return [feature for key, feature in data.info.features.items() if key not in ROW_KEYS]


def _in_order(features: tuple[Feature, ...], begun: Begun | None) -> tuple[Feature, ...]:
    """The order of the data set that was begun, where it has the same features."""
    if begun is None or {feature.key for feature in features} != {entry[0] for entry in begun.signature}:
        return features
    by_key = {feature.key: feature for feature in features}
    return tuple(by_key[entry[0]] for entry in begun.signature)


def _codec(camera: DataSetCamera, begun: Begun | None) -> str:
    """What the camera's frames are, in the words of the data set that was begun where they mean the same."""
    asked = {entry[0]: entry[4] for entry in begun.signature}.get(camera.key) if begun is not None else None
    return asked if asked in _JPEG and camera.stored_as in _JPEG else camera.stored_as


def _robot_type(settings: Settings, data: DataSet) -> str | None:
    """The user's word, else the data set's own."""
    return data.info.robot_type if settings.robot_type == "unknown" else settings.robot_type


def _load(camera: DataSetCamera, found: Survey) -> CameraLoad:
    height, width = max(camera.source.shape[:2], camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    stored_as = camera.stored_as if camera.encoded or camera.stored_as == "images" else "copy"
    videos = found.cameras.get(camera.key)
    one = max(found.picture_bytes.get(camera.key, 0), videos.largest_sample_bytes if videos is not None else 0)
    return CameraLoad(width, height, stored_as, max(one, width * height // 3 if camera.encoded else 0))


def _vector_load(feature: Feature) -> VectorLoad:
    if feature.is_text:
        return VectorLoad(feature.key, 32, "int64")
    return VectorLoad(feature.key, math.prod(feature.shape), feature.dtype)
