"""Penstock's own spans: counts are exactly samples × cameras, in threads and in worker processes, whole or killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import profile
from penstock._src.load.loader import Loader
from penstock._src.load.replay.buffer import AsyncSampleBuffer, MultimodalReplayBuffer
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from penstock._src.load.views.build import build_view
from penstock._src.profile.record.spans import paused, record_calls, show
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.profile import SpanStats, reset, snapshot
from tests.conversion import bags
from tests.load.image_store import ArraySource, ArrayStore
from tests.load.replay_files import write_replay
from tests.profile.ledger import Ledger, until_a_worker_dies

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),  # torch's, on a single core
]

ROWS, CAMERAS, BATCH = 45, 2, 8


def counts() -> dict[str, int]:
    return {name: each.count for name, each in snapshot().by_name().items()}


def loader(store: Any, **words: Any) -> Loader:
    words = {"batch_size": BATCH, "image_size": (24, 32), "threads": 2, "view": "off", "memory": "512MiB", **words}
    return Loader(store, words.pop("window", None), **words)


# Threads


def test_every_stage_of_every_sample_is_counted_once() -> None:
    store = ArrayStore((20, 25))
    with loader(store) as batches:
        for _ in range(2):
            assert sum(len(batch["state"]) for batch in batches) == ROWS
    found, told = counts(), snapshot()
    samples, n_batches = 2 * ROWS, 2 * -(-ROWS // BATCH)
    assert found["00_TOTAL_getitem"] == found["02_read_qpos"] == found["04_read_actions"] == samples
    assert found["03_read_images_total"] == found["05_to_tensor_normalize"] == samples
    assert found["03a_read_one_camera"] == found["03b_image_decode"] == found["03c_fetch_bytes"] == samples * CAMERAS
    assert found["data_wait"] == told.steps.count == n_batches
    stored = sum(store.column(name).stored_bytes for name in ("cam", "raw"))
    assert told.counters["bytes_read"] == 2 * stored
    assert told.counters["images_decoded"] == samples * CAMERAS and "view_hits" not in told.counters
    assert told.gauges["queue_depth"].count >= n_batches
    assert "03d_view_copy" not in found and "03e_view_put" not in found


def test_stages_nest_and_their_own_times_add_up() -> None:
    with loader(ArrayStore((20, 25))) as batches:
        for _ in batches:
            pass
    merged = snapshot().by_name()
    paths = {each.name: each.path for each in snapshot().spans}
    assert paths["03b_image_decode"] == ("00_TOTAL_getitem", "03_read_images_total", "03a_read_one_camera")
    total, images, camera = (merged[name] for name in paths["03b_image_decode"])
    parts = merged["03b_image_decode"].total_ns + merged["03c_fetch_bytes"].total_ns
    numbers = merged["02_read_qpos"].total_ns + merged["04_read_actions"].total_ns
    assert camera.self_ns == camera.total_ns - parts >= 0
    assert images.total_ns == camera.total_ns and images.self_ns == 0
    assert total.self_ns == total.total_ns - images.total_ns - numbers >= 0


def test_a_view_is_filled_once_and_answers_from_then_on() -> None:
    with loader(ArrayStore((20, 25)), view="ram") as batches:
        for _ in batches:
            pass
        first = counts()
        reset()
        for _ in batches:
            pass
    kept = first["03e_view_put"]  # raw images of another size have a view, too
    assert first["03b_image_decode"] == kept == ROWS * CAMERAS and "03d_view_copy" not in first
    again = counts()
    assert again["03d_view_copy"] == again["03a_read_one_camera"] == ROWS * CAMERAS
    told = snapshot().counters
    assert told["view_hits"] == ROWS * CAMERAS and told["bytes_read"] == told["images_decoded"] == 0
    assert "03b_image_decode" not in again and again["00_TOTAL_getitem"] == ROWS


def test_a_camera_of_a_window_counts_once_and_its_images_each() -> None:
    store = ArrayStore((20, 25))
    with loader(store, window=Window(cam=[-1, 0], columns=["cam", "action"]), dtype="float32") as batches:
        rows = [set(batch["index"].tolist()) for batch in batches]
    found = counts()
    assert found["03a_read_one_camera"] == found["00_TOTAL_getitem"] == ROWS
    wanted = [each | {row if row in (0, 20) else row - 1 for row in each} for each in rows]
    assert found["03b_image_decode"] == found["05a_normalize_image"] == sum(map(len, wanted))
    assert "02_read_qpos" not in found and found["04_read_actions"] == ROWS


def test_samples_of_a_mixture_count_wherever_they_come_from() -> None:
    mix = Mix([(ArrayStore((20,)), 1.0), (ArrayStore((25,), name="other"), 1.0)], 60)
    with loader(mix) as batches:
        taken = sum(len(batch["state"]) for batch in batches)
    found = counts()
    assert taken == found["00_TOTAL_getitem"] == found["02_read_qpos"] == found["03_read_images_total"] == 60
    assert found["03a_read_one_camera"] == 60 * CAMERAS


def test_steps_reach_from_one_next_to_the_following_unless_they_are_marked() -> None:
    with loader(ArrayStore((20, 25))) as batches:
        for _ in batches:
            pass
        by_loader = snapshot().steps
        assert by_loader.count == len(batches) and 0 < by_loader.wait_total_ns <= by_loader.total_ns
        reset()
        for number, _ in enumerate(batches):
            if number % 2:
                profile.mark_step()  # two batches are a step
    assert snapshot().steps.count == len(batches) // 2
    assert counts()["data_wait"] == len(batches)


def test_nothing_is_recorded_while_it_is_off() -> None:
    profile.disable()
    with loader(ArrayStore((20, 25))) as batches:
        for _ in batches:
            pass
    told = snapshot()
    assert not told.spans and not any(told.counters.values()) and not told.gauges and not told.steps.count


def test_a_loader_that_is_used_in_a_pause_tells_nothing_and_the_other_goes_on() -> None:
    with loader(ArrayStore((20, 25))) as batches, profile.span("run"):
        taken = iter(batches)
        next(taken)
        with paused(), loader(ArrayStore((20,), name="other")) as tried:
            assert sum(len(batch["state"]) for batch in tried) == 20
        assert sum(1 for _ in taken) == len(batches) - 1
    found = counts()
    assert found["run"] == 1 and found["data_wait"] == len(batches)
    assert found["00_TOTAL_getitem"] <= ROWS  # those that the pause found half made are not told


def test_threads_show_their_tasks_in_the_timeline_and_no_sums() -> None:
    with loader(ArrayStore((20, 25)), engine="thread") as batches:
        for _ in batches:
            pass
    shown = {each.thread: {event.name for event in each.events} for each in snapshot().events}
    workers = [names for thread, names in shown.items() if thread.startswith("penstock-load-")]
    assert workers and all(names <= {"03a_read_one_camera", "plan_batch"} for names in workers)
    assert {"03a_read_one_camera", "plan_batch"} == set().union(*workers)


def test_sums_of_calls_count_shown_stretches_do_not_and_a_reset_forgets_both() -> None:
    for _ in range(700):  # more than one folding
        record_calls("many", 3000, 3, child_ns=1000)
        began_ns = time.perf_counter_ns() - 10**12  # it ends now: on a machine that has just started, too
        show("many", began_ns, 10**12)
        show("only shown", began_ns, 10**12)
    (many,) = [each for each in snapshot().spans if each.name.startswith(("many", "only"))]
    assert (many.count, many.total_ns, many.self_ns) == (2100, 2_100_000, 1_400_000)
    assert many.min_ns == many.max_ns == many.p50_ns == 1000
    record_calls("long", 10**9, 2)
    reset()
    assert not [each for each in snapshot().spans if each.name in ("many", "long")]


# Other ways into a batch


def test_a_replay_buffer_counts_its_samples_and_waits(tmp_path: Path) -> None:
    data = write_replay(tmp_path / "a.hdf5", (30,), (), cameras=("left_image", "right_image"))
    cameras = ("left_image", "right_image")
    words: dict[str, Any] = {"memory": "512MiB", "threads": 2, "quiet": True}
    with MultimodalReplayBuffer(4, images=cameras, image_size=(16, 16), **words) as buffer:
        buffer.load_from_hdf5(data)
        reset()
        for _ in range(3):
            buffer.sample(10)
        found = counts()
        assert found["00_TOTAL_getitem"] == 30 and found["03a_read_one_camera"] == 30 * 2
        assert found["data_wait"] == 3 and snapshot().steps.count == 2
        reset()
        with AsyncSampleBuffer(buffer, 10, queue_size=2) as ahead:
            for _ in range(5):
                ahead.get_batch()
        assert counts()["data_wait"] == 5 and snapshot().steps.count == 4


def test_building_a_view_counts_what_it_decodes() -> None:
    views = build_view(ArrayStore((20, 25)), ["cam"], (24, 32), where="ram", memory="512MiB", threads=2)
    found = counts()
    assert found["03b_image_decode"] == found["03c_fetch_bytes"] == found["03e_view_put"] == ROWS
    assert "00_TOTAL_getitem" not in found and snapshot().counters["images_decoded"] == ROWS
    for view in views.values():
        view.close()


def test_files_are_opened_once_and_that_is_a_stage(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", (30,), (), cameras=("left_image",))
    with penstock.open(path) as store, loader(store, window=Window(columns=["observations/left_image"])) as batches:
        for _ in batches:
            pass
    assert counts()["01_file_cache"] >= 1


def test_a_conversion_counts_its_episodes(tmp_path: Path) -> None:
    tape = bags.camera(bags.CAM_H, bags.times(30, 0.5)) + bags.joints(bags.STATE, bags.times(60, 0.5))
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    found = counts()
    assert found["30_episode_write"] == found["31_episode_commit"] == 1 and found["33_store_images"] >= 1


# Worker processes


class MortalSource(ImageSource):
    """Images of another source; reading one of them ends the process, once it is time to."""

    def __init__(self, inner: ArraySource, deadly: int, until: Callable[[], object]) -> None:
        self._inner, self._deadly, self._until = inner, deadly, until
        self.scratch_bytes = inner.scratch_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row, image in zip(rows, self._inner.read(rows, scratch), strict=True):
            if row == self._deadly:
                self._until()
                os.kill(os.getpid(), signal.SIGKILL)
            yield image

    def keys(self, rows: Any) -> Any:
        return self._inner.keys(rows)


class MortalStore(ArrayStore):
    def __init__(self, lengths: Sequence[int], deadly: int, until: Callable[[], object]) -> None:
        super().__init__(lengths)
        self.deadly, self.until = deadly, until

    def images(self, name: str) -> ImageSource:
        found = super().images(name)
        assert isinstance(found, ArraySource)
        return MortalSource(found, self.deadly, self.until) if name == "raw" else found


def workers_of(found: dict[str, SpanStats]) -> set[int]:
    return {each.process for each in snapshot().spans if each.name in found} - {os.getpid()}


def test_two_workers_count_every_sample_and_camera() -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from penstock.torch import Dataset, collate

    with Dataset(ArrayStore((20, 25)), image_size=(24, 32), view="off", memory="512MiB") as dataset:
        batches = DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=collate, timeout=120)
        assert sum(len(batch["state"]) for batch in batches) == ROWS
    merged = snapshot().by_name()
    found = counts()
    assert found["00_TOTAL_getitem"] == found["03_read_images_total"] == found["05_to_tensor_normalize"] == ROWS
    assert found["03a_read_one_camera"] == found["03b_image_decode"] == ROWS * CAMERAS
    assert len(workers_of(merged)) == 2
    assert snapshot().counters["images_decoded"] == ROWS * CAMERAS


def test_a_worker_that_is_killed_midway_has_told_all_batches_before(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from penstock.torch import Dataset, collate

    ledger, taken = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "taken")

    class Noted(Dataset):
        """Notes, after each, which samples were handed out."""

        def __getitems__(self, indices: Sequence[int]) -> Any:
            found = super().__getitems__(indices)
            ledger.note(indices)
            return found

    # It dies in the middle of the fourth batch, the second one of the second worker, when three were taken and the
    # first worker has told its three batches and has no other: nobody is ended between telling a batch and noting it.
    handed = [*range(24), *range(32, 40)]
    store = MortalStore((20, 25), 27, lambda: (ledger.until(len(handed)), taken.until(3)))
    with Noted(store, image_size=(24, 32), view="off", memory="512MiB") as dataset:
        batches = DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=collate, timeout=120)
        assert until_a_worker_dies(batches, taken)
    assert sorted(ledger.noted()) == handed
    found = counts()
    assert found["00_TOTAL_getitem"] == found["03_read_images_total"] == len(handed)
    assert found["03a_read_one_camera"] == found["03b_image_decode"] == len(handed) * CAMERAS
    by_process = {each.process: each.count for each in snapshot().spans if each.name == "00_TOTAL_getitem"}
    assert sorted(by_process.values()) == [8, 24] and os.getpid() not in by_process
