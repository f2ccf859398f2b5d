"""A sample that stands in line for a CPU does not wait for storage: more workers than CPUs do not make it shorter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock import profile
from penstock._src.profile.loader_info import LoaderInfo
from penstock._src.profile.torch import wrappers
from penstock._src.profile.verdict.verdict import verdict
from penstock.profile import Snapshot, snapshot
from tests.profile.runs import run

STEPS = 60


def contended(workers: int, queued_ms: float) -> Snapshot:
    """One batch takes 90 ms, of which a CPU works 30."""
    made = run(90 / workers, 90 / workers - 5, {"00_TOTAL_getitem": 90.0}, steps=STEPS)
    told = {"kind": "torch.utils.data.DataLoader", "text": "it", "workers": workers, "batches": 1000, "batch_size": 8,
            "batches_handed": STEPS, "step_batches": STEPS, "persistent_workers": True}  # fmt: skip
    counters = {"fetch_cpu_ns": 30_000_000 * STEPS, "fetch_queued_ns": round(queued_ms * 1e6) * STEPS}
    steps = replace(made.steps, batches=STEPS)
    subjects = (LoaderInfo.from_json(told),)
    return replace(made, steps=steps, loaders=subjects, counters=counters, machine={**made.machine, "cores": 2})


def test_waiting_for_storage_wants_more_workers_than_cpus() -> None:
    found = verdict(contended(1, 0.0))
    assert found.best is not None and found.best.change["num_workers"] > 2
    assert not any("in line" in note for note in found.notes)


def test_standing_in_line_for_a_cpu_wants_no_more_than_cpus() -> None:
    found = verdict(contended(1, 58.0))
    assert found.best is not None and found.best.change["num_workers"] == 2
    assert not any("wait together" in fix.why for fix in found.fixes)
    (note,) = [note for note in found.notes if "in line" in note]
    assert "58" in note and "90" in note
    assert any("排队" in line for line in found.lines("zh"))


@pytest.mark.parametrize("workers", [2, 4])
def test_with_a_worker_for_every_cpu_none_is_recommended(workers: int) -> None:
    found = verdict(contended(workers, 55.0))
    assert found.bound == "input" and not [fix for fix in found.fixes if fix.name == "workers"]


def test_a_fetch_counts_its_time_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("torch.utils.data")
    now = [0]

    def queued_ns() -> int:
        now[0] += 1_000
        return now[0]

    monkeypatch.setattr("penstock._src.profile.torch.wrappers.queued_ns", queued_ns)
    for _ in profile.attach(data.DataLoader(list(range(12)), batch_size=4)):
        pass
    assert snapshot().counters["fetch_queued_ns"] == 6 * 1_000  # samples and collate of each batch


def test_what_the_kernel_does_not_tell_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrappers.queued_ns() >= 0
    for text in ("", "what", "1"):
        (tmp_path / "schedstat").write_text(text)
        monkeypatch.setattr(wrappers, "_SCHEDSTAT", str(tmp_path / "schedstat"))
        assert wrappers.queued_ns() == 0
    monkeypatch.setattr(wrappers, "_SCHEDSTAT", str(tmp_path / "absent"))
    assert wrappers.queued_ns() == 0
