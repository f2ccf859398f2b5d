"""A mix of stores: each is walked in an order of its own, and a batch says which store a sample comes from."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.mixture import seed_of
from penstock._src.load.sampling.window import Window
from penstock._src.load.settings import Mix
from penstock.errors import UsageError
from tests.load.image_store import ArrayStore
from tests.load.memory_store import MemoryStore

STATE = Window(columns=["state"])


def _loader(store: Any, window: Any = STATE, **options: Any) -> Loader:
    return Loader(store, window, **{"batch_size": 16, "image_size": 16, "threads": 2, "output": "numpy", **options})


def _walks(loader: Loader) -> list[list[int]]:
    """Of every source its rows, in the order in which an epoch has them."""
    found: list[list[int]] = [[], [], []]
    for batch in loader:
        for source, row in zip(batch["source"].tolist(), batch["index"].tolist(), strict=True):
            found[source].append(row)
    return found


@pytest.mark.parametrize("shuffle", [True, "local"])
def test_stores_of_equal_size_are_walked_in_orders_of_their_own(shuffle: Any) -> None:
    stores = [ArrayStore([306], size=(8, 8), name=name) for name in ("one", "two", "three")]
    with _loader(Mix([(each, 1) for each in stores]), shuffle=shuffle, seed=5) as loader:
        walks = _walks(loader)
    assert all(sorted(walk) == list(range(306)) for walk in walks)
    firsts = [set(walk[:66]) for walk in walks]  # of three blocks of the mixture
    for one, other in itertools.combinations(firsts, 2):  # 14 by chance
        assert len(one & other) < 35
    with _loader(stores[0], shuffle=shuffle, seed=5) as alone:
        assert walks[0] == [row for batch in alone for row in batch["index"].tolist()]


@pytest.mark.parametrize("threads", [1, 3])
def test_without_shuffling_every_store_comes_as_it_is_stored(threads: int) -> None:
    stores = [ArrayStore([count], size=(8, 8), name=str(count)) for count in (90, 45, 15)]
    with _loader(Mix([(each, each.rows) for each in stores]), shuffle=False, threads=threads) as loader:
        for _ in range(2):
            assert _walks(loader) == [list(range(each.rows)) for each in stores]


def test_one_store_with_a_length_of_its_own_comes_in_its_own_order() -> None:
    store = ArrayStore([103], size=(8, 8))
    for shuffle in (False, True):
        with _loader(store, shuffle=shuffle) as alone, _loader(Mix({store: 1}, length=50), shuffle=shuffle) as loader:
            whole = [row for batch in alone for row in batch["index"].tolist()]
            assert _walks(loader)[0] + _walks(loader)[0] == whole[:100]


@pytest.mark.parametrize("world", [2, 4])
def test_shards_of_a_mix_in_order_are_the_whole(world: int) -> None:
    mix = Mix([(ArrayStore([40], size=(8, 8), name="one"), 2), (ArrayStore([56], size=(8, 8), name="two"), 1)])

    def pairs(**options: Any) -> list[list[tuple[int, int]]]:
        with _loader(mix, **options) as loader:
            return [list(zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)) for batch in loader]

    ranks = [pairs(shard=(rank, world), threads=rank + 1) for rank in range(world)]
    assert [list(itertools.chain(*shares)) for shares in zip(*ranks, strict=True)] == pairs()


def test_the_seeds_of_a_mix_stay_what_they_are() -> None:
    assert [seed_of(0, number) for number in range(3)] == [0, 4596840034439825, 6062627647631412]  # never to be edited
    assert seed_of(7, 0) == 7 and len({seed_of(seed, number) for seed in range(50) for number in range(1, 50)}) == 2450


def test_a_mix_resumes_and_refuses_a_state_of_a_version_with_another_order() -> None:
    mix = Mix([(ArrayStore([40], size=(8, 8), name="one"), 2), (ArrayStore([40], size=(8, 8), name="two"), 1)])
    with _loader(mix) as loader:
        whole = [(batch["source"].tolist(), batch["index"].tolist()) for batch in loader]
        loader.set_epoch(0)
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    with _loader(mix) as loader:
        loader.load_state_dict(state)
        assert [(batch["source"].tolist(), batch["index"].tolist()) for batch in loader] == whole[1:]
        for version in (None, 1, 3):
            order = {**state["order"], "version": version}
            if version is None:
                del order["version"]
            with pytest.raises(UsageError, match=r"another version of penstock.*\n.*set_epoch\(0\)"):
                loader.load_state_dict({**state, "order": order})
        with pytest.raises(UsageError, match="another order"):
            loader.load_state_dict({**state, "order": {**state["order"], "seed": 1}})


def test_a_state_of_a_single_store_has_no_version_of_mixtures() -> None:
    store = ArrayStore([40], size=(8, 8))
    state = {
        "version": 1,
        "epoch": 0,
        "position": 16,
        "order": {"kind": "shuffled", "count": 40, "seed": 0},
        "window": STATE.describe(),
    }
    with _loader(store) as loader, _loader(Mix([(store, 1), (store, 1)])) as mixed:
        whole = [batch["index"].tolist() for batch in loader]
        loader.load_state_dict(state)
        assert [batch["index"].tolist() for batch in loader] == whole[1:]
        with pytest.raises(UsageError, match="another order"):
            mixed.load_state_dict(state)


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_batch_says_which_store_each_sample_comes_from(output: str) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    stores = [ArrayStore([30], size=(8, 8), name=name) for name in ("one", "two")]
    stores[1].values["state"] += 100
    # Threads: what was changed in memory is not seen by an engine process, which opens the stores again.
    with _loader(Mix([(each, 1) for each in stores]), output=output, engine="thread") as loader:
        for batch in loader:
            numbers = np.asarray(batch["source"])
            assert numbers.shape == (len(batch["index"]),) and str(numbers.dtype) == "int64"
            assert list(batch)[-2:] == ["index", "source"]
            for number, row, state in zip(numbers, np.asarray(batch["index"]), batch["state"], strict=True):
                assert np.array_equal(np.asarray(state), stores[number].values["state"][row])


def test_samples_that_are_left_out_leave_their_number_out() -> None:
    stores = [ArrayStore([40], broken=[3, 17], name="one"), ArrayStore([40], name="two")]
    mix = Mix([(each, 1) for each in stores])
    with _loader(mix, Window(columns=["cam", "state"]), on_error="skip", max_skip_rate=0.5, view="off") as loader:
        walks = _walks(loader)
    assert sorted(walks[0]) == sorted(set(range(40)) - {3, 17}) and sorted(walks[1]) == list(range(40))


def test_only_a_mix_has_an_entry_for_the_store() -> None:
    store = ArrayStore([20], size=(8, 8))
    with _loader(store) as loader:
        assert "source" not in next(iter(loader))
    with _loader(Mix({store: 1})) as loader:  # of one store only: code for several works as it is
        assert next(iter(loader))["source"].tolist() == [0] * 16


def test_a_rank_without_samples_has_the_entry_too() -> None:
    mix = Mix([(ArrayStore([5], size=(8, 8)), 1), (ArrayStore([4], size=(8, 8)), 1)])
    with _loader(mix, batch_size=8, shard=(0, 2), drop_last=False) as loader:
        assert [batch["source"].shape for batch in loader] == [(4,), (0,)]


def test_a_column_called_source_is_refused_in_a_mix() -> None:
    stores = [MemoryStore([9], numbers=("state", "source")) for _ in range(2)]
    mix = Mix([(each, 1) for each in stores])
    with pytest.raises(UsageError, match=r"would be called 'source': source, and the number.*\n.*columns="):
        _loader(mix, None)
    with _loader(mix) as loader, _loader(stores[0], None) as alone:
        assert next(iter(loader))["source"].shape == (16,) and next(iter(alone))["source"].shape == (9, 2)
