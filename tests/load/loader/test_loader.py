"""The loader against a reference that reads row by row; order, resume, slots, losses, shards, mixtures, endings."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Clip, Transition, Window
from penstock._src.load.settings import Mix
from penstock.errors import BudgetExceeded, PenstockError, StoreCorrupt, UsageError
from tests.load.image_store import ArrayStore
from tests.load.view_rows import open_files
from tests.threads import earlier_threads, left_running, penstock_threads

SIZE = (24, 32)


def _loader(store: Any, window: Any = None, **options: Any) -> Loader:
    return Loader(store, window, **{"batch_size": 8, "image_size": SIZE, "threads": 2, "output": "numpy", **options})


def _resized(rgb: np.ndarray) -> np.ndarray:
    return cv2.resize(rgb, SIZE[::-1], interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)


def _decoded(data: np.ndarray) -> np.ndarray:
    return cv2.imdecode(data, cv2.IMREAD_COLOR)[:, :, ::-1]


def _indices(loader: Loader) -> list[int]:
    return [int(row) for batch in loader for row in batch["index"]]


def test_images_numbers_masks_and_texts_are_those_of_the_rows() -> None:
    store = ArrayStore([10, 7, 12])
    with _loader(store, Window(action=range(-1, 3)), exact=True, view="off") as loader:
        seen = []
        for batch in loader:
            for place, row in enumerate(batch["index"].tolist()):
                episode = int(store.episode_of(np.array([row]))[0])
                first, stop = store.episode_starts[episode : episode + 2].tolist()
                assert np.array_equal(batch["raw"][place], _resized(store.raw[row]))
                assert np.array_equal(batch["cam"][place], _resized(np.ascontiguousarray(_decoded(store.jpeg[row]))))
                assert np.array_equal(batch["state"][place], store.values["state"][row])
                for step, offset in enumerate(range(-1, 3)):
                    inside = min(max(row + offset, first), stop - 1)
                    assert np.array_equal(batch["action"][place, step], store.values["action"][inside])
                    assert batch["action_is_pad"][place, step] == (inside != row + offset)
                assert batch["task"][place] == f"task of episode {episode}"
                seen.append(row)
    assert sorted(seen) == list(range(29)) and seen != sorted(seen)


def test_a_scaled_jpeg_is_close_to_the_exact_one() -> None:
    store = ArrayStore([12], size=(96, 128))
    scaled, exact = (
        np.concatenate([batch["cam"] for batch in _loader(store, view="off", shuffle=False, exact=exact)])
        for exact in (False, True)
    )
    for ours, theirs in zip(scaled, exact, strict=True):
        error = np.mean((ours.astype(float) - theirs) ** 2)
        assert error > 0 and 10 * np.log10(255**2 / error) > 30


def test_full_size_float_images_are_the_bytes_by_255() -> None:
    store = ArrayStore([9])
    for batch in _loader(store, image_size=None, dtype="float32", view="off"):
        for place, row in enumerate(batch["index"].tolist()):
            expected = store.raw[row].transpose(2, 0, 1).astype(np.float32) / np.float32(255)
            assert np.array_equal(batch["raw"][place], expected)


def test_normalised_floats() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    store = ArrayStore([4])
    for view in ("off", "ram"):
        (batch,) = list(_loader(store, shuffle=False, dtype="float32", normalize=(mean, std), view=view))
        expected = np.stack([_resized(each) for each in store.raw]).astype(np.float32) / 255
        expected = (expected - np.array(mean).reshape(3, 1, 1)) / np.array(std).reshape(3, 1, 1)
        assert np.allclose(batch["raw"], expected, atol=1e-6)
    with pytest.raises(UsageError, match="float32"):
        _loader(store, normalize=(mean, std))


def test_a_row_needed_twice_is_read_once() -> None:
    store = ArrayStore([20])
    with _loader(store, Transition(columns=["raw", "state"]), batch_size=19, shuffle=False, view="off") as loader:
        (batch,) = list(loader)
        assert np.array_equal(batch["next.raw"][:-1], batch["raw"][1:])
        assert np.array_equal(batch["next.state"], store.values["state"][1:])
    assert sorted(store.log[:20]) == list(range(20))  # behind them: what was made ahead for the next epoch


@pytest.mark.parametrize("view", ["off", "ram", "disk"])
@pytest.mark.parametrize("window", [Window(columns=["cam", "raw"]), Clip(3, columns=["cam", "raw"]), Transition()])
def test_a_view_changes_nothing_but_the_work(
    view: str, window: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    store = ArrayStore([9, 11])
    plain = list(_loader(ArrayStore([9, 11]), window, view="off"))
    with _loader(store, window, view=view) as loader:
        read = []
        for _ in range(3):
            loader.set_epoch(0)
            read.append(len(store.log))
            for ours, theirs in zip(loader, plain, strict=True):
                assert list(ours) == list(theirs)
                for name, expected in theirs.items():
                    assert np.array_equal(ours[name], expected), name
        stats = loader.stats()
    if view != "off":
        assert stats["view_hits"] > 0
        assert len(set(store.log)) == 20 and len(store.log) == read[1]  # nothing is read after the first epoch


def test_order_is_the_same_for_any_number_of_threads() -> None:
    runs = [_indices(_loader(ArrayStore([30, 17]), threads=threads, view="off")) for threads in (1, 2, 8)]
    assert runs[0] == runs[1] == runs[2]


def test_epochs_differ_and_come_back() -> None:
    loader = _loader(ArrayStore([40]), Window(columns=["state"]))
    first, second = _indices(loader), _indices(loader)
    assert first != second and sorted(first) == sorted(second)
    loader.set_epoch(0)
    assert _indices(loader) == first
    assert _indices(loader) == second


def test_resume_at_every_step_gives_the_exact_tail() -> None:
    store = ArrayStore([23, 14])
    window = Window(columns=["state"])
    whole = _loader(store, window, batch_size=4, seed=5)
    epochs = _indices(whole), _indices(whole)
    for step in range(11):
        interrupted = _loader(store, window, batch_size=4, seed=5)
        head = [row for batch in itertools.islice(iter(interrupted), step) for row in batch["index"].tolist()]
        state = json.loads(json.dumps(interrupted.state_dict()))
        interrupted.close()
        for threads, batch_size in ((1, 4), (3, 6)):
            resumed = _loader(store, window, batch_size=batch_size, seed=5, threads=threads)
            resumed.load_state_dict(state)
            assert head + _indices(resumed) == epochs[0]
            assert _indices(resumed) == epochs[1]


def test_a_state_of_other_data_is_refused() -> None:
    state = _loader(ArrayStore([20])).state_dict()
    same = ArrayStore([20])
    for other in (_loader(ArrayStore([21])), _loader(same, seed=1), _loader(same, Transition())):
        with pytest.raises(UsageError, match="another"):
            other.load_state_dict(state)
    for broken in ({}, {**state, "position": 21}, {**state, "epoch": "1"}):
        with pytest.raises(UsageError):
            _loader(ArrayStore([20])).load_state_dict(broken)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    world=st.sampled_from([1, 2, 3, 4]),
    per_rank=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_shards_in_order_are_the_global_batches(lengths: list[int], world: int, per_rank: int, seed: int) -> None:
    store = ArrayStore(lengths, size=(6, 8))
    options: dict[str, Any] = {"batch_size": per_rank * world, "seed": seed, "drop_last": False, "threads": 1}
    window = Window(columns=["state"])
    whole = [batch["index"].tolist() for batch in _loader(store, window, **options)]
    parts = [
        [batch["index"].tolist() for batch in _loader(store, window, shard=(rank, world), **options)]
        for rank in range(world)
    ]
    joined = [list(itertools.chain(*each)) for each in itertools.zip_longest(*parts, fillvalue=[])]
    assert joined == whole


def test_a_batch_that_is_kept_is_not_overwritten() -> None:
    store = ArrayStore([64])
    loader = _loader(store, Window(columns=["raw"]), shuffle=False, view="off", batch_size=4)
    kept = list(loader)  # sixteen batches, five slots
    for number, batch in enumerate(kept):
        for place in range(4):
            assert np.array_equal(batch["raw"][place], _resized(store.raw[4 * number + place]))


def test_slots_are_recycled_when_batches_are_dropped() -> None:
    loader = _loader(ArrayStore([64]), Window(columns=["raw"]), view="off", batch_size=4)
    places = set()
    for _ in range(3):
        for batch in loader:
            places.add(batch["raw"].__array_interface__["data"][0])
    assert len(places) <= loader.memory_split.slots


def test_keeping_more_than_the_budget_holds_is_an_error_and_no_hang() -> None:
    loader = Loader(
        ArrayStore([48], size=(480, 640)), Window(columns=["raw"]), batch_size=8, image_size=None, output="numpy",
        memory="80MiB", view="off", threads=1,
    )  # fmt: skip
    with pytest.raises(BudgetExceeded, match="held by your code"):
        list(loader)


def test_too_small_a_budget_says_what_is_needed() -> None:
    with pytest.raises(BudgetExceeded, match="batches of") as caught:
        _loader(ArrayStore([64], size=(480, 640)), batch_size=64, image_size=None, memory="100MiB")
    assert "memory=" in (caught.value.hint or "")


def test_memory_views_stay_within_the_budget() -> None:
    store = ArrayStore([40], size=(480, 640))
    with _loader(store, Window(columns=["raw"]), image_size=(240, 320), memory="60MiB", view="ram") as loader:
        list(map(len, loader))
        (view,) = loader.stats()["views"].values()
        assert 0 < view["capacity"] < 40
        assert view["bytes"] + loader.memory_split.fixed_bytes <= 60 << 20
        loader.set_epoch(0)
        before = loader.stats()["view_hits"]
        list(map(len, loader))
        assert loader.stats()["view_hits"] - before == view["capacity"]


@pytest.mark.parametrize("window", [Window(columns=["raw"]), Clip(3, columns=["raw"]), Transition(columns=["raw"])])
def test_a_view_that_holds_a_part_of_the_rows_changes_nothing(window: Any) -> None:
    options: dict[str, Any] = {"image_size": (240, 320), "batch_size": 4, "threads": 2}
    plain = list(_loader(ArrayStore([25, 35], size=(480, 640)), window, view="off", **options))
    store = ArrayStore([25, 35], size=(480, 640))
    with _loader(store, window, view="off", memory="200MiB", **options) as loader:
        memory = loader.memory_split.fixed_bytes + 30 * 240 * 320 * 3
    with _loader(store, window, view="ram", memory=memory, **options) as loader:
        for _ in range(3):
            loader.set_epoch(0)
            for ours, theirs in zip(loader, plain, strict=True):
                for name, expected in theirs.items():
                    assert np.array_equal(ours[name], expected), name
        (view,) = loader.stats()["views"].values()
        assert 0 < view["capacity"] < 60
        assert loader.stats()["view_hits"] > 0


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_broken_row(on_error: str) -> None:
    store = ArrayStore([20, 20], broken=[25])
    loader = _loader(store, Window(columns=["cam", "state"]), on_error=on_error, max_skip_rate=0.1, view="off")
    if on_error == "raise":
        before = penstock_threads("penstock-feed")
        with pytest.raises(StoreCorrupt, match=r"cam, row 25 \(row 5 of episode 1\)"):
            list(loader)
        assert not penstock_threads("penstock-feed") - before
        return
    good = _loader(ArrayStore([20, 20]), Window(columns=["cam", "state"]), view="off")
    expected = [row for row in _indices(good) if row != 25]
    found = []
    for batch in loader:
        assert len(batch["cam"]) == len(batch["state"]) == len(batch["index"])
        assert np.array_equal(batch["state"], store.values["state"][batch["index"]])
        found += batch["index"].tolist()
    assert found == expected
    assert loader.stats()["skipped"] == 1 and loader.stats()["samples"] == 39


def test_more_losses_than_allowed_stop() -> None:
    store = ArrayStore([50], broken=range(10, 20))
    with pytest.raises(PenstockError, match="max_skip_rate"):
        list(_loader(store, Window(columns=["cam"]), on_error="skip", max_skip_rate=0.05, view="off"))


def test_a_mixture_takes_the_shares_asked_for() -> None:
    one, two = ArrayStore([60], name="one"), ArrayStore([30], name="two")
    two.values["state"] += 100
    mix = Mix({one: 0.75, two: 0.25}, length=80)
    with _loader(mix, Window(columns=["raw", "state", "task"]), view="off") as loader:
        from_two = 0
        for batch in loader:
            is_two = batch["state"].mean(axis=1) > 50
            from_two += int(is_two.sum())
            for place, row in enumerate(batch["index"].tolist()):
                source = two if is_two[place] else one
                assert np.array_equal(batch["raw"][place], _resized(source.raw[row]))
    assert from_two == 20
    with pytest.raises(UsageError, match="same outputs"):
        _loader(Mix({one: 1, ArrayStore([9], size=(10, 12)): 1}), image_size=None)


def test_torch_tensors_share_the_memory() -> None:
    torch = pytest.importorskip("torch")
    loader = _loader(ArrayStore([9]), output="torch")
    for batch in loader:
        assert batch["raw"].dtype == torch.uint8 and tuple(batch["raw"].shape[1:]) == (3, *SIZE)
        assert isinstance(batch["task"], list)


def test_nothing_is_left_behind(capfd: pytest.CaptureFixture[str]) -> None:
    earlier, before = earlier_threads(), open_files()
    threads = cv2.getNumThreads()
    for way in ("closed", "forgotten", "left"):
        loader = _loader(ArrayStore([40]), view="ram")
        batches = iter(loader)
        next(batches)
        if way == "closed":
            loader.close()
        if way == "left":
            with loader:
                pass
        assert way == "forgotten" or not penstock_threads() - earlier
        del loader, batches
        gc.collect()
        assert left_running(earlier) == []
    assert cv2.getNumThreads() == threads
    assert not open_files() - before


def test_an_interrupted_pass_ends_and_the_loader_goes_on() -> None:
    loader = _loader(ArrayStore([80]), view="off")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            for number, _ in enumerate(loader):
                if number == 3:
                    signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert sorted(_indices(loader)) == list(range(80))
    assert loader.epoch == 2  # the pass that was left counts


def test_a_pass_that_another_one_replaced_says_so() -> None:
    loader = _loader(ArrayStore([40]), Window(columns=["state"]))
    first = iter(loader)
    next(first)
    assert len(_indices(loader)) == 40
    epoch = loader.epoch
    with pytest.raises(UsageError, match="another one"):
        next(first)
    assert loader.epoch == epoch


def test_a_forked_child_has_a_loader_of_its_own() -> None:
    loader = _loader(ArrayStore([40]))
    expected = _indices(loader)
    loader.set_epoch(0)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # nobody waits for ever for a child that hangs
        os._exit(0 if _indices(loader) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _indices(loader) == expected


def test_a_program_that_ends_in_the_middle_of_a_pass_ends_cleanly() -> None:
    code = (
        "from tests.load.image_store import ArrayStore\nfrom penstock._src.load.loader import Loader\n"
        "batches = iter(Loader(ArrayStore([90]), batch_size=4, image_size=(24, 32)))\nnext(batches)\n"
    )
    root = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")


def test_what_is_asked_for_is_checked() -> None:
    store = ArrayStore([9])
    for options in (
        {"view": "cloud"}, {"threads": 0}, {"shuffle": "much"}, {"on_error": "ignore"}, {"dtype": "float64"},
        {"shard": 3}, {"image_size": (0, 5)}, {"prefetch": 0}, {"resize": "magic"}, {"output": "jax"},
        {"batch_size": 0},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            _loader(store, **options)
    with pytest.raises(UsageError, match="closed"):
        loader = _loader(store)
        loader.close()
        iter(loader)
