"""Rollouts: overlapping chunks averaged over time, and how often a policy reaches the targets of the synthetic task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import penstock
from penstock.demo import CAMERAS, SIDES, ReachScript, ReachTask, Scene
from penstock.errors import UsageError

from .columns import Columns, own_name
from .data import Stats
from .model import Shape
from .policy import Policy, make_policy

_FIRST_SEED = 1_000_000  # no episode of a data set has these targets
_ROWS = 60

Vector = NDArray[np.float64]
Act = Callable[[Sequence[ReachTask]], Vector]


class TemporalEnsemble:
    """The action of now: all chunks that said something of it, averaged; the oldest counts most, by exp(-decay · i)."""

    def __init__(self, chunk_size: int, decay: float = 0.01) -> None:
        self._weights = np.exp(-decay * np.arange(chunk_size))
        self._chunks: deque[Vector] = deque(maxlen=chunk_size)

    def act(self, chunk: Vector) -> Vector:
        """`chunk` (…, chunk_size, action_dim) was predicted now; the action (…, action_dim) to take now."""
        self._chunks.append(np.asarray(chunk, np.float64))
        ages = range(len(self._chunks) - 1, -1, -1)
        said = np.stack([each[..., age, :] for each, age in zip(self._chunks, ages, strict=True)])
        weights = self._weights[: len(said)]
        return np.asarray(np.tensordot(weights / weights.sum(), said, axes=1))


class Outcome(NamedTuple):
    """Of some tries."""

    tries: int
    reached: int
    mean_distance_m: float

    def __str__(self) -> str:
        share = 100 * self.reached / self.tries
        return f"{self.reached} of {self.tries} reached ({share:.0f} %), hands {100 * self.mean_distance_m:.1f} cm away"


def load_policy(found: Mapping[str, Any]) -> tuple[Policy, Shape]:
    """The policy of a checkpoint (`read_to_act`), ready to act."""
    columns = Columns(**{**found["columns"], "cameras": tuple(found["columns"]["cameras"])})
    stats = {name: Stats(**each) for name, each in found["stats"].items()}
    shape = Shape(**found["shape"])
    policy = make_policy(found["policy_class"], shape, columns, stats, found["settings"]["kl_weight"])
    policy.load_state_dict(found["model"])
    return policy.eval(), shape


class PolicyActs:
    """A policy with its temporal ensemble, for several tries at a time."""

    def __init__(self, policy: Policy, shape: Shape, script: ReachScript, device: torch.device) -> None:
        self._policy, self._device = policy, device
        self._cameras = [own_name(column) for column in policy.columns.cameras]
        if set(self._cameras) - set(CAMERAS) or shape.state_dim != 14 or shape.action_dim != 14:
            raise UsageError(
                f"the policy looks at {', '.join(self._cameras)} and moves {shape.action_dim} joints: it was not "
                f"trained on the task of `penstock demo act`, the only one that can be tried here"
            )
        self._size = (shape.height, shape.width)
        self._ensemble = TemporalEnsemble(shape.chunk_size)

    @torch.no_grad()
    def __call__(self, tasks: Sequence[ReachTask]) -> Vector:
        """(tries, 14)."""
        images: NDArray[np.uint8] = np.empty((len(self._cameras), len(tasks), 3, *self._size), np.uint8)
        for number, task in enumerate(tasks):
            jpegs = task.jpegs()  # through the same JPEGs and the same resize as in training
            for place, name in enumerate(self._cameras):
                images[place, number] = penstock.fit_image(jpegs[name], self._size)
        state = torch.tensor(np.stack([task.qpos for task in tasks]), dtype=torch.float32, device=self._device)
        chunks = self._policy.act(state, list(torch.from_numpy(images).to(self._device)))
        return self._ensemble.act(chunks.double().cpu().numpy())


def roll_out(act: Act, script: ReachScript, tries: int, rows: int = _ROWS) -> Outcome:
    """Let something act in tasks whose targets nobody has seen; reached counts at the end, in all tries at once."""
    scene = Scene(script.height, script.width)
    tasks = [ReachTask(script, _FIRST_SEED + number, scene) for number in range(tries)]
    for _ in range(rows):
        for task, action in zip(tasks, act(tasks), strict=True):
            task.step(action)
    distances = [task.distance_m(side) for task in tasks for side in SIDES]
    return Outcome(tries, sum(task.reached for task in tasks), float(np.mean(distances)))


def evaluate(policy: Policy, shape: Shape, script: ReachScript, tries: int, device: torch.device) -> dict[str, Outcome]:
    """A policy on the synthetic task, beside the demonstrator and what the mean action would do."""
    mean = policy.action_mean.double().cpu().numpy()
    acts: dict[str, Any] = {
        "policy": PolicyActs(policy.to(device), shape, script, device),
        "predict the mean": lambda tasks: np.repeat(mean[None], len(tasks), 0),
        "demonstrator": lambda tasks: np.stack([task.expert() for task in tasks]),
    }
    return {name: roll_out(act, script, tries) for name, act in acts.items()}
