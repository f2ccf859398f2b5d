from __future__ import annotations

from pathlib import Path

import pytest

from penstock._src.lerobot import layout
from penstock._src.lerobot.layout import FilePosition
from penstock.errors import DataSetCorrupt


def test_files_are_numbered_as_lerobot_does() -> None:
    assert FilePosition(0, 998).next(1000) == FilePosition(0, 999)
    assert FilePosition(0, 999).next(1000) == FilePosition(1, 0)
    assert layout.fill_template(layout.VIDEO_PATH, key="cam", chunk_index=1, file_index=12) == (
        "videos/cam/chunk-001/file-012.mp4"
    )


@pytest.mark.parametrize(
    "template",
    ["{chunk_index.__class__}", "{other}", "{chunk_index!r}", "{file_index:>9999999999d}", "data/{", "{}", "{{x}}"],
)
def test_templates_with_other_fields_are_refused(template: str) -> None:
    with pytest.raises(DataSetCorrupt, match="path template"):
        layout.fill_template(template, chunk_index=0, file_index=0)


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "data/../../x", "a\x00b", "", "data\\..\\x"])
def test_paths_that_leave_the_data_set_are_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(DataSetCorrupt, match="leave the data set"):
        layout.path_in(tmp_path, relative)


def test_a_symbolic_link_that_leaves_the_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    root = tmp_path / "set"
    (root / "data").mkdir(parents=True)
    (root / "data/link").symlink_to(tmp_path / "secret")
    (root / "data/inside").symlink_to(root / "data")
    with pytest.raises(DataSetCorrupt, match="symbolic link"):
        layout.path_in(root, "data/link")
    layout.path_in(root, "data/inside/x")


def test_the_hubs_cache_keeps_its_files_as_links_and_is_read(tmp_path: Path) -> None:
    blob = tmp_path / "datasets--a--b/blobs/1234"
    blob.parent.mkdir(parents=True)
    blob.write_text("x")
    root = tmp_path / "datasets--a--b/snapshots/abcd"
    (root / "data").mkdir(parents=True)
    (root / "data/file").symlink_to("../../../blobs/1234")
    assert layout.path_in(root, "data/file").read_text() == "x"
