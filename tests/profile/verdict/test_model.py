"""The model: which limit a batch meets first, the steady state of a step, and whose work a span is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.profile.stats import StepPoint
from penstock._src.profile.verdict.model import LOADER_STAGES, LoaderModel, compute_stages_of, stages_of, step_timing_of
from tests.profile.made import MAIN, MS, WORKER, stats
from tests.profile.runs import run

BASE = LoaderModel(service_ms=80.0, threads=2, cores=4, compute_ms=10.0, cpu_ms=80.0)
TIMES = st.floats(0.1, 1e4)


def test_threads_share_the_work_until_the_cores_are_used_up() -> None:
    assert BASE.batch_ms == 40.0
    assert replace(BASE, threads=4).batch_ms == 20.0
    more = replace(BASE, threads=16)
    assert more.batch_ms == 20.0


def test_threads_that_wait_for_the_storage_may_be_more_than_the_cores() -> None:
    waits = replace(BASE, cpu_ms=8.0, threads=16)
    assert waits.batch_ms == 5.0


def test_what_the_step_takes_of_the_cpus_is_not_there_for_the_loader() -> None:
    assert replace(BASE, threads=4, compute_cpu_ms=40.0).batch_ms == 30.0


def test_no_number_of_threads_reads_faster_than_the_storage() -> None:
    slow = replace(BASE, threads=64, read_bytes=2e6, bandwidth=50e6)
    assert slow.batch_ms == pytest.approx(40.0)


def test_a_step_is_the_longer_of_loading_and_computing() -> None:
    assert BASE.step_ms == 40.0
    assert replace(BASE, compute_ms=55.0).step_ms == 55.0


def test_without_threads_loading_and_computing_add_up() -> None:
    assert replace(BASE, threads=0).step_ms == 90.0


@given(service=TIMES, compute=TIMES, threads=st.integers(1, 64), cores=st.integers(1, 64), share=st.floats(0, 1))
def test_more_threads_never_make_the_predicted_step_longer(
    service: float, compute: float, threads: int, cores: int, share: float
) -> None:
    now = LoaderModel(service, threads, cores, compute, cpu_ms=share * service)
    more = replace(now, threads=threads + 1)
    assert compute <= more.step_ms <= now.step_ms


# The steady state


def points(*durations_ms: float, wait_ms: float = 1.0) -> list[StepPoint]:
    return [StepPoint(n, n, int(ms * MS), int(wait_ms * MS)) for n, ms in enumerate(durations_ms)]


def test_the_first_steps_and_a_rare_break_do_not_count() -> None:
    series = points(900.0, 500.0, *[10.0] * 60, 4000.0, *[10.0] * 40)
    timing = step_timing_of(series, len(series), 0, 0)
    assert timing.step_ms == pytest.approx(10.0, rel=0.02)
    assert timing.compute_ms == pytest.approx(9.0, rel=0.02)


def test_waits_that_come_and_go_count_all_of_them() -> None:
    series = points(*[5.0, 25.0] * 50, wait_ms=0.0)
    assert step_timing_of(series, 100, 0, 0).step_ms == pytest.approx(15.0, rel=0.03)


def test_long_steps_that_are_not_rare_belong_to_the_training() -> None:
    series = points(*[10.0, 10.0, 10.0, 200.0] * 20)
    timing = step_timing_of(series, len(series), 0, 0)
    assert timing.step_ms > 50


def test_a_series_of_a_few_steps_is_taken_as_it_is() -> None:
    assert step_timing_of(points(10.0, 20.0), 2, 0, 0).step_ms == 15.0
    assert step_timing_of([], 4, 40 * MS, 8 * MS).wait_ms == 2.0


# Whose work a span is


POOL = WORKER + 1


def test_the_loaders_stages_are_told_by_name_parent_or_process() -> None:
    made = run(50, 30, {"03b_image_decode": 60.0, "03c_fetch_bytes": 20.0}, computing_ms={"21_backward": 12.0})
    more = (
        stats("my_transform", [100 * MS * 10], path=("00_TOTAL_getitem",)),
        stats("collate", [100 * MS], process=WORKER),
        stats("my_own", [100 * MS * 5], process=WORKER),
        stats("my_rollout", [100 * MS * 40], process=POOL),
        stats("my_step", [100 * MS], process=MAIN),
        stats("data_wait", [100 * MS * 30]),
    )
    made = replace(made, spans=made.spans + more)
    found = {stage.name: stage.ms for stage in stages_of(made, 100)}
    assert found == {
        "03b_image_decode": 60.0, "03c_fetch_bytes": 20.0, "my_transform": 10.0, "my_own": 5.0, "collate": 1.0
    }  # fmt: skip
    assert [stage.name for stage in compute_stages_of(made, 100)] == ["21_backward", "my_step"]


def test_a_stage_of_the_step_is_told_without_its_first_long_call() -> None:
    first, others = 6_600 * MS, [100 * MS + n for n in range(249)]
    made = replace(run(50, 0, {}), gpu=(stats("21_backward", [first, *others]),))
    (stage,) = compute_stages_of(made, 250)
    assert stage.ms == pytest.approx(100, rel=0.01)
    for few in ([0], [5 * MS], [0, 0, 9 * MS]):  # nothing to tell a first call by
        made = replace(made, gpu=(stats("21_backward", few),))
        assert compute_stages_of(made, 1)[0].ms >= 0
    halves = [10 * MS, 200 * MS] * 50  # long ones that are not rare belong to it
    made = replace(made, gpu=(stats("21_backward", halves),))
    assert compute_stages_of(made, 100)[0].ms == pytest.approx(105)


def test_what_the_loader_does_on_the_gpu_and_what_lies_between_steps_is_no_computing_of_the_step() -> None:
    names = ("03b_image_decode", "06_to_device", "10_val_forward_pass", "30_checkpoint", "20_train_forward_pass")
    made = replace(run(50, 0, {}), gpu=tuple(stats(name, [MS] * 10) for name in names))
    assert [stage.name for stage in compute_stages_of(made, 10)] == ["20_train_forward_pass"]
    made = replace(made, gpu=made.gpu[:2], spans=(*made.spans, stats("my_step", [MS] * 10, process=MAIN)))
    assert [stage.name for stage in compute_stages_of(made, 10)] == ["my_step"]


def test_stages_on_the_gpu_stand_for_what_the_host_saw() -> None:
    made = replace(run(50, 0, {}, computing_ms={"20_train_forward_pass": 2.0}), gpu=(stats("21_backward", [MS * 300]),))
    assert [(stage.name, stage.ms) for stage in compute_stages_of(made, 100)] == [("21_backward", 3.0)]


def test_the_names_of_loader_stages_are_those_that_loaders_record() -> None:
    from penstock._src.load.engine import stages
    from penstock._src.stores.caches import FILE_CACHE

    recorded = {each for name, each in vars(stages).items() if name.isupper() and isinstance(each, str)}
    recorded -= {stages.PLAN, stages.SLOT}
    assert recorded | {FILE_CACHE, "fetch", "collate"} == LOADER_STAGES


def test_a_number_before_a_name_makes_no_stage_of_a_loader() -> None:
    made = run(50, 30, {"03b_image_decode": 60.0}, computing_ms={"01_forward": 4.0, "02_backward": 8.0})
    pool = (stats("05_rollout", [100 * MS], process=POOL), stats("my_rollout", [100 * MS], process=POOL))
    made = replace(made, spans=made.spans + pool)
    assert [stage.name for stage in stages_of(made, 100)] == ["03b_image_decode"]
    assert [stage.name for stage in compute_stages_of(made, 100)] == ["02_backward", "01_forward"]


def test_a_data_set_of_ones_own_is_told_by_the_documented_names_wherever_it_runs() -> None:
    names = ("01_file_cache", "02_read_qpos", "03_read_images_total", "04_read_actions", "05_to_tensor_normalize")
    for process in (MAIN, WORKER):  # without workers, and with them
        found = tuple(stats(name, [MS] * 100, process=process) for name in names)
        inner = stats("03_augment", [MS] * 100, path=("03_read_images_total",), process=process)
        made = replace(run(50, 30, {}), spans=(*found, inner, stats("data_wait", [MS] * 100)))
        assert {stage.name for stage in stages_of(made, 100)} == {*names, "03_augment"}
        assert compute_stages_of(made, 100) == ()


def test_copying_to_the_device_is_the_steps_where_the_loop_does_it_itself() -> None:
    loop = (stats("data_wait", [MS] * 100), stats("06_to_device", [2 * MS] * 100))
    loader = stats("06_to_device", [5 * MS] * 100, thread="penstock-device")
    made = replace(run(50, 30, {}), spans=(*loop, loader))
    assert [(stage.name, stage.ms) for stage in stages_of(made, 100)] == [("06_to_device", 5.0)]
    assert [(stage.name, stage.ms) for stage in compute_stages_of(made, 100)] == [("06_to_device", 2.0)]
    inside = replace(loop[1], path=("00_TOTAL_getitem",))
    made = replace(made, spans=(loop[0], inside))
    assert [stage.name for stage in stages_of(made, 100)] == ["06_to_device"]
