"""The rows of an episode that a data set declares, with the images that lie in them or are decoded for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.cameras.declared import DeclaredCamera
from penstock.conversion.inputs.store_columns import StoreCamera
from penstock.conversion.inputs.store_episode import Table
from penstock.errors import DataSetCorrupt, ImageError, PenstockError
from penstock.lerobot.features import Feature
from penstock.lerobot.read.reader import DataSet, ReadRows
from penstock.lerobot.tasks import renumber, renumbered
from penstock.media.image import codec as image
from penstock.media.image import depth
from penstock.stores.lerobot.episode_table import EpisodeTable
from penstock.stores.store import Column, ImageSource, Packets, Scratch
from penstock.stores.store import Picture as StoredImage

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter


class DeclaredRows(Table):
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
        self._tasks: NDArray[np.int64] | None = None
        self._images: ReadRows = {}
        self._start = 0

    def read(self, start: int, stop: int, episode: EpisodeWriter) -> dict[str, Any]:
        self._images, self._start = {}, start  # those before are gone before the next are read
        taken = self._rows.take(stop - start)
        self._images = {each.key: taken[each.key] for each in self._features if each.key in self._in_table}
        numbers = episode.take_tables(self._data.tables)
        self._tasks = renumbered(np.asarray(taken["task_index"]), numbers["tasks"], f"{self._data.root}: task_index")
        columns: dict[str, Any] = {}
        for feature in self._features:
            if feature.key in self._kept:
                columns[feature.key] = self._kept_images(feature, episode)
            elif not feature.is_camera:
                columns[feature.key] = self._values(feature, taken[feature.key])
        renumber(self._features, columns, numbers, f"{self._data.root}: episode {self._number}")
        return columns

    def tasks(self) -> NDArray[np.int64] | None:
        return self._tasks

    def images(self, key: str, rows: Sequence[int]) -> list[bytes]:
        """Rows of the episode that were read last."""
        found = [self._images[key][row - self._start] for row in rows]
        for row, each in zip(rows, found, strict=True):
            if not isinstance(each, bytes):
                raise ImageError(
                    f"row {row:,} has no picture in the table",
                    hint="pictures that lie in files of their own are not read; embed them with LeRobot first",
                )
        return found

    def _kept_images(self, feature: Feature, episode: EpisodeWriter) -> list[bytes]:
        try:
            found = self.images(feature.key, range(self._start, self._start + len(self._images[feature.key])))
            for row, each in enumerate(found, self._start):
                if row in self._sampled:
                    pixels = depth.decode(each) if feature.is_depth else image.decode(each)
                    episode.add_image_sample(feature.key, pixels)
        except ImageError as error:
            raise self._named(feature.key, error) from error
        return found

    def _values(self, feature: Feature, values: Any) -> Any:
        if feature.dtype == "string" and any(value is None for value in values):
            text = f"column {feature.key!r}: an empty value in episode {self._number}"
            raise DataSetCorrupt(text, hint="fill it in first")
        return values


class _Decoded(ImageSource):
    """The frames of one camera and episode, decoded in order."""

    def __init__(self, packets: Packets, camera: DeclaredCamera) -> None:
        height, width = camera.source.shape[:2]
        self.scratch_bytes = height * width * 3
        self._frames = packets.decoded(range(packets.count))

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[StoredImage]:
        return (next(self._frames) for _ in rows)


class _Encoded(ImageSource):
    """The images of one camera in the rows of the table."""

    scratch_bytes = 1  # they lie in the rows

    def __init__(self, table: DeclaredRows, camera: DeclaredCamera) -> None:
        self._table, self._camera = table, camera

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[StoredImage]:
        height, width = self._camera.source.shape[:2]
        for row, data in zip(rows, self._table.images(self._camera.key, rows), strict=True):
            found = image.size_of(data)
            if found != (height, width):
                size = f"{found[1]}×{found[0]} px, info.json says {width}×{height}"
                raise ImageError(f"the picture of row {row:,} is {size}")
            yield np.frombuffer(data, np.uint8)

    def read_block(self, rows: Sequence[int], memory: NDArray[np.uint8]) -> list[StoredImage | ImageError]:
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
