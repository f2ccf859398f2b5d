"""A store of another package, in one file and with one registration: opened, inspected, loaded and converted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src import formats
from penstock._src.cli import main
from penstock.errors import StoreError, UsageError
from tests.conversion import datasets
from tests.formats import toy_store
from tests.formats.installed import install, penstock_with

ROWS = 12
CAMERA, STATE, ACTION = "observation.images.cam", "observation.state", "action"


def columns() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return {
        "cam": rng.integers(0, 256, (ROWS, 48, 64, 3), dtype=np.uint8),
        "state": rng.standard_normal((ROWS, 4)).astype(np.float32),
        "action": rng.standard_normal((ROWS, 2)).astype(np.float32),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return toy_store.write(tmp_path / "a.toyrows", columns(), (5, 7))


@pytest.fixture
def known() -> Iterator[None]:
    formats.register(toy_store.FORMAT)
    yield
    formats.unregister(toy_store.FORMAT.kind)


def test_it_is_opened(path: Path, known: None) -> None:
    with penstock.open(path) as store:
        assert (store.rows, store.episodes, store.fps) == (ROWS, 2, 10)
        assert np.array_equal(store.numbers("state", np.array([11, 0])), columns()["state"][[11, 0]])
    with penstock.open(path, episodes=[1], columns=["action"]) as part:
        assert list(part.columns) == ["action"] and part.rows == 7
        assert np.array_equal(part.numbers("action", np.array([0])), columns()["action"][[5]])


def test_it_is_opened_by_its_content_whatever_its_name(path: Path, known: None) -> None:
    with penstock.open(path.rename(path.with_name("data.bin"))) as store:
        assert store.kind == "toy rows"


def test_options_of_other_formats_are_refused(path: Path, known: None) -> None:
    with pytest.raises(StoreError, match="is a toy rows: mask= is an option of HDF5"):
        penstock.open(path, mask="train")
    with pytest.raises(StoreError, match="episodes='whole' is for those"):
        penstock.open(path, episodes="whole")
    with pytest.raises(UsageError, match="has no option 'speed'"):
        penstock.open(path, speed=1)


def test_without_the_plugin_it_is_no_store(path: Path) -> None:
    with pytest.raises(StoreError):
        penstock.open(path)


def test_it_is_inspected(path: Path, known: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "· toy rows" in out and "12 rows · 2 episodes · 10 fps" in out and "48×64×3 uint8" in out
    assert "file: rows lie one after the other" in out
    assert main(["inspect", str(path), "--episodes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "toyrows" and found["load"]["rows"] == 7 and found["bytes"] == path.stat().st_size


def test_it_is_listed_beside_others(
    tmp_path: Path, path: Path, known: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.formats import toy_recording

    formats.register(toy_recording.FORMAT)
    try:
        toy_recording.write(tmp_path / "b.toylog", {"/a": "x"}, [(1, "/a", {"q": 1.5})])
        assert main(["inspect", str(tmp_path)]) == 0
    finally:
        formats.unregister(toy_recording.FORMAT.kind)
    out = capsys.readouterr().out
    assert "toy rows · 2 episodes · 12 rows · 10 fps" in out and "toy log · 1 topic" in out and "2 inputs" in out


def test_fields_are_for_recordings(path: Path, known: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--fields"]) == 2
    assert "--fields is for recordings" in capsys.readouterr().err


def test_it_is_loaded(path: Path, known: None) -> None:
    store = penstock.open(path)
    with penstock.Loader(
        store, batch_size=4, image_size=None, shuffle=False, output="numpy", memory="512MiB"
    ) as loader:
        batches = [{name: np.copy(each) for name, each in batch.items()} for batch in loader]
    together = {name: np.concatenate([batch[name] for batch in batches]) for name in ("cam", "state", "action")}
    made = columns()
    assert np.array_equal(together["cam"], made["cam"].transpose(0, 3, 1, 2))
    assert np.array_equal(together["state"], made["state"]) and np.array_equal(together["action"], made["action"])


def test_it_is_opened_again_by_a_child_and_by_its_words(path: Path, known: None) -> None:
    with penstock.open(path, episodes=[1]) as store:
        assert pickle.loads(pickle.dumps(store)).rows == 7
        again = store.reopening()
    assert again is not None
    with penstock.open(again[0], **again[1]) as store:
        assert store.rows == 7


def test_it_is_converted(path: Path, known: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    report = penstock.convert(path, out, video="images")
    assert (report.exit_code, report.episodes, report.frames) == (0, 2, ROWS)
    assert np.array_equal(datasets.values(out, STATE), columns()["state"])
    assert np.array_equal(datasets.values(out, ACTION), columns()["action"])
    assert datasets.problems(out, full=True) == []
    with penstock.open(out) as store:
        rows = store.images(CAMERA).read(list(range(ROWS)), penstock._src.stores.store.Scratch())
        assert sum(1 for _ in rows) == ROWS
    assert main(["inspect", str(path)]) == 0
    assert "not as it is" not in capsys.readouterr().out


def test_it_is_converted_from_a_directory_beside_others(path: Path, known: None, tmp_path: Path) -> None:
    toy_store.write(tmp_path / "b.toyrows", columns(), (12,))
    report = penstock.convert(tmp_path, tmp_path / "out", video="images")
    assert (report.exit_code, report.episodes) == (0, 3)


def test_an_installed_package_needs_no_call(path: Path, tmp_path: Path) -> None:
    place = install(tmp_path / "site", "toy-rows", rows="tests.formats.toy_store:FORMAT")
    done = penstock_with(place, "inspect", str(path))
    assert done.returncode == 0 and "12 rows · 2 episodes" in done.stdout, done.stderr
