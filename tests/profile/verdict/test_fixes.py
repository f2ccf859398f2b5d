"""Changes: which apply, what they are predicted to give from what was measured, and which one is recommended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.schema import decode
from penstock._src.profile.stats import LoaderInfo
from penstock._src.profile.verdict.fixes import bandwidth_of, best_of, fixes_for
from penstock._src.profile.verdict.model import BatchCost, Fix, FixInputs, LoaderModel, PassStarts, StageTime
from tests.profile.runs import image, loader_told, way

WAYS = [
    way("now", 5.0, stored_bytes=90_000), way("read", 0.05, stored_bytes=90_000), way("scaled", 9.0, 3.05),
    way("ram", 0.02), way("disk", 0.03),
]  # fmt: skip


def case(
    *, decode_ms: float = 78.0, read_ms: float = 2.0, compute_ms: float = 10.0, told: dict[str, Any] | None = None,
    ways: list[AccessPath] = WAYS, input_bound: bool = True, hits: float = 0.0, **now: Any,
) -> FixInputs:  # fmt: skip
    stages = (StageTime("03b_image_decode", decode_ms), StageTime("03c_fetch_bytes", read_ms))
    service = decode_ms + read_ms
    settings = {"threads": 2, "cores": 2, "cpu_ms": service, "read_bytes": 16 * 90_000.0, **now}
    situation = LoaderModel(service_ms=service, compute_ms=compute_ms, **settings)
    step_ms = situation.step_ms if input_bound else compute_ms
    whole = decode(LoaderInfo, {**loader_told(), **(told or {})})
    return FixInputs(situation, step_ms, stages, whole, {each.name: each for each in ways}, hits, input_bound)


def by_name(made: FixInputs) -> dict[str, Fix]:
    return {fix.name: fix for fix in fixes_for(made)}


def ms_of(fix: Fix) -> float:
    assert fix.predicted_step_ms is not None
    return fix.predicted_step_ms


# Views


def test_a_view_in_ram_leaves_the_computing_alone() -> None:
    found = by_name(case())["view in RAM"]
    assert found.change == {"view": "ram"} and ms_of(found) == 10.0


def test_a_view_leaves_copies_where_computing_is_shorter() -> None:
    copies = [each for each in WAYS if each.name != "ram"] + [way("ram", 1.0)]
    assert ms_of(by_name(case(compute_ms=1.0, ways=copies))["view in RAM"]) == pytest.approx(16 * 1.0 / 2)


def test_a_view_beyond_the_budget_asks_for_the_memory_that_the_machine_has() -> None:
    found = by_name(case(told={"memory_left_bytes": 50 << 20}))["view in RAM"]
    assert found.change["view"] == "ram"
    assert (2 << 30) + (100 << 20) - (50 << 20) < found.change["memory"] < 2.2 * (1 << 30)
    assert ms_of(found) == 10.0


def test_a_view_that_does_not_fit_gives_the_mix_of_hits_and_misses() -> None:
    small = {"memory_left_bytes": 75 << 20, "memory_available_bytes": 1 << 30}  # of 143.6 MiB
    found = by_name(case(told=small))["view in RAM"]
    share = (75 << 20) / (1000 * 150_528)
    assert found.change == {"view": "ram"}
    assert ms_of(found) == pytest.approx((share * 16 * 0.02 + (1 - share) * 80) / 2, rel=0.01)
    assert "52%" in found.why


def test_a_view_that_is_being_filled_only_has_to_be_waited_for() -> None:
    view = {"where": "ram", "capacity": 1000, "filled": 300, "bytes": 1000 * 150_528}
    made = case(told={"images": [image(view=view)]}, hits=0.1)
    found = by_name(made)
    assert ms_of(found["wait for the view"]) == 10.0 and not found["wait for the view"].change
    assert "view in RAM" not in found and "view on disk" not in found
    assert best_of(fixes_for(made), 40.0) == found["wait for the view"]


def test_a_full_view_is_not_proposed_again() -> None:
    view = {"where": "ram", "capacity": 1000, "filled": 1000, "bytes": 1000 * 150_528}
    found = by_name(case(told={"images": [image(view=view)]}, hits=1.0))
    assert not {"view in RAM", "wait for the view"} & set(found)


def test_a_view_on_disk_needs_room_there() -> None:
    assert ms_of(by_name(case())["view on disk"]) == 10.0
    assert "view on disk" not in by_name(case(told={"cache_free_bytes": 100 << 20}))


def test_views_that_nobody_measured_come_without_a_number_and_with_their_size() -> None:
    made = case(ways=[], told={"images": [image("a"), image("b")]})
    found = by_name(made)
    for name, change in (("view in RAM", {"view": "ram"}), ("view on disk", {"view": "disk"})):
        assert found[name].predicted_step_ms is None and found[name].change == change
        assert "287 MiB" in found[name].why and "not measured" in found[name].why
    view = {"where": "ram", "capacity": 1000, "filled": 300, "bytes": 1000 * 150_528}
    filling = by_name(case(ways=[], told={"images": [image(view=view)]}, hits=0.1))["wait for the view"]
    assert filling.predicted_step_ms is None


def test_images_that_a_view_would_not_help_get_none() -> None:
    assert not {"view in RAM", "view on disk"} & set(by_name(case(told={"images": [image(view_row_bytes=0)]})))


# Decoding


def test_scaled_decode_is_predicted_from_the_ratio_measured_on_the_users_images() -> None:
    found = by_name(case(told={"images": [image(can_scale=True)]}))["scaled decode"]
    ratio = (3.05 - 0.05) / (5.0 - 0.05)
    assert found.change == {"exact": False}
    assert ms_of(found) == pytest.approx((2 + 78 * ratio) / 2)


def test_scaled_decode_has_no_number_where_nothing_was_measured() -> None:
    found = by_name(case(told={"images": [image(can_scale=True)]}, ways=[]))
    assert found["scaled decode"].predicted_step_ms is None
    assert "scaled decode" not in by_name(case())


def test_gpu_decode_is_named_only_where_there_is_a_gpu() -> None:
    assert "decode on the GPU" not in by_name(case())
    told = {"cuda": True, "device": "cuda:0"}
    assert by_name(case(told=told))["decode on the GPU"].predicted_step_ms is None
    measured = by_name(case(told=told, ways=[*WAYS, way("gpu", 0.05)]))["decode on the GPU"]
    assert measured.change == {"device": "cuda:0", "gpu_decode": True, "view": "off"} and ms_of(measured) == 10.0
    assert "decode on the GPU" not in by_name(case(told={**told, "resize": "area"}))  # which the device does not know


# Threads and storage


def test_threads_that_get_into_each_others_way_are_not_proposed() -> None:
    assert "threads" not in by_name(case())  # four at once took twice as long each


def test_one_thread_of_two_cores_may_become_two() -> None:
    ways = [way("now", 5.0, t2=5.5), way("read", 0.05)]
    ways = [AccessPath(each.name, 48, {1: each.ms(1), 2: each.ms(2)}, each.cpu_ms, 0.0) for each in ways]
    found = by_name(case(threads=1, told={"threads": 1}, ways=ways))["threads"]
    assert found.change == {"threads": 2} and ms_of(found) == pytest.approx(80 * 1.1 / 2)


def test_without_a_measurement_threads_go_up_to_the_cores_granted() -> None:
    found = by_name(case(threads=2, cores=8, ways=[]))["threads"]
    assert found.change == {"threads": 8} and ms_of(found) == pytest.approx(10.0)
    assert "threads" not in by_name(case(threads=8, cores=8, ways=[]))


def test_workers_of_a_dataloader_are_called_so() -> None:
    told = LoaderInfo(kind="torch.utils.data.DataLoader", workers=0, batch_size=16)
    stages = (StageTime("00_TOTAL_getitem", 30.0),)
    made = FixInputs(LoaderModel(30.0, 0, 4, 20.0, cpu_ms=30.0), 50.0, stages, told, {}, 0.0, True)
    found = by_name(made)["workers"]
    assert found.change == {"num_workers": 2} and ms_of(found) == 20.0


NO_STARTS = PassStarts()


def attached(
    service_ms: float, cpu_ms: float, *, workers: int = 2, compute_ms: float = 5.0, stage: str = "00_TOTAL_getitem",
    starts: PassStarts = NO_STARTS, **told: Any,
) -> FixInputs:  # fmt: skip
    """An ordinary DataLoader, on two CPUs."""
    now = LoaderModel(service_ms, workers, 2, compute_ms, cpu_ms=cpu_ms)
    whole = LoaderInfo(**{"workers": workers, "persistent_workers": False, **told})
    step_ms = now.step_ms + starts.per_step_ms
    return FixInputs(now, step_ms, (StageTime(stage, service_ms),), whole, {}, 0.0, True, starts=starts)


def test_workers_that_wait_for_storage_may_be_twice_the_cpus() -> None:
    found = by_name(attached(80.0, 1.0))["workers"]
    assert found.change == {"num_workers": 4} and ms_of(found) == 20.0
    assert "a CPU works 1.0" in found.why
    assert by_name(attached(80.0, 1.0, compute_ms=30.0))["workers"].change == {"num_workers": 3}  # enough


def test_workers_that_work_are_no_more_than_the_cpus() -> None:
    assert "workers" not in by_name(attached(80.0, 78.0))
    assert by_name(attached(80.0, 78.0, workers=1))["workers"].change == {"num_workers": 2}


def test_of_the_threads_measured_the_fewest_that_do_it_are_proposed() -> None:
    waiting = AccessPath("now", 48, {2: 5.0, 4: 5.0, 16: 5.1}, 0.1, 0.0)
    assert by_name(case(cpu_ms=2.0, compute_ms=21.0, ways=[waiting]))["threads"].change == {"threads": 4}
    found = by_name(case(cpu_ms=2.0, compute_ms=1.0, ways=[waiting]))["threads"]
    assert found.change == {"threads": 16} and ms_of(found) == pytest.approx(80 * 5.1 / 5 / 16)


STARTS = PassStarts(per_step_ms=64.0, spared_ms=63.0, wait_ms=1030.0, steps=16.0)


def test_workers_that_stay_spare_the_start_of_each_epoch() -> None:
    made = attached(4.0, 4.0, compute_ms=30.0, starts=STARTS)
    found = fixes_for(made)
    assert [fix.name for fix in found] == ["persistent workers"] and best_of(found, made.step_ms) == found[0]
    assert found[0].change == {"persistent_workers": True} and ms_of(found[0]) == pytest.approx(94.0 - 63.0)
    assert "1030 ms" in found[0].why and "16 steps" in found[0].why
    assert fixes_for(attached(4.0, 4.0, compute_ms=30.0, starts=STARTS, persistent_workers=True)) == ()


def test_other_changes_leave_the_start_of_each_epoch_in_the_step() -> None:
    made = replace(case(), starts=STARTS, step_ms=104.0)
    assert ms_of(by_name(made)["view in RAM"]) == pytest.approx(10.0 + 64.0)


def test_more_workers_stay_from_epoch_to_epoch_where_epochs_are_short() -> None:
    found = by_name(attached(80.0, 1.0, starts=STARTS, batches=16))["workers"]
    assert found.change == {"num_workers": 4, "persistent_workers": True} and "they stay" in found.why
    assert ms_of(found) == pytest.approx(20.0 + 64.0 - 63.0)
    had = by_name(attached(80.0, 1.0, batches=16, persistent_workers=True))["workers"]
    assert had.change == {"num_workers": 4}
    assert by_name(attached(80.0, 1.0, workers=0, batches=100_000))["workers"].change == {"num_workers": 4}


def test_workers_are_no_more_than_an_epoch_has_work_for() -> None:
    assert by_name(attached(80.0, 1.0, batches=12))["workers"].change["num_workers"] == 3  # each makes two ahead
    assert by_name(attached(80.0, 1.0, batches=12, prefetch_factor=1))["workers"].change["num_workers"] == 4
    assert by_name(attached(80.0, 1.0, batches=3, workers=0))["workers"].change["num_workers"] == 1
    assert "workers" not in by_name(attached(80.0, 1.0, batches=8))


def test_a_data_set_that_decodes_is_told_to_decode_once_without_a_number() -> None:
    firm = by_name(attached(80.0, 78.0, stage="03b_image_decode"))["decode once"]
    assert firm.predicted_step_ms is None and "penstock.Loader with a view" in firm.why
    assert "decode once" not in by_name(attached(80.0, 78.0))
    assert "decode once" not in by_name(attached(80.0, 78.0, stage="03c_fetch_bytes"))
    assert "decode once" not in by_name(case())  # a loader of penstock's is told of views


def test_a_storage_that_gives_no_more_to_more_threads_has_a_bandwidth() -> None:
    shared = way("read", 6.0, 0.05, stored_bytes=90_000, t1=3.0, t4=12.0)
    assert bandwidth_of({"read": shared}, 2) == pytest.approx(2 * 90_000 / 6e-3)
    assert bandwidth_of({"read": way("read", 6.0, 0.05, stored_bytes=90_000, t4=6.2)}, 2) is None  # more threads, more
    assert bandwidth_of({"read": way("read", 0.05, stored_bytes=90_000)}, 2) is None  # it hardly waits
    assert bandwidth_of({}, 2) is None


def test_where_reads_bind_the_bandwidth_needed_is_told() -> None:
    made = case(decode_ms=8.0, read_ms=72.0, cpu_ms=10.0, bandwidth=30e6, read_bytes=1.2e6, compute_ms=10.0)
    found = by_name(made)
    assert not found["faster storage"].change and ms_of(found["faster storage"]) == 10.0
    assert "30 MB/s" in found["faster storage"].why and "120 MB/s" in found["faster storage"].why
    assert "faster storage" not in by_name(case())


def test_threads_do_not_get_past_a_bandwidth() -> None:
    ways = [way("now", 5.0, t4=5.0)]
    made = case(decode_ms=8.0, read_ms=72.0, cpu_ms=10.0, bandwidth=30e6, read_bytes=1.2e6, ways=ways)
    assert "threads" not in by_name(made)


# Computing


def test_a_loader_that_keeps_up_gets_no_advice() -> None:
    (only,) = fixes_for(case(input_bound=False, compute_ms=200.0))
    assert (only.name, only.predicted_step_ms, only.alters_training) == ("larger batch", None, True)
    assert fixes_for(case(input_bound=False, compute_ms=200.0, told={"batch_size": None})) == ()


def test_a_larger_batch_is_predicted_from_the_users_own_step_alone() -> None:
    made = case(input_bound=False, compute_ms=100.0)
    with_cost = FixInputs(**{**vars(made), "cost": BatchCost(fixed_ms=40.0, sample_ms=2.5, sizes=(8, 16))})
    found = by_name(with_cost)["larger batch"]
    # 40 + 16·2.5 = 80 ms alone, 100 ms beside the loader; 40 + 32·2.5 = 120 ms alone
    assert ms_of(found) == pytest.approx(150.0) and found.per_batch_ms == pytest.approx(75.0)
    assert found.change == {"batch_size": 32}


def test_mixed_precision_is_advice_without_a_number() -> None:
    made = case(input_bound=False, compute_ms=100.0)
    on_gpu = FixInputs(**{**vars(made), "on_gpu": True})
    assert {(fix.name, fix.predicted_step_ms) for fix in fixes_for(on_gpu)} == {
        ("mixed precision", None), ("larger batch", None)
    }  # fmt: skip
    has_it = FixInputs(**{**vars(on_gpu), "autocast": "bfloat16"})
    assert [fix.name for fix in fixes_for(has_it)] == ["larger batch"]


# Which one


def test_of_equal_changes_the_least_is_recommended_and_no_other_training() -> None:
    made = case(told={"images": [image("a"), image("b")]})
    fixes = fixes_for(made)
    assert {"view in RAM", "view on disk"} <= {fix.name for fix in fixes}
    best = best_of(fixes, made.step_ms)
    assert best is not None and best.name == "view in RAM"
    assert best_of((), 10.0) is None


def test_what_alters_the_training_comes_last_and_is_not_recommended_while_anything_else_is_known() -> None:
    larger = Fix("larger batch", {"batch_size": 32}, 30.0, "", "another training", batch_factor=2.0)
    assert best_of([larger], 40.0) == larger
    assert best_of([larger, Fix("view in RAM", {"view": "ram"}, None, "")], 40.0) is None
