"""What a plan chooses, and what a loader makes of it."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._src.cli import main
from penstock._src.cli.plan import parse_parameters
from penstock._src.load import outcome as outcome_module
from penstock._src.load.bench import planning
from penstock._src.load.views.view_file import ViewSpec, layout_within
from penstock._src.plan.history import RunOutcome, read_history
from penstock._src.plan.load_plan import LoadOption, LoadPlan, choose, strategy_for
from penstock._src.system.units import format_bytes
from penstock.errors import UsageError
from tests.stores import hdf5_files as files

FIXED = {"batches": 100}


def option(view: str, fill_s: float, rate: float, why_not: str = "", share: float = 0.5) -> LoadOption:
    return LoadOption(view, share, FIXED, 0, fill_s, rate, why_not)  # type: ignore[arg-type]


def test_the_thresholds_of_the_strategies() -> None:
    assert strategy_for(49, 100) == "small_dataset"
    assert strategy_for(50, 100) == "medium_dataset"
    assert strategy_for(199, 100) == "medium_dataset"
    assert strategy_for(200, 100) == "large_dataset"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0.1, 1e6)), min_size=1, max_size=3), st.integers(1, 100))
def test_no_option_is_much_faster_than_the_chosen_one(figures: list[tuple[float, float]], epochs: int) -> None:
    options = [option(view, *each) for view, each in zip(("off", "ram", "disk"), figures, strict=False)]
    chosen = choose(options, 1000, epochs)

    def seconds(each: LoadOption) -> float:
        return each.fill_s + epochs * 1000 / each.samples_per_s

    assert seconds(chosen) <= 1.25 * min(map(seconds, options)) * (1 + 1e-9)


def test_what_is_not_possible_is_not_chosen() -> None:
    options = [option("off", 0, 10), option("ram", 0, 1000, "no room"), option("disk", 5, 900)]
    assert choose(options, 1000, 10).view == "disk"
    assert choose(options, 1, 1).view == "off", "a view that does not pay is not filled"


def test_no_view_is_made_on_disk_where_memory_holds_all() -> None:
    off, disk = option("off", 0, 10), option("disk", 0, 900)
    assert choose([off, option("ram", 5, 800, share=1.0), disk], 1000, 10).view == "ram"
    assert choose([off, disk, option("ram", 5, 800, share=1.0)], 1000, 10).view == "disk", "it is there already"


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("episodes")
    for number in range(3):
        files.aloha(directory / f"episode_{number}.hdf5", 12)
    return directory


@pytest.fixture(scope="module")
def plan(episodes: Path) -> LoadPlan:
    return penstock.plan_loading(episodes, 4, image_size=(8, 8), memory="256MiB", seconds=0.05)


def test_a_plan_of_a_store(plan: LoadPlan, episodes: Path) -> None:
    assert (plan.rows, plan.episodes, plan.samples) == (36, 3, 36)
    assert plan.strategy == "small_dataset" and plan.budget_bytes == 256 << 20
    assert [each.view for each in plan.options] == ["off", "ram", "disk"]
    with penstock.open(episodes) as store:
        images = sum(column.is_image for column in store.columns.values())
    one = layout_within(ViewSpec("cam", "", (8, 8), 3), 36, None, checked=False).n_bytes
    assert plan.options[1].memory_bytes["view"] == images * one
    assert plan.peak_bytes <= plan.budget_bytes and plan.samples_per_s > 0


def test_a_plan_says_what_its_batches_take_and_no_more(plan: LoadPlan) -> None:
    shown = f"{plan.threads}, {plan.slots} batches of {format_bytes(plan.batch_bytes)} in memory"
    assert dict(plan.lines())["threads"] == shown and "pinned_bytes" not in plan.to_json()


def test_a_loader_obeys_a_plan(plan: LoadPlan, episodes: Path) -> None:
    with penstock.open(episodes) as store, penstock.Loader(store, plan=plan) as loader:
        batch = next(iter(loader))
        assert len(batch["index"]) == 4 and loader.memory_split.slots == plan.slots
        assert loader.memory_split.limit_bytes == plan.budget_bytes
        with pytest.raises(UsageError, match="batch_size=8, but the plan says 4"):
            penstock.Loader(store, batch_size=8, plan=plan)
        with loader.variant(view="off") as other:
            assert len(next(iter(other))["index"]) == 4


def test_the_code_of_a_plan_makes_the_same_loader(plan: LoadPlan, episodes: Path) -> None:
    with penstock.open(episodes) as store:
        made = eval(plan.code, {"penstock": penstock, "store": store})
        with made, penstock.Loader(store, plan=plan) as planned:
            assert made.memory_split == planned.memory_split


def test_a_budget_that_holds_a_part_of_the_view(episodes: Path) -> None:
    plan = penstock.plan_loading(episodes, 4, image_size=(8, 8), memory="256MiB", seconds=0.05)
    ram = plan.options[1]
    small = replace(ram, share=0.25)
    assert "25%" in small.name and ram.name == "view in memory"


def test_the_command(episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"plan {episodes} --batch-size 4 --image-size 8x8 --memory 256MiB --seconds 0.05".split()
    assert main([*words, "--html", str(tmp_path / "plan.html")]) == 0
    shown = capsys.readouterr().out
    assert "small_dataset" in shown and "left of the budget" in shown and "penstock.Loader(store, batch_size=4" in shown
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "view in memory" in page and "<script" not in page
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"] == "small_dataset" and len(found["options"]) == 3 and found["peak_bytes"] > 0


def test_the_command_plans_some_episodes(episodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"plan {episodes} --batch-size 4 --image-size 8x8 --memory 256MiB --seconds 0.05 --window chunk:3".split()
    assert main([*words, "--episodes", "0,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["episodes"]) == (24, 2) and "episodes=[0, 2]" in found["opening"]
    with (
        eval(found["opening"], {"penstock": penstock}) as store,
        eval(found["code"], {"penstock": penstock, "store": store}) as loader,
    ):
        assert next(iter(loader))["action"].shape[1] == 3


def test_the_command_reports_the_batch_of_a_gpu(episodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"plan {episodes} --batch-size 4 --image-size 8x8 --memory 256MiB --seconds 0.05".split()
    assert main([*words, "--gpu-memory", "16GiB", "--model-params", "110M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_batch_size"] > 0
    assert main([*words, "--gpu-memory", "16GiB"]) == 2
    assert "belong together" in capsys.readouterr().err
    assert [parse_parameters(text) for text in ("110M", "1.5B", "7")] == [110e6, 1.5e9, 7]
    with pytest.raises(UsageError, match="is not a number"):
        parse_parameters("many")


def test_a_batch_larger_than_the_store_is_all_of_it(episodes: Path) -> None:
    plan = penstock.plan_loading(episodes, 1000, image_size=(8, 8), memory="256MiB", seconds=0.05)
    assert plan.batch_size == 36 and plan.reasons[0] == "a batch has 36 samples: there are no more"
    with pytest.raises(UsageError, match="at least one pass"):
        penstock.plan_loading(episodes, 4, epochs=0)


def test_a_store_that_is_open_is_planned_as_its_path(plan: LoadPlan, episodes: Path) -> None:
    with penstock.open(episodes, episodes=[0, 2]) as store:
        part = penstock.plan_loading(store, 4, image_size=(8, 8), memory="256MiB", seconds=0.05)
    assert (part.rows, part.episodes, part.slots) == (24, 2, plan.slots)


def test_a_plan_and_auto_agree_on_what_memory_holds(episodes: Path) -> None:
    with penstock.open(episodes) as store:
        words: dict[str, Any] = {"image_size": (64, 64), "output": "numpy"}  # by threads, as the plan has it
        with penstock.Loader(store, batch_size=4, view="off", **words) as without:
            memory = without.memory_split.fixed_bytes + 36 * 64 * 64 * 3
        plan = penstock.plan_loading(episodes, 4, image_size=(64, 64), memory=memory, seconds=0.05)
        ram = next(each for each in plan.options if each.view == "ram")
        with penstock.Loader(store, batch_size=4, memory=memory, **words) as auto:
            held = sum(view.capacity for view in auto._views) / sum(view.rows for view in auto._views)
    assert 0 < ram.share < 1 and held == pytest.approx(ram.share, abs=0.1)


def test_data_that_the_page_cache_cannot_hold_are_measured_without_it(
    episodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = planning.bench_load
    monkeypatch.setattr(planning, "bench_load", lambda plan, **words: asked.append(plan.cold) or real(plan, **words))
    limit = planning.read_memory_limit()
    for available in (1 << 30, 1000):
        monkeypatch.setattr(planning, "read_memory_limit", lambda: limit._replace(available_bytes=available))  # noqa: B023
        penstock.plan_loading(episodes, 4, image_size=(8, 8), memory="256MiB", seconds=0.05)
    assert asked == [False, True]


def test_a_plan_of_vqa_data_reports_what_its_data_sets_take(tmp_path: Path) -> None:
    from penstock._src.demo.vqa import ShapeScript, write_vqa_set

    write_vqa_set(tmp_path, ShapeScript(scenes=12))
    plan = penstock.plan_loading(tmp_path / "train.jsonl", 4, image_size=(8, 8), memory="256MiB", seconds=0.05)
    lazy, stream = plan.options[-2:]
    assert "LazyLoadVQADataset" in lazy.code and "StreamingVQADataset" in stream.code and not plan.chosen.code
    made = eval(lazy.code, {"penstock": penstock, "tokenizer": None})
    with made:
        images = len({made.store.image_key(row, 0, None) for row in range(len(made))})
        assert made[0]["image"].shape == (3, 8, 8)
    assert lazy.memory_bytes["image cache"] == images * 8 * 8 * 3 and lazy.share == 1
    for batch in eval(stream.code, {"penstock": penstock, "tokenizer": None}):
        assert len(batch["question"]) == 4
        break


# What happened is compared with the plan


def epochs_of(loader: penstock.Loader, count: int) -> None:
    for _ in range(count):
        for _ in loader:
            pass


def test_a_loader_compares_itself_with_its_plan(
    plan: LoadPlan, episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    with penstock.open(episodes) as store:
        with penstock.Loader(store, plan=plan) as loader:
            epochs_of(loader, 4)
        (outcome,) = read_history(tmp_path)
        assert capsys.readouterr().err == f"penstock: loading: {outcome.line}\n"
        assert outcome.kind == "load" and outcome.predicted_peak_bytes == plan.peak_bytes and outcome.rate > 0
        assert outcome.counted_bytes >= loader.memory_split.slots * loader.memory_split.slot_bytes
        loader.close()
        with penstock.Loader(store, plan=plan) as few:
            next(iter(few))
        with penstock.Loader(store, batch_size=4, image_size=(8, 8)) as unplanned:
            epochs_of(unplanned, 4)
        with penstock.Loader(store, plan=plan, shard=(0, 2)) as part:
            epochs_of(part, 9)
        assert not capsys.readouterr().err and len(read_history(tmp_path)) == 1
        forgotten = penstock.Loader(store, plan=plan)
        epochs_of(forgotten, 4)
        del forgotten
        gc.collect()
        assert len(read_history(tmp_path)) == 2


def test_a_history_that_fails_is_no_error_of_the_training(
    plan: LoadPlan, episodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(outcome_module, "record", fails)
    with penstock.open(episodes) as store, penstock.Loader(store, plan=plan) as loader:
        epochs_of(loader, 4)


def test_a_training_that_waits_for_nothing_says_nothing_of_the_rate() -> None:
    run = RunOutcome("load", "x", 110, 300, 1000.0, 50.0, counted_bytes=100, waited=0.02, is_bound=False)
    assert run.rate_error is None and "not limited by the loader: the training waited 2% of the time" in run.line
    assert run.memory_error == 0, "between what is counted and what the process grew by"
    assert run._replace(predicted_peak_bytes=80).memory_error == pytest.approx(-0.2)
    assert run._replace(predicted_peak_bytes=330).memory_error == pytest.approx(0.1)
    assert run._replace(is_bound=True).rate_error == pytest.approx(19)


@pytest.mark.parametrize("waits", [False, True])
def test_who_sets_the_pace_is_reported_by_the_waits(
    plan: LoadPlan, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(outcome_module, "perf_counter", lambda: float(next(clock)))
    loader: Any = SimpleNamespace(
        memory_split=SimpleNamespace(slots=3, slot_bytes=100, table_bytes=10), _views=[], stats=lambda: {"engine": {}}
    )
    monkeypatch.setattr(outcome_module.weakref, "finalize", lambda *_: None)
    run = outcome_module.PlannedRun(plan, loader)
    assert run.outcome is None
    for number in range(12):
        run.take(8, number - (0.5 if waits else 0.05), 1, loader)
    found = run.outcome
    assert found is not None and found.is_bound is waits and found.rate == pytest.approx(8)
    assert found.waited == pytest.approx(0.5 if waits else 0.05) and found.counted_bytes == 310
    assert (found.rate_error is None) is not waits
