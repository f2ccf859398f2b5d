"""The images of records: files below a folder, members of a tar shard, or data: URLs; their bytes as they are."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image.codec import size_of
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock._src.stores.vqa.record import VQARecord
from penstock._src.system.files import open_source
from penstock.errors import ExternalRefused, ImageError, StoreError

_DATA_URL = "data:"
_NETWORK = ("http://", "https://")


def image_name(record: VQARecord, number: int, subtype: str) -> str | None:
    """What names an image of a record; COCO's are named by their numbers. None: there is no such image."""
    if number < len(record.images):
        return record.images[number]
    if not record.images and number == 0 and subtype and record.image_id >= 0:
        return f"COCO_{subtype}_{record.image_id:012d}.jpg"
    return None


@dataclass(frozen=True)
class ImageRoot:
    """Where the names of images are looked up."""

    folder: Path
    allow_external: bool = False

    def path_of(self, name: str) -> Path:
        """The file of a name; one that leads out of the folder is refused unless that was allowed."""
        if name.startswith(_NETWORK):
            raise ImageError(f"{name} is a URL", hint="download the images, and give their folder")
        if not self.allow_external and not self._is_inside(name):
            raise ExternalRefused(
                f"the image {name!r} lies outside {self.folder}",
                target=name,
                hint="image_root=FOLDER names the folder of the images; allow_external=True reads any file",
            )
        return self.folder / name

    def _is_inside(self, name: str) -> bool:
        inside = os.path.normpath(name)
        if os.path.isabs(inside):
            inside = os.path.relpath(inside, os.path.abspath(self.folder))
        return inside.split(os.sep, 1)[0] != os.pardir

    def read(self, name: str) -> bytes:
        """The bytes of an image."""
        if name.startswith(_DATA_URL):
            return _from_url(name)
        path = self.path_of(name)
        try:
            with open_source(path) as source:
                return source.read(0, source.size_bytes)
        except FileNotFoundError as error:
            raise ImageError(f"{path} is not there", hint="image_root=FOLDER names the folder of the images") from error
        except OSError as error:
            raise ImageError(f"{path} cannot be read: {error.strerror or error}") from error

    def has(self, name: str) -> bool:
        """Whether there is such an image."""
        return name.startswith(_DATA_URL) or (not name.startswith(_NETWORK) and self.path_of(name).is_file())


def find_root(
    path: Path, image_root: Path | None, first: str | None, subtype: str, allow_external: bool
) -> ImageRoot | None:
    """The folder in which the first image is found; None where none was asked for and none is found."""
    beside = path if path.is_dir() else path.parent
    if image_root is not None:
        root = ImageRoot(image_root, allow_external)
        if first is not None and not root.has(first):
            raise StoreError(
                f"image_root={str(image_root)!r}: there is no {first}", hint="which folder holds that file?"
            )
        return root
    if first is None:
        return None
    names = ("", "images", subtype) if subtype else ("", "images")
    for folder in (beside, beside.parent):
        for name in names:
            root = ImageRoot(folder / name, allow_external)
            try:
                if root.has(first):
                    return root
            except ExternalRefused:
                if folder == beside.parent:
                    raise
    return None


def _from_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError("not in base64")
        return base64.b64decode(body, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ImageError(f"an image in a data: URL of {len(url):,} characters cannot be read: {error}") from error


@dataclass(frozen=True)
class ImageFacts:
    """What a few images of a store are like."""

    height: int = 0
    width: int = 0
    encoding: str = "jpeg"
    mean_bytes: float = 0.0
    largest_bytes: int = 0


def image_facts(images: Sequence[bytes]) -> ImageFacts:
    """The facts of these images, by their headers; those that cannot be used count for nothing."""
    sizes, lengths, kinds = [], [], set()
    for data in images:
        try:
            sizes.append(size_of(data))
        except ImageError:
            continue
        lengths.append(len(data))
        kinds.add("jpeg" if data[:2] == b"\xff\xd8" else "png")
    if not sizes:
        return ImageFacts()
    return ImageFacts(
        max(height for height, _ in sizes),
        max(width for _, width in sizes),
        kinds.pop() if len(kinds) == 1 else "jpeg",
        sum(lengths) / len(lengths),
        max(lengths),
    )


class RecordImages(ImageSource):
    """The first image of every record."""

    def __init__(self, read: Callable[[int], bytes], facts: ImageFacts) -> None:
        self._read = read
        self.scratch_bytes = 2 * facts.largest_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            data: NDArray[np.uint8] = np.frombuffer(self._read(row), np.uint8)
            yield data
