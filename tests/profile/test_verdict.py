"""The verdict: what binds, by which stage, in one sentence; loaders that are measured, varied and tried; RUN.json."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock.errors import UsageError
from penstock.load import calibrate
from penstock.load.loader import Loader
from penstock.load.settings import Mix
from penstock.load.subject import from_description, window_from
from penstock.load.window import Clip, Transition, Window
from penstock.profile.fixes import Fix
from penstock.profile.snapshot import Snapshot
from penstock.profile.subject import Way, descriptions, register, subjects
from penstock.profile.trial import Replay, batch_cost, try_fix
from penstock.profile.verdict import verdict
from tests.lerobot import making
from tests.load.picture_store import ArrayStore
from tests.profile.runs import Measured, loader_told, picture, run, way

DECODING = {"03b_image_decode": 84.0, "03c_fetch_bytes": 16.0, "04_read_actions": 18.0}
WAYS = (way("now", 6.0), way("read", 1.0, stored_bytes=90_000), way("scaled", 4.0), way("ram", 0.02))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


_others: list[Any] = []  # subjects that other tests have left


@pytest.fixture
def loader() -> Iterator[Loader]:
    gc.collect()
    _others[:] = subjects()
    store = ArrayStore((30, 20))
    with Loader(store, batch_size=4, image_size=(24, 32), view="off", output="numpy", exact=True) as made:
        yield made
    _others.clear()


def own_loaders() -> list[Loader]:
    return [each for each in subjects() if isinstance(each, Loader) and not any(each is other for other in _others)]


# What binds


def test_a_step_that_waits_for_decoding_is_input_bound_and_says_so_in_one_sentence() -> None:
    made = run(61, 38, DECODING)
    found = verdict(made, subject=Measured(loader_told(), *WAYS))
    assert (found.bound, found.stage) == ("input", "03b_image_decode")
    assert found.sentence == (
        "input-bound: the step takes 61 ms, 38 ms of it waiting for data; decode (03b_image_decode) is 71% of the "
        "loader's work; a view in RAM would make the step 23 ms"
    )
    assert found.best is not None and found.best.predicted_step_ms == pytest.approx(23.0)
    assert "\n" not in found.sentence


def test_a_step_that_hardly_waits_is_compute_bound() -> None:
    made = run(61, 1.0, DECODING, computing_ms={"21_backward": 36.0, "20_train_forward_pass": 20.0})
    found = verdict(made, subject=Measured(loader_told(), *WAYS))
    assert (found.bound, found.stage) == ("compute", "21_backward")
    assert found.fixes == () and found.best is None
    assert found.sentence == (
        "compute-bound: the step takes 61 ms, 1.0 ms of it waiting for data; the backward pass (21_backward) is 60% of "
        "the computing; the loader would have a batch every 59 ms; no change of the loader would make it shorter"
    )


def test_a_loader_that_waits_for_its_storage_is_told_by_the_reading_stage() -> None:
    read = way("read", 10.0, 0.1, stored_bytes=90_000, t1=5.0, t4=20.0)
    made = run(90, 78, {"03c_fetch_bytes": 160.0, "03b_image_decode": 20.0})
    found = verdict(made, subject=Measured(loader_told(), way("now", 11.0, t4=22.0), read, way("ram", 0.02)))
    assert (found.bound, found.stage) == ("input", "03c_fetch_bytes")
    assert found.now.bandwidth == pytest.approx(18e6)
    assert {"view in RAM", "faster storage"} <= {fix.name for fix in found.fixes}
    assert "threads" not in {fix.name for fix in found.fixes}


def test_what_the_model_does_not_explain_stays_in_the_predictions() -> None:
    made = run(80, 60, {"03b_image_decode": 100.0}, subject=None)  # 100 ms over two threads are 50, a step took 80
    told = loader_told(pictures=[picture(can_scale=True)])
    found = verdict(made, subject=Measured(told, way("now", 6.0), way("read", 0.0), way("scaled", 3.0)))
    assert found.now.unexplained == pytest.approx(1.6)
    scaled = next(fix for fix in found.fixes if fix.name == "scaled decode")
    assert scaled.predicted_step_ms == pytest.approx(40.0)


def test_batches_that_nobody_took_yet_do_not_make_the_service_time_longer() -> None:
    made = run(61, 38, DECODING)
    ahead = Snapshot(**{**vars(made), "counters": {"pictures_decoded": 16 * 125}})  # 100 steps, 25 batches in the queue
    found = verdict(ahead, subject=Measured(loader_told(), *WAYS))
    assert found.now.service_ms == pytest.approx(sum(DECODING.values()) * 100 / 125)


def test_a_run_without_steps_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="no step was recorded") as caught:
        verdict(Snapshot())
    assert "mark_step" in str(caught.value.hint)


def test_without_the_loader_at_hand_there_is_a_verdict_and_a_note() -> None:
    told = loader_told(pictures=[picture(can_scale=True)])
    found = verdict(run(61, 38, DECODING, subject=told), check=True)
    assert found.bound == "input" and found.trial is None
    assert {fix.name: fix.predicted_step_ms for fix in found.fixes} == {"scaled decode": None}
    assert any("not at hand" in note for note in found.notes)


def test_the_chinese_words_carry_the_same_numbers() -> None:
    found = verdict(run(61, 38, DECODING), subject=Measured(loader_told(), *WAYS))
    first = found.lines("zh")[0]
    assert first.startswith("数据受限: 每步 61 ms，其中 38 ms 在等待数据") and "71%" in first and "23 ms" in first


def test_a_verdict_is_json() -> None:
    found = verdict(run(61, 38, DECODING), subject=Measured(loader_told(), *WAYS))
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["best"] == "view in RAM" and again["model"]["threads"] == 2
    assert again["calibration"]["now"]["pictures"] == 48


def test_few_steps_are_told() -> None:
    found = verdict(run(61, 38, DECODING, steps=5), subject=Measured(loader_told(), *WAYS))
    assert any("5 steps are few" in note for note in found.notes)


def test_ways_are_measured_with_the_threads_of_now_and_with_more() -> None:
    subject = Measured(loader_told(threads=1, cores=8), *WAYS)
    verdict(run(61, 38, DECODING, threads=1), subject=subject)
    assert subject.asked[0][1] == (1, 8)


# A loader as the subject


def test_a_loader_makes_itself_known_until_it_is_closed(loader: Loader) -> None:
    assert any(each is loader for each in subjects())
    assert any(told["kind"] == "penstock.Loader" for told in descriptions())
    loader.close()
    assert not any(each is loader for each in subjects())


def test_a_forgotten_subject_is_forgotten() -> None:
    subject = Measured(loader_told())
    register(subject)
    register(subject)
    assert sum(each is subject for each in subjects()) == 1
    del subject
    gc.collect()
    assert not any(isinstance(each, Measured) for each in subjects())


def test_a_loader_tells_what_its_batches_need(loader: Loader) -> None:
    for _ in loader:
        continue
    told = json.loads(json.dumps(loader.describe(), allow_nan=False))
    cameras = {each["column"]: each for each in told["pictures"]}
    assert told["pictures_per_batch"] == 8 and told["made_per_batch"] == pytest.approx(100 / 13)
    assert cameras["cam"]["can_scale"] and not cameras["raw"]["can_scale"]
    assert cameras["cam"]["view_row_bytes"] == 3 * 24 * 32 and cameras["cam"]["view"] is None
    assert told["stores"][0]["words"] is None  # arrays of this process: nobody else can open them


def test_the_ways_of_a_real_loader_are_measured(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_MOST_S", 60.0)  # a machine that stops for a second gives no fewer pictures
    found = loader.calibrate(("now", "scaled", "read", "ram", "disk", "gpu"), (1, 2))
    assert set(found) == {"now", "scaled", "read", "ram", "disk"}
    for each in found.values():
        assert set(each.ms_by_threads) == {1, 2} and each.pictures >= 40
        assert all(ms > 0 for ms in each.ms_by_threads.values())
    assert found["read"].stored_bytes > 0 and found["ram"].stored_bytes == 0


def test_a_loader_without_pictures_to_make_has_no_ways() -> None:
    with Loader(ArrayStore((20,)), Window(columns=["state"]), batch_size=4, output="numpy") as made:
        assert made.calibrate(("now", "ram"), (1,)) == {}


def test_a_row_that_cannot_be_read_leaves_the_verdict_without_numbers() -> None:
    broken = ArrayStore((20,), broken=range(20))
    with Loader(broken, batch_size=4, image_size=(24, 32), view="off", output="numpy") as made:
        found = verdict(run(61, 38, DECODING), subject=made)
    assert found.bound == "input" and any("nothing could be measured" in note for note in found.notes)


def test_a_variant_gives_the_same_samples_in_the_same_order(loader: Loader) -> None:
    with loader.variant(view="ram", threads=1) as other:
        pairs = list(zip(loader, other, strict=True))
    assert all((one["index"] == two["index"]).all() for one, two in pairs)
    assert all((one["cam"] == two["cam"]).all() for one, two in pairs)


@pytest.mark.parametrize(
    "window",
    [Window(action=range(3)), Window({"state": [-1, 0]}, pad=False, columns=["state", "cam"]), Clip(3, 2, 4),
     Transition(columns=["cam", "state"]), Window.from_delta_timestamps({"action": [0.0, 1 / 30]})],
    ids=lambda each: str(each.describe()["kind"]),
)  # fmt: skip
def test_a_window_is_made_again_from_its_description(window: Any) -> None:
    assert window_from(json.loads(json.dumps(window.describe()))) == window


def test_a_loader_is_made_again_from_what_it_said(tmp_path: Path) -> None:
    making.make(tmp_path / "set", (12, 7, 9))
    import penstock

    with penstock.open(tmp_path / "set", episodes=[0, 2]) as store, Loader(
        store, Clip(2), batch_size=3, image_size=(24, 32), threads=1, seed=5, shuffle="local", output="numpy",
        memory="300MiB", normalize=None,
    ) as first:  # fmt: skip
        told = json.loads(json.dumps(first.describe()))
        with from_description(told) as again:
            assert again.describe()["options"] == told["options"] and again.describe()["window"] == told["window"]
            pairs = zip(first, again, strict=True)
            assert all((one["index"] == two["index"]).all() for one, two in pairs)


def test_a_mixture_is_made_again_with_its_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        making.make(tmp_path / name, (12, 7))
    import penstock

    stores = [(penstock.open(tmp_path / "one"), 0.75), (penstock.open(tmp_path / "two"), 0.25)]
    with Loader(Mix(stores, length=40), batch_size=4, image_size=(24, 32), output="numpy") as first:
        told = json.loads(json.dumps(first.describe()))
        with from_description(told) as again:
            assert len(again) == len(first) == 10
            assert [each["weight"] for each in again.describe()["stores"]] == [0.75, 0.25]


def test_what_cannot_be_opened_again_says_who_can(loader: Loader) -> None:
    with pytest.raises(UsageError, match="only be opened by the program"):
        from_description(loader.describe())
    with pytest.raises(UsageError, match="cannot be made again"):
        from_description({"kind": "torch.utils.data.DataLoader"})


# Trying


def test_the_best_change_is_tried_and_the_run_is_left_alone(loader: Loader) -> None:
    profile.enable()
    profile.reset()
    before = profile.snapshot().steps.count
    found = verdict(run(61, 38, DECODING), check=True, subject=loader, seconds=0.01)
    assert found.trial is not None and found.best is not None
    assert found.trial.predicted_ms == found.best.predicted_step_ms
    assert len(found.trial.windows_ms) == 3 and found.trial.measured_ms > 0
    assert any(line.startswith("tried ") for line in found.lines())
    assert profile.snapshot().steps.count == before and profile.is_enabled()
    assert own_loaders() == [loader]


def test_a_view_is_filled_before_it_is_measured(loader: Loader) -> None:
    made: list[Loader] = []

    class Watched:
        def variant(self, **options: Any) -> Loader:
            made.append(loader.variant(**options))
            return made[-1]

    fix = Fix("view in RAM", {"view": "ram"}, 1.0, "", needs_filling=True)
    trial = try_fix(Watched(), fix, lambda batch: None, seconds=0.0)
    stats = made[0].stats()
    assert stats["pictures_made"] == 100 and stats["view_hits"] > 0  # each picture was made once, in the first pass
    assert trial.batches == 13


def test_the_users_own_step_is_replayed_for_half_and_whole_batches(loader: Loader) -> None:
    seen: list[int] = []

    def step(batch: dict[str, Any]) -> None:
        seen.append(len(batch["index"]))
        assert own_loaders() == [loader]  # what is tried is no subject
        assert len(batch["task"]) == len(batch["cam"]) == seen[-1]

    cost = batch_cost(loader, step, 4)
    assert cost is not None and cost.sizes == (2, 4) and set(seen) == {2, 4}


def test_a_step_of_known_length_takes_it() -> None:
    began, worked = time.perf_counter(), time.thread_time()
    Replay(6.0, cpu_ms=2.0)(None)
    assert time.perf_counter() - began >= 0.006 and time.thread_time() - worked >= 0.002


def test_too_few_batches_for_a_steady_state_are_told() -> None:
    fix = Fix("threads", {"threads": 1}, 1.0, "")
    with (
        Loader(ArrayStore((8,)), batch_size=4, image_size=(24, 32), output="numpy") as made,
        pytest.raises(UsageError, match="only 2 batches"),
    ):
        try_fix(made, fix, lambda batch: None, seconds=0.0)


def test_a_change_without_a_number_cannot_be_checked(loader: Loader) -> None:
    with pytest.raises(UsageError, match="no prediction"):
        try_fix(loader, Fix("mixed precision", {}, None, ""), lambda batch: None)


def test_a_way_measured_at_other_numbers_of_threads_takes_the_nearest() -> None:
    made = Way("now", 48, {1: 1.0, 8: 4.0}, 1.0, 0.0)
    assert (made.ms(1), made.ms(3), made.ms(7), made.ms(64)) == (1.0, 1.0, 4.0, 4.0)
