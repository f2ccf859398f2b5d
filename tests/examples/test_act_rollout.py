"""Rollouts: temporal ensembling against its definition, and policies that act in the task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._src.demo.act import ReachScript
from penstock.errors import UsageError

torch = pytest.importorskip("torch")

from act.columns import Columns  # noqa: E402
from act.data import Stats  # noqa: E402
from act.model import Shape  # noqa: E402
from act.policy import Policy, make_policy  # noqa: E402
from act.rollout import PolicyActs, TemporalEnsemble, roll_out  # noqa: E402

SCRIPT = ReachScript(height=32, width=48)
CAMERAS = ("observations/images/cam_high", "observations/images/cam_left_wrist")
pytestmark = pytest.mark.usefixtures("one_thread")


def _by_definition(chunks: Any, now: int, decay: float) -> Any:
    """All predictions for `now`, from the oldest chunk that reaches it on, weighted by exp(-decay · i)."""
    size = chunks.shape[1]
    text = [chunks[made, now - made] for made in range(max(0, now - size + 1), now + 1)]
    weights = np.array([np.exp(-decay * i) for i in range(len(text))])
    return sum(weight * each for weight, each in zip(weights / weights.sum(), text, strict=True))


@pytest.mark.parametrize(("size", "decay"), [(5, 0.01), (5, 0.0), (1, 0.01), (20, 0.5)])
def test_ensembling_is_what_it_says(size: int, decay: float) -> None:
    chunks = np.random.default_rng(0).normal(size=(14, size, 3))
    ensemble = TemporalEnsemble(size, decay)
    for now in range(14):
        assert np.allclose(ensemble.act(chunks[now]), _by_definition(chunks, now, decay), rtol=1e-12)


def test_tries_at_once_are_ensembled_apart() -> None:
    chunks = np.random.default_rng(1).normal(size=(6, 2, 4, 3))
    both, first = TemporalEnsemble(4), TemporalEnsemble(4)
    for now in range(6):
        assert np.allclose(both.act(chunks[now])[0], first.act(chunks[now, 0]))


def _policy(cameras: tuple[str, ...] = CAMERAS, dim: int = 14) -> tuple[Policy, Shape]:
    shape = Shape(dim, dim, len(cameras), 32, 48, 3, hidden_dim=16, dim_feedforward=16, heads=2, enc_layers=1,
                  dec_layers=1, backbone_width=8)  # fmt: skip
    stats = {name: Stats(1, [0.0] * dim, [1.0] * dim, [0.0] * dim, [1.0] * dim) for name in ("qpos", "action")}
    return make_policy("ACT", shape, Columns("qpos", "action", cameras), stats, 10.0).eval(), shape


def test_a_policy_acts_in_the_task_the_same_way_each_time() -> None:
    policy, shape = _policy()
    outcomes = [
        roll_out(PolicyActs(policy, shape, SCRIPT, torch.device("cpu")), SCRIPT, tries=2, rows=4) for _ in range(2)
    ]
    assert outcomes[0] == outcomes[1] and outcomes[0].tries == 2


def test_the_demonstrator_reaches_and_the_idle_do_not() -> None:
    expert = roll_out(lambda tasks: np.stack([task.expert() for task in tasks]), SCRIPT, tries=3)
    idle = roll_out(lambda tasks: np.stack([task.qpos for task in tasks]), SCRIPT, tries=3)
    assert expert.reached == 3 and expert.mean_distance_m < 0.02 and idle.reached == 0
    assert str(expert).startswith("3 of 3 reached (100 %)")


def test_a_policy_of_another_task_is_refused() -> None:
    for policy, shape in (_policy(cameras=("cam_x",)), _policy(dim=7)):
        with pytest.raises(UsageError, match="was not trained on the task"):
            PolicyActs(policy, shape, SCRIPT, torch.device("cpu"))
