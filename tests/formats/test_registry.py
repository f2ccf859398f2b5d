"""The registry: what a path is, what a plug-in may say of itself, and what a broken one does to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock._src import formats
from penstock._src.cli import main
from penstock._src.formats import registry
from penstock._src.formats.format import RECORDING_DOCTOR, RECORDING_INPUT, load
from penstock._src.lerobot.layout import INFO_PATH
from penstock.errors import PenstockError, UsageError
from penstock.formats import Format
from tests.formats.installed import install

STORE = {"label": "toy", "family": "store", "open": "a.b:c"}


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_plugins", None)
    yield


def toy(kind: str = "toy", **words: Any) -> Format:
    return Format(**{"kind": kind, "suffixes": (".toy",), **STORE, **words})


# What a path is


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("run.bag", "ros1"),
        ("RUN.BAG", "ros1"),
        ("run.bag.active", "ros1"),
        ("run_0.db3.zstd", "db3"),
        ("run.mcap.zst", "mcap"),
        ("a.hdf5", "hdf5"),
        ("a.H5", "hdf5"),
        ("bag", None),
        ("run.bagx", None),
        ("notes.txt", None),
    ],
)
def test_a_name_promises_a_format(name: str, kind: str | None) -> None:
    found = formats.by_name(name)
    assert (None if found is None else found.kind) == kind


def test_the_content_counts_more_than_the_name(tmp_path: Path) -> None:
    for name, magic, kind in (
        ("a.hdf5", registry.BAG_MAGIC, "ros1"),
        ("a.bag", registry.HDF5_MAGIC, "hdf5"),
        ("a.mcap", b"nothing known", "mcap"),
        ("a.txt", registry.SQLITE_MAGIC, "db3"),
        ("b.txt", b"nothing known", None),
    ):
        (tmp_path / name).write_bytes(magic + bytes(100))
        found = formats.identify(tmp_path / name)
        assert (None if found is None else found.kind) == kind, name


def test_a_directory_is_known_by_a_file_in_it(tmp_path: Path) -> None:
    assert formats.identify(tmp_path) is None
    (tmp_path / INFO_PATH).parent.mkdir()
    (tmp_path / INFO_PATH).write_text("{}")
    assert formats.identify(tmp_path) is registry.LEROBOT
    assert formats.by_directory(tmp_path, "recording") is None


def test_every_reference_of_penstocks_own_formats_is_there() -> None:
    for each in registry.FORMATS:
        for action in ("open", "doctor", "recover", "inspect", "convert"):
            assert not getattr(each, action) or callable(each.load(action)), (each, action)
    assert callable(load(RECORDING_INPUT)) and callable(load(RECORDING_DOCTOR))


# What a format may say


@pytest.mark.parametrize(
    "words",
    [
        {"kind": ""},
        {"label": ""},
        {"family": "table"},
        {"suffixes": ()},
        {"suffixes": ("toy",)},
        {"suffixes": (".TOY",)},
        {"magics": (b"",)},
        {"magics": (bytes(65),)},
        {"open": "a.b.c"},
        {"open": ""},
        {"doctor": "a.b:"},
    ],
)
def test_a_format_that_could_not_work_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        toy(**words)


def test_a_registered_format_is_found_and_can_be_forgotten() -> None:
    formats.register(toy())
    assert formats.by_name("a.toy") is formats.get("toy")
    formats.register(toy(label="better toy"))  # a cell of a notebook, run again
    assert formats.get("toy").label == "better toy"
    formats.unregister("toy")
    assert formats.by_name("a.toy") is None
    with pytest.raises(UsageError, match="no format 'toy' is known here"):
        formats.get("toy")


@pytest.mark.parametrize("kind", ["ros1", "hdf5", "lerobot", "recording", "store"])
def test_penstocks_own_kinds_are_not_replaced(kind: str) -> None:
    with pytest.raises(UsageError, match="is penstock's own"):
        formats.register(toy(kind))


def test_penstocks_own_formats_come_first() -> None:
    formats.register(toy(suffixes=(".hdf5", ".toy"), magics=(registry.HDF5_MAGIC,)))
    assert formats.by_name("a.hdf5") is registry.HDF5 and formats.by_start(registry.HDF5_MAGIC) is registry.HDF5


def test_a_reference_that_is_not_there_is_named() -> None:
    with pytest.raises(PenstockError, match=r"the format 'toy': open='a\.b:c' cannot be loaded: No module named 'a'"):
        toy().load("open")
    with pytest.raises(PenstockError, match="has no attribute 'nothing'"):
        toy(open="penstock.formats:nothing").load("open")


# Packages


def test_an_installed_package_brings_its_formats_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_package.py").write_text(
        "from penstock.formats import Format\nloads = []\nloads.append(1)\n"
        "def make(kind):\n"
        "    return Format(kind, kind, 'store', open='toy_package:open', suffixes=('.' + kind,))\n"
        "ONE, TWO = make('one'), (make('two'), make('three'))\n"
    )
    monkeypatch.syspath_prepend(str(install(tmp_path, "toy-package", a="toy_package:ONE", b="toy_package:TWO")))
    assert [each.kind for each in formats.all_formats()][len(registry.FORMATS) :] == ["one", "two", "three"]
    assert formats.by_name("x.two") is not None and formats.by_name("x.three") is not None


def test_penstocks_own_formats_load_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_load_plugins", lambda: pytest.fail("packages were looked for"))
    assert formats.by_name("run.bag") is registry.ROS1
    assert formats.get("hdf5") is registry.HDF5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("raise SystemError('broken')", "SystemError: broken"),
        ("FORMAT = 'toy'", "is str, no penstock.formats.Format"),
        ("FORMAT = 3", "is int, no penstock.formats.Format"),
        ("from penstock._src.formats.registry import HDF5 as FORMAT", "the kind 'hdf5' is taken"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_package_is_named_and_breaks_nothing_else(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"toy_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    good = (
        "from penstock.formats import Format\nFORMAT = Format('good', 'good', 'store', open='a:b', suffixes=('.good',))"
    )
    (tmp_path / f"{name}_good.py").write_text(good)
    place = install(tmp_path, "broken-package", toy=f"{name}:FORMAT")
    monkeypatch.syspath_prepend(str(install(place, "good-package", toy=f"{name}_good:FORMAT")))
    with pytest.warns(RuntimeWarning, match=rf"the package broken-package \(toy\) cannot be used: .*{reason}"):
        assert formats.by_name("a.good") is not None
    assert formats.by_name("a.good") is not None  # no second warning
    assert formats.by_name("run.bag") is registry.ROS1


# What a format without a part says


def test_what_cannot_be_checked_or_recovered_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formats.register(toy(magics=(b"TOY",)))
    path = tmp_path / "a.toy"
    path.write_bytes(b"TOY data")
    assert main(["doctor", str(path)]) == 2
    assert "is a toy: doctor checks data sets and recordings" in capsys.readouterr().err
    assert main(["recover", str(path), str(tmp_path / "b.toy")]) == 1
    assert "is a toy, not a recording" in capsys.readouterr().err
