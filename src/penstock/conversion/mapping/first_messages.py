"""The first usable message of a topic: what its pictures are, known before anything is converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from penstock.errors import ImageError, LimitExceeded, MessageError, PenstockError, RecordingError
from penstock.media.image import codec as image
from penstock.media.image import jpeg, png
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values.images import CompressedPicture, ImageReader, RawPicture

PictureKind = Literal["jpeg", "png", "raw", "depth", "h264", "h265"]
Picture = CompressedPicture | RawPicture

_PNG_MAGIC = png.MAGIC
_FIRST_MESSAGES = 16  # how many are tried for one that can be read


def first_payloads(recording: Recording, topic: Topic) -> Iterator[memoryview]:
    """The first messages of a topic that can be read at all: a stream may begin with broken ones."""
    if topic.count == 0:
        raise RecordingError(
            f"{recording.path}: {topic.name} has no messages",
            hint="leave it out under features:, or check the recording",
        )
    for number in range(min(topic.count, _FIRST_MESSAGES)):
        for _, payload in recording.payloads(topic, [number]):
            if payload is not None:
                yield memoryview(bytes(payload))


def first_picture(
    recording: Recording, topic: Topic, reader: ImageReader, usable: Callable[[Picture], object], key: str = "NAME"
) -> Picture:
    """The first picture that `usable` does not refuse, for the feature `key`."""
    last: PenstockError | None = None
    for payload in first_payloads(recording, topic):
        try:
            picture = reader(payload)
            usable(picture)
            return picture
        except (ImageError, MessageError, LimitExceeded) as error:
            last = error
    reason = f": {last.message}" if last else ""
    raise ImageError(
        f"{recording.path}: {topic.name} has no usable picture among its first messages{reason}",
        hint="; ".join([*([last.hint] if last and last.hint else []), f"convert without it: leave_out={key}"]),
    )


def probe_picture(picture: Picture) -> tuple[PictureKind, tuple[int, int]]:
    """What a picture is and its (height, width), from its header alone."""
    if isinstance(picture, RawPicture):
        return "raw", (picture.height, picture.width)
    if is_png(picture):
        # Copied pictures are not decoded: like a JPEG, a PNG must be whole from its first to its last marker.
        png.probe(picture.data)
        return "png", image.size_of(picture.data)
    info = jpeg.probe(picture.data)
    return "jpeg", (info.height, info.width)


def is_png(picture: CompressedPicture) -> bool:
    return picture.data[:8] == _PNG_MAGIC  # asked for every message: one call, not two
