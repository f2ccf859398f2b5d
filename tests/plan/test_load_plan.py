"""What a plan chooses, and what a loader makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cli import main
from penstock.cli.plan import parse_parameters
from penstock.errors import UsageError
from penstock.plan.load_plan import LoadOption, LoadPlan, choose, strategy_for
from tests.stores import hdf5_files as files

FIXED = {"batches": 100}


def option(view: str, fill_s: float, rate: float, why_not: str = "") -> LoadOption:
    return LoadOption(view, 1.0, FIXED, 0, fill_s, rate, why_not)  # type: ignore[arg-type]


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
        images = sum(column.is_picture for column in store.columns.values())
    assert plan.options[1].memory_bytes["view"] == images * 36 * 8 * 8 * 3 + 36
    assert plan.peak_bytes <= plan.budget_bytes and plan.samples_per_s > 0


def test_a_loader_obeys_a_plan(plan: LoadPlan, episodes: Path) -> None:
    with penstock.open(episodes) as store, penstock.Loader(store, plan=plan) as loader:
        batch = next(iter(loader))
        assert len(batch["index"]) == 4 and loader.shares.slots == plan.slots
        assert loader.shares.limit_bytes == plan.budget_bytes
        with pytest.raises(UsageError, match="batch_size=8, but the plan says 4"):
            penstock.Loader(store, batch_size=8, plan=plan)
        with loader.variant(view="off") as other:
            assert len(next(iter(other))["index"]) == 4


def test_the_code_of_a_plan_makes_the_same_loader(plan: LoadPlan, episodes: Path) -> None:
    with penstock.open(episodes) as store:
        made = eval(plan.code, {"penstock": penstock, "store": store})
        with made, penstock.Loader(store, plan=plan) as planned:
            assert made.shares == planned.shares


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


def test_the_command_tells_the_batch_of_a_gpu(episodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"plan {episodes} --batch-size 4 --image-size 8x8 --memory 256MiB --seconds 0.05".split()
    assert main([*words, "--gpu-memory", "16GiB", "--model-params", "110M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_batch_size"] > 0
    assert main([*words, "--gpu-memory", "16GiB"]) == 2
    assert "belong together" in capsys.readouterr().err
    assert [parse_parameters(text) for text in ("110M", "1.5B", "7")] == [110e6, 1.5e9, 7]
    with pytest.raises(UsageError, match="is no number"):
        parse_parameters("many")
