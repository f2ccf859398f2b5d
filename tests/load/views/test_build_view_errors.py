"""A disk that refuses a row while a view is built: named, or left out and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock._src.load.views.build import build_view
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.errors import StoreError
from tests.load.image_store import ArraySource, ArrayStore


class FailingSource(ArraySource):
    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            if row in (7, 12):
                raise OSError(5, "Input/output error")
            yield from super().read([row], scratch)


class FailingStore(ArrayStore):
    def images(self, name: str) -> ImageSource:
        return FailingSource(self.jpeg, frozenset(), self.log)

    def file_of(self, row: int, name: str = "") -> Path:
        return self.path / f"{row // 10}.file"


def test_a_row_that_the_disk_refuses_is_named() -> None:
    words = r"arrays/0\.file: cam, row 7 \(row 7 of episode 0\): it cannot be read: .*Input/output error"
    with pytest.raises(StoreError, match=words) as caught:
        build_view(FailingStore([10]), "cam", (24, 32), where="ram", threads=1)
    cause = caught.value.__cause__
    assert cause is not None and isinstance(cause.__cause__, OSError)


def test_a_row_that_the_disk_refuses_is_left_out_where_that_is_asked() -> None:
    (view,) = build_view(FailingStore([20]), "cam", (24, 32), where="ram", threads=1, on_error="skip").values()
    assert view.n_filled == 18 and view.n_refused == 0
    (note,) = view.notes
    assert note.startswith("2 rows were left out") and "Input/output error" in note
    view.close()
