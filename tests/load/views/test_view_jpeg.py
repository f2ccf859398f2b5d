"""Views of JPEG rows: close to the pixels, a fraction of the bytes, never beyond the limit."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.load.views import jpeg_rows, view_file
from penstock._src.load.views.view import View, ViewSpec
from tests.load.view_rows import pixels_of, run, spec_of, verified


def _smooth(spec: ViewSpec, row: int) -> NDArray[np.uint8]:
    """An image as cameras give them: smooth, with edges."""
    rng = np.random.default_rng(row)
    coarse = rng.integers(0, 256, (8, 8, spec.channels), dtype=np.uint8)
    image = cv2.resize(coarse, spec.size[::-1], interpolation=cv2.INTER_CUBIC).reshape(*spec.size, spec.channels)
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def _psnr_db(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> float:
    error = np.mean((left.astype(np.float64) - right) ** 2)
    return float(10 * np.log10(255**2 / error))


@pytest.mark.parametrize("where", ["ram", "disk"])
@pytest.mark.parametrize("channels", [1, 3])
def test_rows_come_back_close_and_small(where: str, channels: int, tmp_path: Path) -> None:
    spec = spec_of(size=(96, 128), channels=channels, encoding="jpeg")
    with View.in_ram(spec, 10, None) if where == "ram" else View.on_disk(spec, 10, tmp_path) as view:
        for row in range(10):
            assert view.put(row, _smooth(spec, row))
        out = np.zeros(spec.shape, np.uint8)
        wide = np.zeros((spec.shape[0], spec.shape[1], spec.shape[2] * 2), np.uint8)
        for row in range(10):
            assert view.get(row, out) and _psnr_db(out, _smooth(spec, row)) > 35
            assert view.get(row, wide[:, :, ::2]) and np.array_equal(wide[:, :, ::2], out)
        assert view.n_bytes - view.layout.rows_at < 10 * spec.row_bytes / 3


def test_channels_keep_their_order() -> None:
    spec = spec_of(size=(16, 16), encoding="jpeg")
    red = np.zeros(spec.shape, np.uint8)
    red[0] = 255
    with View.in_ram(spec, 1, None) as view:
        out = np.empty(spec.shape, np.uint8)
        assert view.put(0, red) and view.get(0, out)
    assert out[0].min() > 245 and out[1:].max() < 10


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_full_view_refuses_quietly_and_counts(where: str, tmp_path: Path) -> None:
    spec = spec_of(size=(32, 32), encoding="jpeg")
    limit = 30_000
    with View.in_ram(spec, 100, limit) if where == "ram" else View.on_disk(spec, 100, tmp_path, limit) as view:
        kept = [view.put(row, pixels_of(spec, row)) for row in range(100)]
        assert 0 < sum(kept) == view.n_filled < 100
        assert view.n_refused == 100 - sum(kept) and any("full" in note for note in view.notes)
        assert os.fstat(view._fd).st_size <= limit
        out = np.empty(spec.shape, np.uint8)
        assert [view.get(row, out) for row in range(100)] == kept


def test_nobody_else_appends_while_a_row_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    with View.in_ram(spec_of(encoding="jpeg"), 4, None) as view:

        def write_all(fd: int, data: memoryview, offset: int) -> None:
            with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as other:
                try:
                    fcntl.fcntl(other, fcntl.F_OFD_SETLK, view_file._lock_of(fcntl.F_WRLCK, 0))
                    tried.append("free")
                except BlockingIOError:
                    tried.append("locked")
            view_file.write_all(fd, data, offset)

        monkeypatch.setattr(jpeg_rows, "write_all", write_all)
        assert view.put(0, pixels_of(view.spec, 0)) and view.put(1, pixels_of(view.spec, 1))
        assert tried == ["locked", "locked"]


def test_threads_and_processes_append_without_overwriting_and_within_the_limit(tmp_path: Path) -> None:
    spec = spec_of(size=(32, 32), encoding="jpeg")
    limit = 150_000
    code = f"""
view = View.on_disk(spec_of(size=(32, 32), encoding='jpeg'), 200, sys.argv[1], {limit})
for row in range(0, 200, 2):
    view.put(row, pixels_of(view.spec, row))
print(view.n_filled)
"""
    with View.on_disk(spec, 200, tmp_path, limit) as view:

        def work(first: int) -> None:
            for row in range(first, 200, 4):
                view.put(row, pixels_of(spec, row))

        threads = [threading.Thread(target=work, args=(first,)) for first in (1, 3)]
        for thread in threads:
            thread.start()
        run(code, tmp_path)
        for thread in threads:
            thread.join()
        assert view.n_bytes <= limit
        rows = np.flatnonzero(view.filled(np.arange(200)))
        assert verified(view, rows).all() and len(rows) > 20
        places = [view._entry(int(row), np.dtype([("o", "<u8"), ("s", "<u4"), ("c", "<u4")])) for row in rows]
        ends = 0
        for offset, size, _ in sorted((int(place["o"]), int(place["s"]), 0) for place in places):
            assert offset >= ends, "two rows share bytes"
            ends = offset + size
        out = np.empty(spec.shape, np.uint8)
        for row in rows.tolist():
            right = np.empty(spec.shape, np.uint8)
            assert jpeg_rows.decode(spec, jpeg_rows.encode(spec, pixels_of(spec, row)), right)
            assert view.get(row, out) and np.array_equal(out, right)
    with View.on_disk(spec, 200, tmp_path, limit) as view:
        assert verified(view, rows).all(), "and they are still there when it is opened again"
