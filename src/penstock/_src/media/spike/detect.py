"""Which layout a spike file has: from its size, its values, the name of its folder, and an image of the same scene.

A file has no header, and many layouts have the same number of bytes. What fits is narrowed down in this order:

1. what is declared;
2. values: bytes above 1 are packed bits, for one byte per pixel is 0 or 1;
3. the folder's name: `GOPR0372_11_00` is made of 11 images per blurred one, which are 88 frames;
4. the frames of the public GoPro-spike set: 56, 88 or 104 of 360×640;
5. an image of the same scene: the mean of the frames looks like it in one reading only.

What is left has to be one reading; two are an error that shows both. Which row comes first is not in the file: only an
image shows it. Without one, rows are taken as they are stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.frames import voxel_counts
from penstock._src.media.spike.layout import Packing, SpikeLayout, SpikeSettings
from penstock._src.system.files import ByteSource, ReadErrors, open_source
from penstock.errors import ImageError, SpikeError

GOPRO_PLANE, GOPRO_FRAMES = (360, 640), (56, 88, 104)
PLANES: dict[Packing, tuple[tuple[int, int], ...]] = {
    "packed": ((250, 400), (360, 640), (180, 320)),
    "uint8": ((250, 400), (360, 640), (180, 320), (396, 640), (252, 640)),
}
"""(height, width) that are tried where nothing is declared, besides those of the image, halved and quartered."""

FRAMES_PER_IMAGE = 8
"""Of the public set: so many frames between two images of the video."""

_BLURRED = re.compile(r"_(\d\d)_")
_CLEAR_R, _CLEAR_LEAD = 0.3, 0.15  # a reading is shown by an image from this correlation on, and by that much more
_COMPARED_PX = 64  # both sides of the images that are compared
_BLOCK_BYTES, _HEADER_BYTES = 256 << 10, 64 << 10
_ERRORS = ReadErrors(SpikeError)


def find_layout(
    path: str | os.PathLike[str],
    settings: SpikeSettings | None = None,
    name_hint: str = "",
    image: str | os.PathLike[str] | None = None,
) -> tuple[SpikeLayout, str]:
    """The layout of a file and why, in words. `name_hint`: the folder's name. `image`: one of the same scene.

    >>> find_layout("GOPR0372_11_00/spike/00001.dat", name_hint="GOPR0372_11_00")      # doctest: +SKIP
    (SpikeLayout('packed', 360, 640, 88), '2,534,400 bytes with values above 1 are …')
    """
    settings = settings or SpikeSettings()
    with open_source(path, _ERRORS) as source:
        packings, reason = _packings(source, settings)
        readings = _readings(source.size_bytes, packings, settings, None if image is None else image_size(image))
        if not readings:
            _refuse_all(path, source.size_bytes, packings, settings)
        layout, why = _choose(source, readings, name_hint, image)
        words = f"{source.size_bytes:,} bytes{reason} are {layout}{why}"
    if settings.flip is not None:
        return replace(layout, flip=settings.flip), words
    flip, turned = find_flip([] if image is None else [(path, layout, image)])
    return replace(layout, flip=bool(flip)), f"{words}; {turned}"


def find_flip(
    known: Iterable[tuple[str | os.PathLike[str], SpikeLayout, str | os.PathLike[str]]],
) -> tuple[bool | None, str]:
    """Whether rows are stored upside down, by files with images of the same scenes; None where that cannot be seen."""
    pairs = []
    for path, layout, image in known:
        with open_source(path, _ERRORS) as source:
            try:
                pairs.append(_likeness(source, replace(layout, flip=False), image))
            except ImageError:
                continue  # an image that cannot be decoded shows nothing
    if not pairs:
        return None, "rows as they are stored: no image shows which comes first (flip=true turns them)"
    upright, turned = (float(np.mean(each)) for each in zip(*pairs, strict=True))
    numbers = f"correlation with the image {turned:.2f} upside down, {upright:.2f} as stored"
    if max(upright, turned) < _CLEAR_R or abs(upright - turned) < _CLEAR_LEAD:
        return None, f"rows as they are stored: the image does not show which comes first ({numbers})"
    if turned > upright:
        return True, f"rows are stored upside down ({numbers})"
    return False, f"rows as they are stored ({numbers})"


def size_error(path: str | os.PathLike[str], n_bytes: int, layout: SpikeLayout) -> SpikeError:
    """The error for a file that has not the size of its layout: what was expected, what is there, what would fit."""
    whole, rest = divmod(n_bytes, layout.frame_bytes)
    there = f"{whole} whole frames" + (f" and {rest:,} bytes" if rest else "")
    fits = ", ".join(map(str, _fitting(n_bytes)))
    return SpikeError(
        f"{os.fspath(path)}: cannot reshape {n_bytes:,} bytes to {layout}, which are {layout.n_bytes:,} bytes: "
        f"the file has {there}",
        hint=f"it would fit {fits}" if fits else "the file is cut, or longer than its layout: copy it again",
    )


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(height, width) of a PNG or JPEG, by its header."""
    from penstock._src.media.image import codec

    with _image(path) as source:
        head = source.read(0, _HEADER_BYTES)
        is_jpeg = head[:2] == b"\xff\xd8"  # of which the end is looked at, too
        return codec.size_of(source.read(0, source.size_bytes) if is_jpeg else head)


@contextmanager
def _image(path: str | os.PathLike[str]) -> Iterator[ByteSource]:
    """The bytes of an image; what is wrong with it names the file."""
    with open_source(path, ReadErrors(ImageError)) as source:
        try:
            yield source
        except ImageError as error:
            raise ImageError(f"{os.fspath(path)}: {error.message}", hint=error.hint) from error


def _packings(source: ByteSource, settings: SpikeSettings) -> tuple[list[Packing], str]:
    """Which packings the values allow, and what they are, in words. Reading stops at the first value above 1."""
    if not source.size_bytes:
        raise SpikeError(f"{source.path} is empty", hint="copy it again from where it was recorded")
    if settings.layout != "auto":
        return [settings.layout], ", declared"
    largest = 0
    for offset in range(0, source.size_bytes, _BLOCK_BYTES):
        block = np.frombuffer(source.read(offset, _BLOCK_BYTES), np.uint8)
        largest = max(largest, int(block.max(initial=0)))
        if largest > 1:
            return ["packed"], " with values above 1"
    if largest:
        return ["uint8"], " of 0 and 1"
    return ["packed", "uint8"], " of nothing but 0"


def _readings(
    n_bytes: int, packings: Sequence[Packing], settings: SpikeSettings, image: tuple[int, int] | None
) -> list[SpikeLayout]:
    """Every layout with this number of bytes that the settings leave."""
    layouts = dict.fromkeys(
        SpikeLayout(packing, height, width, n_bytes // frame_bytes)
        for packing in packings
        for height, width in _planes(n_bytes, packing, settings, image)
        if (frame_bytes := height * width // (8 if packing == "packed" else 1))
        and n_bytes % frame_bytes == 0
        and (packing == "uint8" or height * width % 8 == 0)
    )
    return [each for each in layouts if settings.frames in (None, each.frames)]


def _planes(
    n_bytes: int, packing: Packing, settings: SpikeSettings, image: tuple[int, int] | None
) -> Iterator[tuple[int, int]]:
    """(height, width) to be tried."""
    height, width, frames = settings.height, settings.width, settings.frames
    if height is not None and width is not None:
        yield height, width
        return
    side = height or width
    if side is not None and frames is not None:  # the third follows
        pixels = n_bytes * (8 if packing == "packed" else 1)
        if pixels % (side * frames) == 0:
            other = pixels // (side * frames)
            yield (side, other) if width is None else (other, side)
        return
    scaled = (
        [(image[0] // by, image[1] // by) for by in (1, 2, 4) if not image[0] % by and not image[1] % by]
        if (image)
        else []
    )
    for plane in (*PLANES[packing], *scaled):
        if height in (None, plane[0]) and width in (None, plane[1]):
            yield plane


def _choose(
    source: ByteSource, readings: list[SpikeLayout], name_hint: str, image: str | os.PathLike[str] | None
) -> tuple[SpikeLayout, str]:
    """The one reading that is left, and what decided, in words."""
    blurred = _BLURRED.search(name_hint)
    named = int(blurred[1]) * FRAMES_PER_IMAGE if blurred else None
    by_name = [each for each in readings if each.packing == "packed" and each.frames == named]
    if len(by_name) == 1:
        return by_name[0], f", as {name_hint} says ({int(named or 0) // FRAMES_PER_IMAGE} images of 8 frames)"
    if len(readings) == 1:
        contrary = f", though {name_hint} would have {named} frames" if named is not None else ""
        return readings[0], contrary if readings[0].packing == "packed" else ""
    public = [each for each in readings if _is_public(each)]
    if len(public) == 1:
        return public[0], ", as in the public GoPro-spike set"
    if image is not None:
        likeness = [max(_likeness(source, each, image)) for each in readings]
        order = np.argsort(likeness)[::-1]
        best, second = likeness[order[0]], likeness[order[1]]
        if best >= _CLEAR_R and best - second >= _CLEAR_LEAD:
            return readings[order[0]], f", by the image (correlation {best:.2f}, of the next reading {second:.2f})"
    _refuse_choice(source, readings)


def _is_public(layout: SpikeLayout) -> bool:
    plane = (layout.height, layout.width)
    return layout.packing == "packed" and plane == GOPRO_PLANE and layout.frames in GOPRO_FRAMES


def _likeness(source: ByteSource, layout: SpikeLayout, image: str | os.PathLike[str]) -> tuple[float, float]:
    """How the mean of all frames correlates with an image: as stored, and upside down."""
    import cv2

    size = (_COMPARED_PX, _COMPARED_PX)
    counts = voxel_counts(source.read_exactly(0, layout.n_bytes), layout, 1)[0].astype(np.float32)
    mean: Any = cv2.resize(counts, size, interpolation=cv2.INTER_AREA)
    seen = _small_gray(image, size)
    return _correlation(mean, seen), _correlation(mean[::-1], seen)


def _correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1])


def _small_gray(image: str | os.PathLike[str], size: tuple[int, int]) -> NDArray[np.float32]:
    from penstock._src.media.image import codec

    with _image(image) as source:
        pixels = codec.decode(source.read(0, source.size_bytes))
    gray: NDArray[np.float32] = codec.resize(pixels, size).mean(2, dtype=np.float32)
    return gray


def _fitting(n_bytes: int, packings: Iterable[Packing] = ("packed", "uint8")) -> list[SpikeLayout]:
    """What the usual planes would make of a size."""
    return [each for each in _readings(n_bytes, list(packings), SpikeSettings(), None) if each.frames > 1][:4]


def _refuse_choice(source: ByteSource, readings: Sequence[SpikeLayout]) -> NoReturn:
    first = readings[0]
    raise SpikeError(
        f"{source.path}: {source.size_bytes:,} bytes can be read as {' or as '.join(map(str, readings))}, "
        "and nothing tells which",
        hint=f"declare it: layout={first.packing} height={first.height} width={first.width}, or another of them",
    )


def _refuse_all(
    path: str | os.PathLike[str], n_bytes: int, packings: Sequence[Packing], settings: SpikeSettings
) -> NoReturn:
    where = os.fspath(path)
    if settings.height is not None and settings.width is not None:
        pixels = settings.height * settings.width
        if packings == ["packed"] and pixels % 8:
            SpikeLayout("packed", settings.height, settings.width, 1)  # says what is wrong with it
        frame_bytes = pixels // 8 if packings[0] == "packed" else pixels
        frames = settings.frames or max(n_bytes // frame_bytes, 1)
        raise size_error(path, n_bytes, SpikeLayout(packings[0], settings.height, settings.width, frames))
    declared = [f"{name}={value}" for name, value in vars(settings).items() if value not in (None, "auto")]
    fits = [str(each) for each in _fitting(n_bytes, packings)]
    raise SpikeError(
        f"{where}: {n_bytes:,} bytes are not a whole number of frames of any known plane"
        + (f" with {', '.join(declared)}" if declared else ""),
        hint=f"it would fit {', '.join(fits)}" if fits else "declare the plane: height=… width=…",
    )
