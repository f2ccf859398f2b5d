"""Fault 18: a container limit below the host's memory; /dev/shm too small.

Expected: the loader plans with the smallest limit; fewer slots, threads or rows of a view, or an error with what is
needed and what is available. Views in RAM need no /dev/shm.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.load import settings
from penstock._src.load.views import build, view_opening
from penstock._src.system.limits import read_memory_limit
from penstock._src.system.units import GIB, MIB
from penstock.errors import BudgetExceeded, LimitExceeded
from tests.stores import hdf5_files as files
from tests.system.test_limits import Machine

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
ROWS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("small") / "episode_0.hdf5"
    files.aloha(made, ROWS)
    return made


def loader(store: penstock.Store, **options: Any) -> penstock.Loader:
    words = {"batch_size": 8, "image_size": (96, 96), "threads": 2, "output": "numpy", "view": "off"}
    return penstock.Loader(store, None, **{**words, **options})


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of 64 GiB, and a container on it whose limit the test writes, as files that are read as /proc and /sys."""
    machine = Machine(tmp_path / "root")
    machine.join_v2("/")
    for module in (settings, view_opening, build):
        monkeypatch.setattr(module, "read_memory_limit", partial(read_memory_limit, machine.root))
    return machine


def grant(machine: Machine, n_bytes: int) -> None:
    machine.write("sys/fs/cgroup/memory.max", f"{n_bytes + GIB}\n")
    machine.write("sys/fs/cgroup/memory.current", f"{GIB}\n")


def test_18_a_loader_plans_with_what_the_container_grants(container: Machine, path: Path) -> None:
    with penstock.open(path) as store:
        grant(container, 10 * GIB)
        with loader(store, memory="2GiB") as made:
            assert made.stats()["memory"]["limit_bytes"] == 2 * GIB
            plenty, fixed = made.memory_split, made.memory_split.fixed_bytes
            assert not any("memory:" in note for note in made.notes)
        grant(container, fixed - plenty.slot_bytes)
        with loader(store, memory="2GiB") as made:
            assert made.stats()["memory"]["limit_bytes"] == fixed - plenty.slot_bytes
            assert made.memory_split.slots == plenty.slots - 1 and made.memory_split.left_bytes >= 0
            assert any("2 GiB requested" in note and "cgroup v2" in note for note in made.notes)
            assert sum(len(batch["index"]) for batch in made) == ROWS


def test_18_what_cannot_be_granted_is_an_error_with_both_numbers(container: Machine, path: Path) -> None:
    grant(container, 50 * MIB)
    with penstock.open(path) as store, pytest.raises(BudgetExceeded) as caught:
        loader(store, memory="2GiB", batch_size=ROWS, image_size=(224, 224))
    assert caught.value.limit == 50 * MIB < caught.value.size
    assert "50 MiB" in caught.value.message and "cgroup v2" in caught.value.message
    assert "memory=" not in str(caught.value.hint)  # more cannot be asked for


def test_18_a_budget_too_small_for_a_batch_says_what_would_do(path: Path) -> None:
    with penstock.open(path) as store:
        with pytest.raises(BudgetExceeded) as caught:
            loader(store, memory="49MiB", batch_size=ROWS, image_size=(224, 224))
        assert caught.value.limit == 49 * MIB < caught.value.size
        word = str(caught.value.hint).split('"')[1]
        with loader(store, memory=word, batch_size=ROWS, image_size=(224, 224)) as made:
            assert len(list(made)) == 1  # what the hint says is enough
        with pytest.raises(BudgetExceeded):
            loader(store, memory=caught.value.size - 1, batch_size=ROWS, image_size=(224, 224))


def test_18_a_view_larger_than_what_is_left_keeps_fewer_rows(path: Path) -> None:
    with penstock.open(path) as store:
        with loader(store) as made:
            fixed = made.memory_split.fixed_bytes
            whole = [{name: np.array(value) for name, value in batch.items()} for batch in made]
        view_bytes = 2 * ROWS * 3 * 96 * 96
        with loader(store, memory=fixed + view_bytes // 2, view="ram") as made:
            notes = [note for note in made.notes if note.startswith("view: ")]
            assert "more memory all rows have a place" in notes[0]
            assert len(notes) == 3 and all(f"of {ROWS} rows" in note for note in notes[1:])
            views = made.stats()["views"]
            assert all(0 < view["capacity"] < ROWS for view in views.values())
            assert sum(view["bytes"] for view in views.values()) <= view_bytes // 2
            for _ in range(2):
                made.set_epoch(0)
                for ours, theirs in zip(made, whole, strict=True):
                    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
            assert made.stats()["view_hits"] > 0


def test_18_a_view_that_the_container_cannot_hold_is_refused_with_the_numbers(container: Machine, path: Path) -> None:
    grant(container, 4 * MIB)
    with penstock.open(path) as store:
        with pytest.raises(LimitExceeded) as caught:
            penstock.build_view(store, image_size=(224, 224), where="ram", memory="512MiB", threads=1)
        assert caught.value.limit == 4 * MIB and caught.value.size >= ROWS * 3 * 224 * 224
        views = penstock.build_view(store, image_size=(224, 224), where="ram", memory="512MiB", threads=1, limit="2MiB")
        assert all(0 < view.capacity < ROWS and view.n_filled == view.capacity for view in views.values())
        assert sum(view.n_bytes for view in views.values()) <= 2 * MIB
        for view in views.values():
            view.close()


def open_files() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


def in_shared_memory() -> set[str]:
    """Files and mappings of this process; locks of multiprocessing are some, too."""
    mapped = {line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {place for place in (*open_files(), *(f"/{each}" for each in mapped)) if place.startswith("/dev/shm")}


def test_18_a_view_in_ram_uses_no_shared_memory_file_system(path: Path) -> None:
    before = in_shared_memory()
    with penstock.open(path) as store, loader(store, view="ram") as made:
        list(made)
        assert sum(view["rows"] for view in made.stats()["views"].values()) == 2 * ROWS
        assert [place for place in open_files() if place.startswith("/memfd:")]
        assert [place for place in in_shared_memory() - before if not place.startswith(str(path.parent))] == []


_IN_PROCESS = """
import sys, penstock
store = penstock.open(sys.argv[1])
if sys.argv[2] == "rlimit":
    import re, resource, cv2
    text = open("/proc/self/status").read()
    size = int(re.search(r"VmSize:\\s+(\\d+) kB", text)[1]) * 1024 + (400 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
options = dict(batch_size=8, image_size=(96, 96), threads=1, output="numpy")
with penstock.Loader(store, memory="2GiB", view="ram" if sys.argv[2] == "shm" else "off", **options) as loader:
    for epoch in range(2):
        rows = sum(len(batch["index"]) for batch in loader)
    stats = loader.stats()
    print(rows, stats["memory"]["limit_bytes"], stats["view_hits"], *loader.notes, sep="|")
"""


def run(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-c", _IN_PROCESS, *words],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_18_a_real_limit_of_the_process_rules(path: Path) -> None:
    ran = run(str(path), "rlimit")
    assert ran.returncode == 0, ran.stderr
    rows, limit, _, *notes = ran.stdout.strip().split("|")
    assert int(rows) == ROWS and 100 * MIB < int(limit) <= 400 * MIB
    assert any("2 GiB requested" in note and "address space" in note for note in notes)


def test_18_a_tiny_shared_memory_file_system_does_not_matter(path: Path) -> None:
    if path.resolve().is_relative_to("/dev/shm"):
        pytest.skip("the data itself lies there")
    alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = "mount -t tmpfs -o size=64k penstock /dev/shm"
    try:
        tried = subprocess.run([*alone, mount], capture_output=True, timeout=TIMEOUT_S)
    except OSError:
        pytest.skip("there is no unshare")
    if tried.returncode:
        pytest.skip("this user may not mount a file system of its own")
    ran = run(str(path), "shm", before=(*alone, f'{mount} && exec "$0" "$@"'))
    assert ran.returncode == 0, ran.stderr
    rows, _, hits, *_ = ran.stdout.strip().split("|")
    assert int(rows) == ROWS and int(hits) == 2 * ROWS  # the second epoch comes from the view, larger than /dev/shm
