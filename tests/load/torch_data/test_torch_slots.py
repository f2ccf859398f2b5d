"""Batches of DataLoader workers in slots: the same places come again, what is kept stays, any collate_fn works."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.load.engine import worker_slots
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.torch_sharing import WorkerMemory
from penstock.errors import StoreError
from tests.lerobot import making
from tests.load.clips.clip_sets import config_tree, make_set

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from penstock.torch import Dataset, Sampler, collate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*granted CPUs:UserWarning"),
]

LENGTHS = (25, 23, 16)
BATCH, WORKERS, PREFETCH = 2, 2, 2
EPOCH = sum(LENGTHS) // BATCH


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    root = tmp_path_factory.mktemp("lerobot") / "set"
    making.make(root, LENGTHS, tasks=("lift the cup", "put it down"))
    with Dataset(root, image_size=(16, 24), memory="256MiB", view="off", threads=1) as made:
        yield made


def _loader(dataset: Dataset, collate_fn: Any = collate, **words: Any) -> DataLoader[Any]:
    sampler = Sampler(dataset, BATCH, shuffle=False)
    options = {"num_workers": WORKERS, "prefetch_factor": PREFETCH, "timeout": 120, **words}
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_fn, **options)


def _expected(dataset: Dataset) -> list[dict[str, Any]]:
    return [collate(dataset.__getitems__(range(first, first + BATCH))) for first in range(0, sum(LENGTHS), BATCH)]


def _same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        assert value == b[name] if isinstance(value, list) else torch.equal(value, b[name]), name


def _wait_for_workers() -> None:
    """torch ends its workers, but on a busy machine does not wait for them; their slots go with them."""
    for child in multiprocessing.active_children():
        child.join()


def _held() -> int:
    """Descriptors and mappings of batches in this process, when no worker runs."""
    gc.collect()
    _wait_for_workers()
    held = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            held += "penstock-batch" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one of the list itself
    return held + Path("/proc/self/maps").read_text().count("penstock-batch")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [True, False])
def test_batches_come_in_the_same_places_and_nothing_is_left(dataset: Dataset, start: str, persistent: bool) -> None:
    before = _held()
    expected = _expected(dataset)
    loader = _loader(dataset, multiprocessing_context=start, persistent_workers=persistent)
    for _ in range(2 if start == "fork" else 1):
        places = set()
        for batch, other in zip(loader, expected, strict=True):
            _same(batch, other)
            places.add(batch[making.CAMERA].data_ptr())
            del batch
        # The first batches of a worker are in fresh memory; later ones in slots.
        assert len(places) <= WORKERS * (PREFETCH + 3) < EPOCH
    del loader
    assert _held() == before and not worker_slots._mapped


def test_batches_that_are_kept_stay(dataset: Dataset) -> None:
    loader = _loader(dataset)
    kept = list(loader)
    assert len({batch[making.CAMERA].data_ptr() for batch in kept}) == EPOCH
    assert not all(batch[making.CAMERA].is_shared() for batch in kept)  # most are in slots, not in torch's memory
    for batch, other in zip(kept, _expected(dataset), strict=True):
        _same(batch, other)
    del loader
    _held()
    _same(kept[-1], _expected(dataset)[-1])  # the workers have ended
    assert not worker_slots._mapped


def test_batches_beyond_the_slots_are_in_fresh_memory(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_slots, "_MOST_SLOTS", 3)
    loader = _loader(dataset, multiprocessing_context="fork")
    kept = list(loader)
    assert sum(not batch[making.CAMERA].is_shared() for batch in kept) <= 3 * WORKERS
    for batch, other in zip(kept, _expected(dataset), strict=True):
        _same(batch, other)


def test_one_tensor_or_a_part_of_it_keeps_the_batch(dataset: Dataset) -> None:
    expected = _expected(dataset)
    kept = [batch[making.CAMERA][1, 0] for batch in _loader(dataset)]
    for part, other in zip(kept, expected, strict=True):
        assert torch.equal(part, other[making.CAMERA][1, 0])


def test_two_loaders_at_once_do_not_mix(dataset: Dataset) -> None:
    for one, two, other in zip(_loader(dataset), _loader(dataset), _expected(dataset), strict=True):
        _same(one, other)
        _same(two, other)


def _changed(samples: Any) -> Any:
    batch = collate(samples)
    batch["image"] = batch.pop(making.CAMERA)
    batch["doubled"] = batch["index"] * 2
    batch["index"].add_(100)
    del batch["action"]
    return batch


def _rewrapped(samples: Any) -> Any:
    batch = collate(samples)
    return batch[making.CAMERA], {"index": batch["index"]}


class _WithBefore:
    """Hands out the batch before beside each, which the worker keeps."""

    before: Any = None

    def __call__(self, samples: Any) -> Any:
        batch = collate(samples)
        kept, self.before = self.before, batch["index"]
        if kept is not None:
            batch["before"] = kept.clone()
        return batch


def test_a_collate_fn_may_change_the_batch(dataset: Dataset) -> None:
    places = set()
    for batch, other in zip(_loader(dataset, _changed), _expected(dataset), strict=True):
        assert torch.equal(batch["image"], other[making.CAMERA]) and "action" not in batch
        assert torch.equal(batch["index"], other["index"] + 100)
        assert torch.equal(batch["doubled"], other["index"] * 2)
        assert batch["task"] == other["task"]
        places.add(batch["image"].data_ptr())
        del batch
    assert len(places) < EPOCH


def test_a_collate_fn_may_make_something_else_of_it_and_dev_shm_is_not_needed(dataset: Dataset) -> None:
    for (images, rest), other in zip(_loader(dataset, _rewrapped), _expected(dataset), strict=True):
        assert torch.equal(images, other[making.CAMERA]) and torch.equal(rest["index"], other["index"])
        assert images.is_shared()
        assert images.untyped_storage().data_ptr() == rest["index"].untyped_storage().data_ptr()


def test_what_a_worker_keeps_of_a_batch_is_not_overwritten(dataset: Dataset) -> None:
    for number, batch in enumerate(_loader(dataset, _WithBefore(), num_workers=1)):
        first = number * BATCH
        assert batch["index"].tolist() == [first, first + 1]
        assert "before" not in batch or batch["before"].tolist() == [first - 2, first - 1]


def test_torchs_own_collate_works(dataset: Dataset) -> None:
    for batch, other in zip(_loader(dataset, None), _expected(dataset), strict=True):
        _same(batch, other)


def test_a_batch_in_a_worker_is_copied_like_any_dict() -> None:
    memory = WorkerMemory()
    memory.leaves_whole = True
    batch, arrays = memory.batch(lay_out({"index": ((4,), "int64")}))
    arrays["index"][...] = 3
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert type(other) is dict and other["index"].tolist() == [3] * 4
        assert other["index"].data_ptr() != batch["index"].data_ptr()
    assert copy.copy(batch)["index"] is batch["index"]


# Clips


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("clips"), train=(24,), val=(6,))


@pytest.mark.parametrize("persistent", [True, False])
def test_clips_come_in_slots_too(clips: Path, persistent: bool) -> None:
    words: dict[str, Any] = {"TRAIN": {"BATCH_SIZE": 1}}
    with penstock.clip_loaders(config_tree(clips, **words), log=None) as plain:
        expected = list(plain.train)
    before = _held()
    loader = {"TOTAL_WORKERS": 2, "TRAIN_PREFETCH_FACTOR": 2, "PERSISTENT_WORKERS": persistent}
    with penstock.clip_loaders(config_tree(clips, DATALOADER=loader, **words), log=None) as loaders:
        places = set()
        for batch, other in zip(loaders.train, expected, strict=True):
            _same(batch, other)
            places.add(batch["blur"].data_ptr())
            assert len(list(loaders.val)) == 4  # workers of another loader, forked meanwhile
            del batch
        assert len(places) < len(expected)
    gc.collect()
    assert _held() == before and not worker_slots._mapped


def test_clips_that_cannot_be_read_are_named_with_slots(clips: Path, tmp_path: Path) -> None:
    root = make_set(tmp_path / "clips", train=(24,))
    (root / "train" / "seq_0" / "sharp" / "0020.png").write_bytes(b"no image")
    tree = config_tree(root, DATA={"ON_ERROR": "skip"}, DATALOADER={"TOTAL_WORKERS": 1}, TRAIN={"BATCH_SIZE": 1})
    with penstock.clip_loaders(tree, log=None) as loaders:
        batches = list(loaders.train)
        assert all("skipped" not in batch for batch in batches)
        assert sum(int(batch["index"]) == -1 for batch in batches) == 3 and len(loaders.skipped) >= 3


def test_a_killed_worker_takes_its_slots_along(dataset: Dataset) -> None:
    before = _held()
    going: Any = iter(_loader(dataset, timeout=0))  # torch looks after its workers every five seconds
    taken = [next(going) for _ in range(8)]
    held = [batch[making.CAMERA].clone() for batch in taken]
    torchs = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # it would raise anywhere below
    try:
        os.kill(going._workers[0].pid, signal.SIGKILL)
        # The others where a batch of the dying worker is on its way.
        with pytest.raises((RuntimeError, StoreError, OSError, EOFError)):
            for _ in range(EPOCH):
                next(going)
        assert all(torch.equal(batch[making.CAMERA], images) for batch, images in zip(taken, held, strict=True))
        del going, taken
        assert _held() == before and not worker_slots._mapped
    finally:
        signal.signal(signal.SIGCHLD, torchs)
