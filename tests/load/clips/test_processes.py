"""Workers and ranks as processes: one cache for all of them, workers that are killed, two ranks under torchrun."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.load.clips.loaders import ClipLoaders
from penstock._src.system.memory import descendants
from penstock.errors import StoreError
from tests.load.clips.cache_pss import cache_pss_bytes
from tests.load.clips.clip_sets import config_tree, make_set

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*granted CPUs:UserWarning"),
]

CLIPS = 5 + 7
CACHED = {"USE_RAM_CACHE": True, "CACHE_SIZE_GB": 0.01}


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path))
    yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("clips"), image=(192, 256), plane=(24, 32))


def _loaders(root: Path, workers: int, data: dict[str, Any]) -> ClipLoaders:
    tree = config_tree(root, DATA=data, DATALOADER={"TOTAL_WORKERS": workers}, TRAIN={"BATCH_SIZE": 1})
    return penstock.clip_loaders(tree, log=None)


def test_eight_workers_hold_the_cache_once(root: Path) -> None:
    with _loaders(root, 8, {**CACHED, "CROP_SIZE": 192}) as loaders:
        for _ in range(4):
            list(loaders.train)
        cache = loaders.cache
        assert cache is not None and cache.filled_bytes == 2 * 16 * 192 * 256 * 3  # 4.7 MB
        workers = descendants(os.getpid())
        assert len(workers) >= 8
        total_bytes = cache.filled_bytes
        alone = [cache_pss_bytes([pid], "Rss") for pid in workers]
        together = cache_pss_bytes([os.getpid(), *workers])
    # Every worker sees what it has read, and all of them together hold no more than there is.
    assert sum(alone) > 2 * total_bytes
    assert together <= total_bytes + (1 << 16)  # and the table of places


def test_a_killed_worker_does_not_wedge_the_cache(root: Path) -> None:
    with _loaders(root, 0, {}) as plain:
        expected = list(plain.train)
    with _loaders(root, 2, CACHED) as first:
        going = iter(first.train)
        next(going)
        workers = multiprocessing.active_children()
        # torch notices it where a batch of a dying worker is on its way, or in a signal, which may come at any line.
        with pytest.raises((RuntimeError, StoreError, OSError, EOFError)):
            for worker in workers:
                worker.kill()
            for _ in range(CLIPS):
                next(going)
        with contextlib.suppress(RuntimeError):  # a signal that is still to come comes here
            for worker in workers:
                worker.join()
            signal.raise_signal(signal.SIGCHLD)
        with _loaders(root, 2, CACHED) as again:  # the same cache, with what is in it
            assert again.cache is not None and first.cache is not None
            assert again.cache.n_filled >= first.cache.n_filled > 0
            for batch, other in zip(again.train, expected, strict=True):
                assert all(torch.equal(batch[name], other[name]) for name in other)


SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
import penstock
dist.init_process_group("gloo")
tree = json.loads(sys.argv[1])
rank = dist.get_rank()
with penstock.clip_loaders(tree, log=None) as loaders:
    epochs = [[int(i) for batch in loaders.train for i in batch["index"]] for _ in range(2)]
    going = iter(loaders.train)
    taken = [next(going) for _ in range(2)]
    state = loaders.state_dict()
    rest = [batch["blur"].sum().item() for batch in going]
    dist.barrier()
    with penstock.clip_loaders(tree, log=None) as again:
        again.load_state_dict(state)
        resumed = [batch["blur"].sum().item() for batch in again.train]
    inode = os.fstat(loaders.cache._fd).st_ino
    dist.barrier()
    out = {"epochs": epochs, "rest": rest, "resumed": resumed, "inode": inode, "state": state,
           "gpus": loaders.ranks.gpus, "val": [int(i) for batch in loaders.val for i in batch["index"]]}
    open(os.path.join(sys.argv[2], f"rank{rank}.json"), "w").write(json.dumps(out))
    dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_of_torchrun_see_every_clip_once_share_the_cache_and_resume(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    tree = config_tree(root, DATA=CACHED, DATALOADER={"TRAIN_WORKERS": 1}, TRAIN={"BATCH_SIZE": 1})
    del tree["DATALOADER"]["TOTAL_WORKERS"]
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script), json.dumps(tree)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert sorted(ranks[0]["epochs"][epoch] + ranks[1]["epochs"][epoch]) == list(range(CLIPS))
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    assert sorted(ranks[0]["val"] + ranks[1]["val"]) == list(range(4))
    for each in ranks:
        assert each["resumed"] == each["rest"] and len(each["rest"]) == CLIPS // 2 - 2
        assert each["gpus"] == 2 and each["state"] == ranks[0]["state"]
    assert ranks[0]["inode"] == ranks[1]["inode"]
