"""What becomes of each camera that a data set declares: moved as it is, encoded anew, or from the table to a video."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._src.conversion.cameras.camera import CameraConversion, quality, refusal
from penstock._src.conversion.settings import Settings, video_for
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.media.video.encode import CODECS
from penstock._src.stores.lerobot.survey import CameraSurvey, DataSetSurvey
from penstock.errors import DataSetError

_NAMES = ("height", "width", "channels")
_ENCODABLE = (*CODECS, "mjpeg")
_FALLBACK = "av1"  # LeRobot's own default, where the codec that a camera has cannot be written


@dataclass(frozen=True)
class DeclaredCamera:
    """One camera; episodes are named by their place in the episodes table."""

    key: str
    source: Feature
    codec: str  # of the frames as they are; "" for images in the table
    feature: Feature  # in the new data set
    stored_as: str  # copy, images, mjpeg, h264, hevc or av1: what is encoded becomes this
    encoded: frozenset[int]  # the episodes that are encoded; the others are moved

    @property
    def size_px(self) -> tuple[int, int]:
        return self.feature.shape[0], self.feature.shape[1]

    @property
    def resized(self) -> bool:
        return self.feature.shape[:2] != self.source.shape[:2]

    def conversion(self, data: DataSet, episodes: int) -> CameraConversion:
        frames = sum(int(data.episodes.length[number]) for number in self.encoded)
        some = "" if len(self.encoded) == episodes else f" ({len(self.encoded):,} of {episodes:,} episodes)"
        return CameraConversion(self.key, self.codec or "images", self.stored_as, self.size_px, frames, some)


def plan_camera(source: Feature, survey: DataSetSurvey, settings: Settings) -> tuple[DeclaredCamera, list[str]]:
    """Settle one camera, with the reasons where its frames are not moved."""
    special = settings.features.get(source.key)
    video, _ = video_for(special, settings)
    size_px = (special.resize if special is not None else None) or settings.resize or source.shape[:2]
    if source.is_depth:
        return _depth_camera(source, survey, video, size_px)
    if source.dtype == "video":
        return _from_video(source, survey, video, size_px, settings)
    stored_as = "images" if video in ("copy", "images") else video
    is_kept = stored_as == "images" and size_px == source.shape[:2]
    return _camera(source, "", size_px, stored_as, frozenset() if is_kept else frozenset(survey.usable)), []


def refuse_encoding(
    data: DataSet, survey: DataSetSurvey, cameras: Sequence[DeclaredCamera], settings: Settings
) -> None:
    """Where only copies are wanted, name the first episode that would have to be encoded."""
    for camera in cameras:
        _, only_copied = video_for(settings.features.get(camera.key), settings)
        if only_copied and camera.encoded:
            number = min(camera.encoded)
            reason = _why_one(camera, survey, number)
            count = f" ({len(camera.encoded):,} of {len(survey.usable):,} episodes)" if len(camera.encoded) > 1 else ""
            raise refusal(f"{data.root}: episode {int(data.episodes.index[number])}", camera.key, reason + count)


def _why_one(camera: DeclaredCamera, survey: DataSetSurvey, number: int) -> str:
    if camera.resized:
        return f"resize to {camera.size_px[1]}×{camera.size_px[0]}"
    videos = survey.cameras[camera.key]
    return videos.unmovable.get(number, f"its codec is not {camera.codec} as in the most episodes")


def _from_video(
    source: Feature, survey: DataSetSurvey, video: str, size_px: tuple[int, ...], settings: Settings
) -> tuple[DeclaredCamera, list[str]]:
    videos = survey.cameras[source.key]
    codec, everything, notes = videos.codec, frozenset(survey.usable), list[str]()
    resized = size_px != source.shape[:2]
    if video == "images":
        is_movable = set(videos.codecs) == {"mjpeg"} and not resized
        return _camera(source, codec, size_px, "images", frozenset(videos.unmovable) if is_movable else everything), []
    target = codec if video == "copy" else video
    chosen = settings.encoding
    is_set = any(value is not None for value in (chosen.crf, chosen.gop, chosen.preset))
    anew = video == codec and is_set
    encoded = everything if resized or target != codec or anew else _unmovable(videos, survey)
    if not (resized or anew) and video == codec != "mjpeg":
        notes.append(f"{source.key} is {codec} already and is copied; encoding.crf, gop or preset encodes it anew")
    if encoded and target not in _ENCODABLE:
        encoded, target = everything, _FALLBACK
    if encoded and video in ("copy", codec) and not anew:
        anew_as = f"{target}, {quality(target, settings.encoding)}"
        notes.append(_why(source, videos, encoded, anew_as, len(survey.usable), size_px))
    if videos.retimed and len(encoded) < len(everything):
        notes.append(
            f"{source.key}: the frames of {videos.retimed:,} episodes lay at other times than their rows, by up to "
            f"{videos.apart_s:.3g} s; each is now at the time of its row"
        )
    moved_jpeg = target == codec == "mjpeg" and video == "copy" and not encoded
    return _camera(source, codec, size_px, "copy" if moved_jpeg else target, encoded), notes


def _unmovable(videos: CameraSurvey, survey: DataSetSurvey) -> frozenset[int]:
    """Episodes whose frames cannot be moved, or have another codec than the most."""
    other = (number for number, each in zip(survey.usable, videos.codecs, strict=True) if each != videos.codec)
    return frozenset(videos.unmovable) | frozenset(other)


def _depth_camera(
    source: Feature, survey: DataSetSurvey, video: str, size_px: tuple[int, ...]
) -> tuple[DeclaredCamera, list[str]]:
    """Distances must survive: their images are moved, whatever is asked of the others."""
    notes = []
    if video not in ("copy", "images") or size_px != source.shape[:2]:
        notes.append(f"{source.key} holds distances, which encoding would change; it is copied as it is")
    if source.dtype == "image":
        return _camera(source, "", source.shape, "images", frozenset()), notes
    videos = survey.cameras[source.key]
    if wrong := _unmovable(videos, survey):
        number = min(wrong)
        reason = videos.unmovable.get(number, "another codec than the other episodes")
        raise DataSetError(
            f"{source.key} holds distances, and the frames of episode {number} cannot be moved as they are: {reason}",
            hint="encoding would change the distances; each episode must begin with a key frame of a closed GOP",
        )
    notes.append(f"{source.key}: the statistics of a depth video are not computed")
    return _camera(source, videos.codec, source.shape, videos.codec, frozenset()), notes


def _why(
    source: Feature, camera: CameraSurvey, encoded: frozenset[int], target: str, episodes: int, size_px: tuple[int, ...]
) -> str:
    reasons = Counter(camera.unmovable.values())
    if size_px != source.shape[:2]:
        why = f"resize to {size_px[1]}×{size_px[0]}"
    elif reasons:
        reason, count = reasons.most_common(1)[0]
        why = reason + (f" ({count:,} episodes)" if count < len(encoded) else "")
    else:
        why = "its files have several codecs: " + ", ".join(sorted(set(camera.codecs)))
    return f"{source.key}: {len(encoded):,} of {episodes:,} episodes are encoded anew as {target}: {why}"


def _camera(
    source: Feature, codec: str, size_px: tuple[int, ...], stored_as: str, encoded: frozenset[int]
) -> DeclaredCamera:
    dtype = "image" if stored_as == "images" else "video"
    info = _kept_info(source.info or {}, video=dtype == "video")
    feature = Feature(source.key, dtype, (size_px[0], size_px[1], source.shape[2]), _NAMES, info or None)
    return DeclaredCamera(source.key, source, codec, feature, stored_as, encoded)


def _kept_info(info: Mapping[str, Any], *, video: bool) -> dict[str, Any]:
    """The entries of info.json about the images; those about the coding come from the new video."""
    kept = {key: value for key, value in info.items() if video or not key.startswith(("video.", "audio.", "has_audio"))}
    if "video.is_depth_map" in info:  # the name that LeRobot gave it before
        kept.pop("video.is_depth_map", None)
        if video or info["video.is_depth_map"]:
            kept.setdefault("is_depth_map", info["video.is_depth_map"])
    return kept
