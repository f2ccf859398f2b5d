"""The verdict: what binds, by which stage, in one sentence; loaders that are measured, varied and tried; RUN.json."""

from __future__ import annotations

import gc
import json
import pickle
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import profile
from penstock._src.load.bench import calibrate
from penstock._src.load.loader import Loader
from penstock._src.load.recreate import from_description, window_from
from penstock._src.load.sampling.window import Clip, Transition, Window
from penstock._src.load.settings import Mix
from penstock._src.profile import messages
from penstock._src.profile.record.registry import AccessPath, loader_infos, register, registered
from penstock._src.profile.schema import decode
from penstock._src.profile.stats import LoaderInfo, Snapshot
from penstock._src.profile.verdict import trial
from penstock._src.profile.verdict.model import Fix
from penstock._src.profile.verdict.trial import Replay, batch_cost, try_fix
from penstock._src.profile.verdict.verdict import verdict
from penstock.errors import UsageError
from tests.lerobot import making
from tests.load.image_store import ArrayStore
from tests.profile.runs import Measured, image, loader_told, run, way

DECODING = {"03b_image_decode": 84.0, "03c_fetch_bytes": 16.0, "04_read_actions": 18.0}
WAYS = (way("now", 6.0), way("read", 1.0, stored_bytes=90_000), way("scaled", 4.0), way("ram", 0.02))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


_others: list[Any] = []  # subjects that other tests have left


@pytest.fixture
def loader() -> Iterator[Loader]:
    gc.collect()
    _others[:] = registered()
    store = ArrayStore((30, 20))
    with Loader(store, batch_size=4, image_size=(24, 32), view="off", output="numpy", exact=True) as made:
        yield made
    _others.clear()


def own_loaders() -> list[Loader]:
    return [each for each in registered() if isinstance(each, Loader) and not any(each is other for other in _others)]


# What binds


def test_a_step_that_waits_for_decoding_is_input_bound_and_says_so_in_one_sentence() -> None:
    made = run(61, 38, DECODING)
    found = verdict(made, loader=Measured(loader_told(), *WAYS))
    assert (found.bound, found.stage) == ("input", "03b_image_decode")
    assert found.sentence == (
        "input-bound: the step takes 61 ms, 38 ms of it waiting for data; decode (03b_image_decode) is 71% of the "
        "loader's work; a view in RAM would make the step 23 ms"
    )
    assert found.best is not None and found.best.predicted_step_ms == pytest.approx(23.0)
    assert "\n" not in found.sentence


def test_a_step_that_hardly_waits_is_compute_bound() -> None:
    made = run(61, 1.0, DECODING, computing_ms={"21_backward": 36.0, "20_train_forward_pass": 20.0})
    found = verdict(made, loader=Measured(loader_told(), *WAYS))
    assert (found.bound, found.stage) == ("compute", "21_backward")
    assert [(fix.name, fix.predicted_step_ms) for fix in found.fixes] == [("larger batch", None)] and found.best is None
    sentence = (
        "compute-bound: the step takes 61 ms, 1.0 ms of it waiting for data; the backward pass (21_backward) is 60% of "
        "the computing; the loader would have a batch every 59 ms"
    )
    assert found.sentence == sentence and "verdict(step=…) measures" in found.lines()[-1]
    unsized = Measured({**loader_told(), "batch_size": None}, *WAYS)
    assert verdict(made, loader=unsized).sentence == sentence + "; no change is known here that would make it shorter"


def test_a_loader_that_waits_for_its_storage_is_told_by_the_reading_stage() -> None:
    read = way("read", 10.0, 0.1, stored_bytes=90_000, t1=5.0, t4=20.0)
    made = run(90, 78, {"03c_fetch_bytes": 160.0, "03b_image_decode": 20.0})
    found = verdict(made, loader=Measured(loader_told(), way("now", 11.0, t4=22.0), read, way("ram", 0.02)))
    assert (found.bound, found.stage) == ("input", "03c_fetch_bytes")
    assert found.now.bandwidth == pytest.approx(18e6)
    assert {"view in RAM", "faster storage"} <= {fix.name for fix in found.fixes}
    assert "threads" not in {fix.name for fix in found.fixes}


def test_what_the_model_does_not_explain_stays_in_the_predictions() -> None:
    made = run(80, 60, {"03b_image_decode": 100.0}, loader=None)  # 100 ms over two threads are 50, a step took 80
    told = loader_told(images=[image(can_scale=True)])
    found = verdict(made, loader=Measured(told, way("now", 6.0), way("read", 0.0), way("scaled", 3.0)))
    assert found.now.unexplained == pytest.approx(1.6)
    scaled = next(fix for fix in found.fixes if fix.name == "scaled decode")
    assert scaled.predicted_step_ms == pytest.approx(40.0)


def test_batches_that_nobody_took_yet_do_not_make_the_service_time_longer() -> None:
    made = run(61, 38, DECODING)
    ahead = Snapshot(**{**vars(made), "counters": {"images_decoded": 16 * 125}})  # 100 steps, 25 batches in the queue
    found = verdict(ahead, loader=Measured(loader_told(), *WAYS))
    assert found.now.service_ms == pytest.approx(sum(DECODING.values()) * 100 / 125)


def test_a_validation_of_many_light_batches_does_not_make_those_of_the_training_lighter() -> None:
    # 100 steps of 20 ms, 16 of them waiting for a batch that takes 16 ms; and 400 batches of a validation, 0.5 ms each.
    whole = {"kind": "torch.utils.data.DataLoader", "workers": 0, "batches_handed": 100, "number": 2}
    made = run(20, 16, {"03b_image_decode": 16 + 4 * 0.5}, loader=whole)
    counters = {"batches_used": 500, "fetch_cpu_ns": 100 * int(18e6),
                "fetch_ns of loader 2": 100 * int(16e6), "fetch_cpu_ns of loader 2": 100 * int(15e6)}  # fmt: skip
    both = replace(made, steps=replace(made.steps, batches=100), counters=counters)
    found = verdict(both)
    assert (found.now.service_ms, found.now.cpu_ms) == pytest.approx((16, 15))
    assert found.stages[0].ms == pytest.approx(16)
    marked = replace(made, steps=replace(made.steps, batches=200), counters=counters)  # steps of two batches
    assert verdict(marked).now.service_ms == pytest.approx(32)


def test_a_run_without_steps_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="no step was recorded") as caught:
        verdict(Snapshot())
    assert "mark_step" in str(caught.value.hint)


def test_without_the_loader_at_hand_there_is_a_verdict_and_a_note() -> None:
    told = loader_told(images=[image(can_scale=True)])
    found = verdict(run(61, 38, DECODING, loader=told), check=True)
    assert found.bound == "input" and found.trial is None
    assert {fix.name: fix.predicted_step_ms for fix in found.fixes} == dict.fromkeys(
        ("view in RAM", "view on disk", "scaled decode")
    )
    assert sum("not at hand" in note for note in found.notes) == 2  # nothing measured, nothing tried


def test_where_the_data_is_gone_no_other_training_is_recommended_and_the_place_is_named() -> None:
    stores = [{"path": "/no/such/place", "kind": "ALOHA episodes", "open_options": {}}]
    told = loader_told(images=[image("a"), image("b")], stores=stores)
    found = verdict(run(61, 38, DECODING, loader=told), check=True)
    assert found.best is None and {fix.name for fix in found.fixes} >= {"view in RAM", "view on disk"}
    assert found.sentence.endswith("a view in RAM may make it shorter; by how much could not be measured here")
    assert "nothing was tried: the data is not there (looked for /no/such/place)" in found.notes
    assert not any("no change" in note for note in found.notes)


def test_where_nothing_is_known_nothing_is_said_of_what_others_may_know() -> None:
    subject = Measured({"kind": "torch.utils.data.DataLoader", "workers": 2})
    found = verdict(run(61, 38, {"03c_fetch_bytes": 122.0}, loader=subject.told), check=True, loader=subject)
    assert found.fixes == () and any("no change is known here" in note for note in found.notes)


def test_the_loaders_own_need_is_told_without_the_cpus_of_the_step() -> None:
    made = run(400, 1.0, {"03b_image_decode": 8.0})
    steps = replace(made.steps, cpu_total_ns=int(390e6) * made.steps.count)
    found = verdict(replace(made, steps=steps), loader=Measured(loader_told(), *WAYS))
    assert found.bound == "compute" and found.now.batch_ms > 190
    assert "the loader would have a batch every 4.0 ms" in found.sentence


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_window_without_a_length_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="some length"):
        verdict(run(61, 38, DECODING), seconds=seconds)


# Batches that are there, and only have to be handed over


def handing(step_ms: float, wait_ms: float, sample_ms: float = 2.0, **told: Any) -> Snapshot:
    """An attached DataLoader whose two workers have samples of 2 ms per batch."""
    whole = {"kind": "torch.utils.data.DataLoader", "workers": 2, "persistent_workers": True, **told}
    made = run(step_ms, wait_ms, {"00_TOTAL_getitem": sample_ms, "03b_image_decode": 0.8}, loader=whole)
    return replace(made, steps=replace(made.steps, batches=made.steps.count), counters={})


# Workers that start anew for every epoch


def restarting(epochs: int = 3, steps: int = 16, start_ms: float = 1000.0, **told: Any) -> Snapshot:
    """An attached DataLoader whose workers take a second to start; a step computes 30 ms and a batch takes 4 ms."""
    made = run(32, 2, {"03b_image_decode": 4.0}, steps=epochs * steps)
    points = [
        point._replace(duration_ns=int((30 + start_ms) * 1e6), wait_ns=int(start_ms * 1e6))
        if number % steps == 0 else point
        for number, point in enumerate(made.steps.series)
    ]  # fmt: skip
    whole = {"kind": "torch.utils.data.DataLoader", "workers": 2, "persistent_workers": False, "batches": steps,
             "batches_handed": epochs * steps, "starts": epochs - 1, "start_wait_ms": start_ms, **told}  # fmt: skip
    subjects = (decode(LoaderInfo, whole),)
    return replace(made, steps=replace(made.steps, series=tuple(points), batches=epochs * steps), loaders=subjects,
                   counters={"fetch_cpu_ns": int(4e6) * epochs * steps})  # fmt: skip


def test_the_start_of_workers_is_named_where_it_is_most_of_the_waiting() -> None:
    found = verdict(restarting())
    assert (found.bound, found.stage) == ("input", "worker_start") and found.stage_share > 0.9
    assert found.step_ms == pytest.approx(32 + 998 / 16) and found.best is not None
    assert found.best.change == {"persistent_workers": True}
    assert found.best.predicted_step_ms == pytest.approx(32 + 2 / 16, abs=0.2)  # waits 4 ms, as for any batch
    assert "starting the workers for each epoch is 97% of the waiting; persistent_workers=True" in found.sentence
    assert [fix.name for fix in found.fixes] == ["persistent workers"]


@pytest.mark.parametrize("epochs", [2, 5])
def test_rare_starts_of_workers_are_no_breaks_that_do_not_count(epochs: int) -> None:
    found = verdict(restarting(epochs, 200, 3000.0))
    assert found.step_ms == pytest.approx(32 + 2998 / 200)
    assert found.stage == "worker_start" and not any("breaks" in note for note in found.notes)


def test_workers_that_stay_are_not_told_to() -> None:
    found = verdict(restarting(persistent_workers=True))
    assert found.stage == "03b_image_decode" and found.fixes == ()


def test_what_shows_only_over_epochs_that_take_minutes_is_not_tried() -> None:
    made = restarting(2, 5000, 30_000.0)
    found = verdict(made, check=True, loader=Measured(made.loaders[0].to_json()))
    assert found.best is not None and found.trial is None
    assert any("persistent workers was not tried" in note and "190 s" in note for note in found.notes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What trials are timed by, in seconds; the test moves it."""
    now = [1000.0]
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_whole_passes_are_measured_with_their_beginnings(clock: list[float]) -> None:
    class Slow:
        made = 0

        def variant(self, **options: Any) -> Slow:
            return self

        def __iter__(self) -> Iterator[int]:
            Slow.made += 1
            clock[0] += 0.03  # at the first `next`
            yield from range(3)

        def close(self) -> None:
            pass

    fix = Fix("persistent workers", {}, 10.0, "")
    found = try_fix(Slow(), fix, lambda batch: None, seconds=0.0001, whole_passes=True)
    assert found.windows_ms == pytest.approx((10.0, 10.0, 10.0))
    assert Slow.made == 4  # the first one does not count


def test_a_trial_that_cannot_be_made_costs_only_the_trial() -> None:
    class Stiff(Measured):
        def variant(self, **options: Any) -> Any:
            raise UsageError("it is stiff")

    found = verdict(run(61, 38, DECODING), check=True, loader=Stiff(loader_told(), *WAYS))
    assert found.trial is None and "view in RAM could not be tried: it is stiff" in found.notes


def test_the_chinese_words_carry_the_same_numbers() -> None:
    found = verdict(run(61, 38, DECODING), loader=Measured(loader_told(), *WAYS))
    first = found.lines("zh")[0]
    assert first.startswith("数据受限: 每步 61 ms，其中 38 ms 在等待数据") and "71%" in first and "23 ms" in first


def test_a_verdict_in_chinese_is_chinese_throughout() -> None:
    told = loader_told(images=[image("相机一", can_scale=True), image("相机二")], stores=[])
    moved = {**told, "stores": [{"path": "/no", "open_options": {}}]}
    texts = [
        verdict(run(61, 38, DECODING, steps=9, loader=told), loader=Measured(told, *WAYS)),
        verdict(run(61, 38, DECODING, loader=moved), check=True),
        verdict(run(61, 1, DECODING), check=True, loader=Measured(told)),
        verdict(restarting(2, 5000, 30_000.0), check=True, loader=Measured(restarting(2, 5000).loaders[0].to_json())),
    ]
    for line in (line for each in texts for line in each.lines("zh")):
        own = re.sub(
            r"\w+=\S+|\(\w+\)|/\w+|Window|JPEG|GPU|CPU|penstock.Loader|worker|batch|epoch|[KMG]iB|MB/s|ms", "", line
        )
        assert not re.search("[A-Za-z]{2,}", own), line
    with pytest.raises(UsageError, match="speaks en and zh"):
        texts[0].lines("de")  # type: ignore[arg-type]


def test_every_text_has_the_same_numbers_in_both_languages() -> None:
    for english, chinese in messages._MESSAGES.values():
        assert sorted(re.findall("{.*?}", english)) == sorted(re.findall("{.*?}", chinese))
    both = messages.message("few steps", count=3)
    again = pickle.loads(pickle.dumps(both))
    assert (again, again.zh) == (both, both.zh) == ("3 steps are few: the numbers may still move", both.zh)


def test_a_verdict_is_json() -> None:
    found = verdict(run(61, 38, DECODING), loader=Measured(loader_told(), *WAYS))
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["best"] == "view in RAM" and again["model"]["threads"] == 2
    assert again["calibration"]["now"]["images"] == 48


def test_few_steps_are_told() -> None:
    found = verdict(run(61, 38, DECODING, steps=5), loader=Measured(loader_told(), *WAYS))
    assert any("5 steps are few" in note for note in found.notes)


def test_ways_are_measured_with_the_threads_of_now_and_with_more() -> None:
    subject = Measured(loader_told(threads=1, cores=8), *WAYS)
    verdict(run(61, 38, DECODING, threads=1), loader=subject)
    assert subject.asked[0][1] == (1, 8)


# A loader as the subject


def test_a_loader_makes_itself_known_until_it_is_closed(loader: Loader) -> None:
    assert any(each is loader for each in registered())
    assert any(each.kind == "penstock.Loader" for each in loader_infos())
    loader.close()
    assert not any(each is loader for each in registered())


def test_a_forgotten_subject_is_forgotten() -> None:
    subject = Measured(loader_told())
    register(subject)
    register(subject)
    assert sum(each is subject for each in registered()) == 1
    del subject
    gc.collect()
    assert not any(isinstance(each, Measured) for each in registered())


def test_a_loader_tells_what_its_batches_need(loader: Loader) -> None:
    for _ in loader:
        continue
    told = json.loads(json.dumps(loader.describe().to_json(), allow_nan=False))
    cameras = {each["column"]: each for each in told["images"]}
    assert told["images_per_batch"] == 8 and told["made_per_batch"] == pytest.approx(100 / 13)
    assert cameras["cam"]["can_scale"] and not cameras["raw"]["can_scale"]
    assert cameras["cam"]["view_row_bytes"] == 3 * 24 * 32 and cameras["cam"]["view"] is None
    assert told["stores"][0]["open_options"] is None  # arrays of this process: nobody else can open them


def test_the_ways_of_a_real_loader_are_measured(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_MOST_S", 60.0)  # a machine that stops for a second gives no fewer images
    found = loader.calibrate(("now", "scaled", "read", "ram", "disk", "gpu"), (1, 2))
    assert set(found) == {"now", "scaled", "read", "ram", "disk"}
    for each in found.values():
        assert set(each.ms_by_threads) == {1, 2} and each.images >= 40
        assert all(ms > 0 for ms in each.ms_by_threads.values())
    assert found["read"].stored_bytes > 0 and found["ram"].stored_bytes == 0


def test_a_loader_without_images_to_make_has_no_ways() -> None:
    with Loader(ArrayStore((20,)), Window(columns=["state"]), batch_size=4, output="numpy") as made:
        assert made.calibrate(("now", "ram"), (1,)) == {}


def test_a_row_that_cannot_be_read_leaves_the_verdict_without_numbers() -> None:
    broken = ArrayStore((20,), broken=range(20))
    with Loader(broken, batch_size=4, image_size=(24, 32), view="off", output="numpy") as made:
        found = verdict(run(61, 38, DECODING), loader=made)
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
        told = decode(LoaderInfo, json.loads(json.dumps(first.describe().to_json())))
        with from_description(told) as again:
            assert again.describe().options == told.options and again.describe().window == told.window
            pairs = zip(first, again, strict=True)
            assert all((one["index"] == two["index"]).all() for one, two in pairs)


def test_a_mixture_is_made_again_with_its_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        making.make(tmp_path / name, (12, 7))
    import penstock

    stores = [(penstock.open(tmp_path / "one"), 0.75), (penstock.open(tmp_path / "two"), 0.25)]
    with Loader(Mix(stores, length=40), batch_size=4, image_size=(24, 32), output="numpy") as first:
        told = decode(LoaderInfo, json.loads(json.dumps(first.describe().to_json())))
        with from_description(told) as again:
            assert len(again) == len(first) == 10
            assert [each.weight for each in again.describe().stores] == [0.75, 0.25]


def test_what_cannot_be_opened_again_says_who_can(loader: Loader) -> None:
    with pytest.raises(UsageError, match="only be opened by the program"):
        from_description(loader.describe())
    with pytest.raises(UsageError, match="cannot be recreated"):
        from_description(LoaderInfo(kind="torch.utils.data.DataLoader"))


# Trying


def test_the_best_change_is_tried_and_the_run_is_left_alone(loader: Loader) -> None:
    profile.enable()
    profile.reset()
    before = profile.snapshot().steps.count
    found = verdict(run(61, 38, DECODING), check=True, loader=loader, seconds=0.01)
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
    found = try_fix(Watched(), fix, lambda batch: None, seconds=0.0)
    stats = made[0].stats()
    assert stats["images_made"] == 100 and stats["view_hits"] > 0  # each image was made once, in the first pass
    assert len(found.windows_ms) == 3


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
    made = AccessPath("now", 48, {1: 1.0, 8: 4.0}, 1.0, 0.0)
    assert (made.ms(1), made.ms(3), made.ms(7), made.ms(64)) == (1.0, 1.0, 4.0, 4.0)
