"""Two loaders that feed the same steps (`zip`): the verdict is about the one that the loop waits for, and says so."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock._src.profile.loader_info import LoaderInfo
from penstock._src.profile.record import loader_pass
from penstock._src.profile.record import steps as steps_module
from penstock._src.profile.record.loader_pass import loader_id
from penstock._src.profile.record.steps import steps
from penstock._src.profile.verdict.verdict import verdict
from penstock.profile import Snapshot
from tests.profile.batches import Batches
from tests.profile.runs import run

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
STEPS = 40


class Quick(TorchDataset[Any]):
    seconds = 0.0

    def __len__(self) -> int:
        return 48  # so many that what starting a worker takes on a busy machine does not matter

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.tensor(index)


class Slow(Quick):
    seconds = 0.02


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [1_000_000_000]
    for module in (loader_pass, steps_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    return now


def waited_for(loader: Batches) -> tuple[int, int]:
    use = steps().use_of(loader_id(loader))
    return use.wait_ns, use.companion_wait_ns


def test_waits_are_known_by_loader(clock: list[int]) -> None:
    first, second, validation = Batches(clock, 10), Batches(clock, 10, wait_ns=7), Batches(clock, 4, wait_ns=900)
    for number, _ in enumerate(zip(first, second, strict=True)):
        clock[0] += 100
        if number == 4:
            for _ in validation:
                clock[0] += 50
    assert waited_for(first) == (100, 0)
    assert waited_for(second) == (70, 70)
    assert waited_for(validation) == (0, 0)


def test_waits_are_known_where_steps_are_marked(clock: list[int]) -> None:
    first, second = Batches(clock, 10), Batches(clock, 10, wait_ns=7)
    for _ in zip(first, second, strict=True):
        clock[0] += 100
        profile.mark_step()
    # The first mark says that steps are marked, and the batches before it were taken for something else.
    assert waited_for(second) == (63, 63) and waited_for(first)[1] == 0


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("slow_first", [False, True])
def test_the_verdict_is_about_the_one_that_is_waited_for(slow_first: bool, is_marked: bool, tmp_path: Path) -> None:
    data = (Slow(), Quick()) if slow_first else (Quick(), Slow())
    loaders = [profile.attach(DataLoader(each, batch_size=4, num_workers=1)) for each in data]
    for _ in range(2):
        for _ in zip(*loaders, strict=True):
            time.sleep(0.002)
            if is_marked:
                profile.mark_step()
    found = verdict()
    assert found.bound == "input" and found.now.service_ms > 75  # 4 samples of 20 ms
    assert any("2 loaders" in note and "Slow" in note for note in found.notes)
    profile.save(tmp_path / "RUN.json")
    again = verdict(profile.load(tmp_path / "RUN.json"))
    assert again.now.service_ms == pytest.approx(found.now.service_ms) and again.notes[0] == found.notes[0]


def zipped(first: dict[str, Any], second: dict[str, Any]) -> Snapshot:
    """A step that computes 10 ms and takes 60: the second loader's batches take 60 ms, with one worker."""
    made = run(60, 50, {"fetch": 45.0}, steps=2 * STEPS)  # 90 ms of both together
    points = tuple(point._replace(step=n) for n, point in enumerate(made.steps.series[:STEPS]))
    steps = replace(made.steps, count=STEPS, batches=STEPS, series=points, total_ns=60_000_000 * STEPS,
                    wait_total_ns=50_000_000 * STEPS)  # fmt: skip
    alike = {"kind": "torch.utils.data.DataLoader", "workers": 1, "batch_size": 8, "batches": STEPS,
             "batches_handed": STEPS, "persistent_workers": True}  # fmt: skip
    told = (
        {**alike, "text": "first", "dataset": "One", "step_batches": STEPS, "service_counter": "one", **first},
        {**alike, "text": "second", "dataset": "Two", "step_batches": 0, "service_counter": "two",
         "is_companion": True, **second},
    )  # fmt: skip
    subjects = tuple(map(LoaderInfo.from_json, told))
    counters = {"one": 30_000_000 * STEPS, "two": 60_000_000 * STEPS, "fetch_cpu_ns": 1_000_000 * STEPS,
                "batches_used": 2 * STEPS}  # fmt: skip
    return replace(made, steps=steps, loaders=subjects, counters=counters, machine={**made.machine, "cores": 8})


def test_no_change_of_one_makes_the_step_shorter_than_the_other_takes() -> None:
    found = verdict(zipped({"steps_waited_ms": 0.1 * STEPS}, {"steps_waited_ms": 49.9 * STEPS}))
    assert found.now.service_ms == pytest.approx(60) and found.now.beside_ms == pytest.approx(30)
    best = found.best
    assert best is not None and best.change["num_workers"] == 2
    assert best.predicted_step_ms is not None and 30 <= best.predicted_step_ms < 36
    told = json.loads(json.dumps(found.to_dict()))
    assert told["model"]["beside_ms"] == pytest.approx(30)
    assert "Two" in found.notes[0] and "Two" in found.lines("zh")[-1] + "".join(found.lines("zh"))


def test_one_that_works_in_the_loop_itself_is_a_part_of_the_step() -> None:
    found = verdict(
        zipped({"steps_waited_ms": 20 * STEPS, "workers": 0}, {"steps_waited_ms": 30 * STEPS, "batches": 400})
    )
    best = found.best
    assert best is not None and best.predicted_step_ms is not None and 30 <= best.predicted_step_ms < 36


def test_a_companion_that_is_hardly_waited_for_changes_nothing() -> None:
    found = verdict(zipped({"steps_waited_ms": 49 * STEPS}, {"steps_waited_ms": 1.0 * STEPS}))
    assert found.now.service_ms == pytest.approx(30) and "One" in found.notes[0]
