"""Fault 16: an HDF5 file with an external link, external storage, a virtual data set, or a filter nobody has.

Expected: refused before anything is followed, with the name of the target; read only when the user says so.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.stores.hdf5.file import Hdf5File
from penstock.errors import ExternalRefused, MissingExtra, PenstockError, StoreCorrupt, StoreError
from tests.conversion import datasets

SECRET = np.arange(12.0).reshape(6, 2)


def make(tmp_path: Path, kind: str) -> Path:
    """A file whose action lies somewhere else."""
    with h5py.File(tmp_path / "secret.h5", "w") as other:
        other["values"] = SECRET
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    path = tmp_path / "run.hdf5"
    with h5py.File(path, "w") as file:
        file["observations/qpos"] = np.zeros((6, 3))
        if kind == "link":
            file["action"] = h5py.ExternalLink("secret.h5", "/values")
        elif kind == "group":
            file["behind"] = h5py.ExternalLink("secret.h5", "/")
            file["action"] = h5py.SoftLink("/behind/values")
        elif kind == "storage":
            file.create_dataset(
                "action", (6, 2), dtype="f8", external=[(str(tmp_path / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
            )
        else:
            layout = h5py.VirtualLayout((6, 2), dtype="f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "values", (6, 2))
            file.create_virtual_dataset("action", layout)
    return path


@pytest.mark.parametrize("kind", ["link", "group", "storage", "virtual"])
def test_what_lies_in_another_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path, kind)
    with pytest.raises(ExternalRefused, match=r"secret\.") as refused:
        penstock.convert(path, tmp_path / "out", fps=10)
    assert "secret." in refused.value.target and "hdf5.allow_external=true" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["link", "group", "storage", "virtual"])
def test_it_is_read_when_the_user_says_so_and_the_report_names_it(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path, kind)
    report = penstock.convert(path, tmp_path / "out", fps=10, overrides=["hdf5.allow_external=true"])
    assert np.array_equal(datasets.values(tmp_path / "out", "action"), SECRET)
    assert any("secret." in note and "as well" in note for note in report.notes)


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "circle.h5", "w") as file:
        file["one"] = h5py.SoftLink("/two")
        file["two"] = h5py.SoftLink("/one")
        file["self"] = h5py.SoftLink("/self")
        group = file.create_group("group")
        group["again"] = group
        file["action"] = np.zeros((3, 2))
    with Hdf5File(tmp_path / "circle.h5") as file:
        for name in ("one", "self"):
            with pytest.raises(StoreCorrupt, match="soft links follow one another"):
                file.kind(name)
        assert file.kind("group/again/again/again") == "group"
    with pytest.raises(PenstockError):
        penstock.convert(tmp_path / "circle.h5", tmp_path / "out", fps=10)


def test_a_filter_that_is_not_here_is_named(tmp_path: Path) -> None:
    """Written without the filter's code: a chunk may be stored as it is, and the file still names the filter."""
    for code, error, text in ((32015, MissingExtra, "zstd"), (31999, StoreError, "31999")):
        path = tmp_path / f"{code}.h5"
        with h5py.File(path, "w") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((4, 2))
            plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (1,))
            space = h5py.h5s.create_simple((4, 2))
            h5py.h5d.create(file.id, b"action", h5py.h5t.IEEE_F64LE, space, plist)
        try:
            import hdf5plugin  # noqa: F401

            continue
        except ImportError:
            pass  # the usual case: the extra is not installed
        with pytest.raises(error, match=text):
            penstock.convert(path, tmp_path / "out", fps=10)
