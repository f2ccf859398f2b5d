"""State and action of any shape are vectors to a policy, and numbers far from zero keep their digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock

torch = pytest.importorskip("torch")

from act.columns import Columns  # noqa: E402
from act.data import Data, Stats  # noqa: E402
from act.loading import Loading  # noqa: E402
from act.model import Shape  # noqa: E402
from act.policy import make_policy  # noqa: E402

from tests.examples.making import walk, write_episode  # noqa: E402
from tests.examples.running import run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = Loading(memory="512MiB", threads="1")


def _episodes(directory: Path, shape: tuple[int, ...], flat: tuple[int, ...]) -> Path:
    for number in range(3):
        state, action = (walk(seed, *flat).reshape(-1, *shape) for seed in (number, 50 + number))
        write_episode(directory / f"episode_{number}.hdf5", state, action)
    return directory


def _history(directory: Path) -> Any:
    rows = json.loads((directory / "history.json").read_text())
    return [{name: value for name, value in row.items() if name != "ms_per_step"} for row in rows]


@pytest.mark.parametrize("policy", ["ACT", "CNNMLP"])
@pytest.mark.parametrize(("shape", "flat"), [((), (1,)), ((2, 2), (4,))])
def test_one_number_or_a_matrix_trains_as_the_vector_does(
    policy: str, shape: tuple[int, ...], flat: tuple[int, ...], tmp_path: Path
) -> None:
    for name, each in (("odd", shape), ("vector", flat)):
        data = _episodes(tmp_path / name, each, flat)
        assert run(data, tmp_path / f"ck_{name}", "--policy_class", policy) == 0
    assert _history(tmp_path / "ck_odd") == _history(tmp_path / "ck_vector")
    assert "val_stay_l1" in _history(tmp_path / "ck_odd")[0]


def test_one_number_of_a_lerobot_data_set(tmp_path: Path) -> None:
    penstock.convert(_episodes(tmp_path / "episodes", (1,), (1,)), tmp_path / "set", task="one")
    with Data(tmp_path / "set", 4, 2, 0, SMALL) as data:
        shape = Shape(1, 1, 1, 32, 48, 4, hidden_dim=16, dim_feedforward=16, heads=2, enc_layers=1, dec_layers=1,
                      backbone_width=8)  # fmt: skip
        policy = make_policy("CNNMLP", shape, data.columns, data.stats, 0.0)
        sample = policy.sample(next(iter(data.train)))
    assert sample.state.shape == (2, 1) and sample.actions.shape == (2, 4, 1)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64, np.int32, np.int64])
def test_whole_numbers_far_from_zero_keep_their_digits(kind: type[Any]) -> None:
    if not hasattr(torch, np.dtype(kind).name):
        pytest.skip("this torch has no such numbers")
    values = (2_000_000_000 + np.arange(30).reshape(5, 3, 2)).astype(kind)
    flat = values.reshape(-1, 2).astype(np.float64)
    stats = Stats(15, flat.mean(0).tolist(), flat.std(0).tolist(), flat.min(0).tolist(), flat.max(0).tolist())
    shape = Shape(2, 2, 1, 32, 32, 3, hidden_dim=16, heads=2, backbone_width=8)
    policy = make_policy("CNNMLP", shape, Columns("qpos", "action", ("a",)), {"qpos": stats, "action": stats}, 0.0)
    want = (flat.reshape(5, 3, 2) - stats.mean) / stats.scale
    assert np.abs(policy.normal_state(torch.tensor(values[:, 0])).numpy() - want[:, 0]).max() < 1e-6
    assert np.abs(policy.stay(torch.tensor(values[:, 0])).numpy()[:, 0] - want[:, 0]).max() < 1e-6


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_far_from_zero_float64_keeps_its_digits(kind: type[Any]) -> None:
    values = (4.5e6 + np.random.default_rng(0).normal(0, 0.1, (5, 3, 2))).astype(kind)
    flat = values.reshape(-1, 2).astype(np.float64)
    stats = Stats(15, flat.mean(0).tolist(), flat.std(0).tolist(), flat.min(0).tolist(), flat.max(0).tolist())
    shape = Shape(2, 2, 1, 32, 32, 3, hidden_dim=16, heads=2, backbone_width=8)
    policy = make_policy("CNNMLP", shape, Columns("qpos", "action", ("a",)), {"qpos": stats, "action": stats}, 0.0)
    batch = {"qpos": torch.tensor(values[:, 0]), "action": torch.tensor(values), "a": torch.zeros(5, 3, 32, 32),
             "action_is_pad": torch.zeros(5, 3, dtype=torch.bool)}  # fmt: skip
    sample = policy.sample(batch)
    assert sample.state.dtype == sample.actions.dtype == torch.float32
    if kind is np.float64:
        want = (values - stats.mean) / stats.scale
        assert np.abs(sample.actions.numpy() - want).max() < 1e-6 > np.abs(sample.state.numpy() - want[:, 0]).max()
        policy.predict = lambda state, images: torch.full((len(state), 1, 2), 0.25)  # type: ignore[method-assign]
        acted = policy.act(batch["qpos"], [])
        assert np.allclose(acted.numpy(), np.array(stats.mean) + 0.25 * np.array(stats.scale), rtol=1e-12)
    else:  # as it always was, to the last bit
        mean, std = (torch.tensor(each, dtype=torch.float32) for each in (stats.mean, stats.scale))
        assert torch.equal(sample.actions, (batch["action"] - mean) / std)
        assert "action_mean64" not in policy.state_dict()
