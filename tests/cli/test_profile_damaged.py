"""penstock profile of damaged files: whatever one value was replaced by, it works or it is one sentence and code 2."""

from __future__ import annotations

import copy
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock._src.cli import main
from penstock._src.profile.stats import Snapshot
from tests.profile.made import stats
from tests.profile.runs import image, loader_told

WRONG: tuple[Any, ...] = (
    "abc", "", None, [], [1, "x"], {}, {"a": None}, True, -1, -(10**30), 10**30, 10**400, 0, 0.5, 1e308, float("nan"),
    float("inf"),
)  # fmt: skip
Way = tuple[str | int, ...]


def small_run() -> Snapshot:
    """Recorded: spans in two threads, counters, a gauge, steps, epochs; with stages of a GPU added."""
    profile.enable()
    profile.reset()

    def load() -> None:
        for _ in range(3):
            with profile.span("00_TOTAL_getitem"), profile.span("03b_image_decode"):
                profile.count("images_decoded", 2)

    for _ in range(2):
        for _ in range(5):
            with profile.data_wait():
                thread = threading.Thread(target=load, name="loader")
                thread.start()
                thread.join()
            profile.gauge("queue_depth", 1.5)
            with profile.span("20_train_forward_pass"):
                pass
            profile.mark_step()
        profile.mark_epoch()
    taken = profile.snapshot()
    profile.reset()
    return replace(taken, gpu=(stats("21_backward", [2_000_000] * 9 + [90_000_000]),), lost={"counters": 2})


def of_penstock(tmp_path: Path) -> dict[str, Any]:
    store = {"path": str(tmp_path / "moved"), "kind": "ALOHA episodes", "open_options": {}, "weight": 1.0, "rows": 10}
    view = {"where": "ram", "capacity": 500, "filled": 20, "bytes": 1 << 20}
    return loader_told(images=[image("a", can_scale=True), image("b", view=view)], stores=[store])


def of_torch(tmp_path: Path) -> dict[str, Any]:
    return {
        "kind": "torch.utils.data.DataLoader", "text": "DataLoader()", "workers": 2, "batch_size": 4, "batches": 5,
        "prefetch_factor": 2, "persistent_workers": False, "batches_handed": 10, "starts": 1, "start_wait_ms": 0.2,
        "cores": 2,
    }  # fmt: skip


def ways_to(value: Any, way: Way = ()) -> Iterator[Way]:
    """To everything in a file; of long lists to the first and the last."""
    yield way
    if isinstance(value, dict):
        for name, each in value.items():
            yield from ways_to(each, (*way, name))
    elif isinstance(value, list):
        for number in sorted({0, len(value) - 1} if value else ()):
            yield from ways_to(value[number], (*way, number))


def with_value(whole: dict[str, Any], way: Way, value: Any) -> dict[str, Any]:
    changed = copy.copy(whole)
    place: Any = changed
    for step in way[:-1]:
        place[step] = copy.copy(place[step])
        place = place[step]
    place[way[-1]] = value
    return changed


def wrong_for(number: int) -> list[Any]:
    """Some of the wrong values, others for each place."""
    return [WRONG[(3 * number + each) % len(WRONG)] for each in range(3)]


@pytest.mark.parametrize("subject", [of_penstock, of_torch])
def test_any_one_value_may_be_wrong(
    subject: Callable[[Path], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(json.dumps({**small_run().to_dict(), "loaders": [subject(tmp_path)]}))
    path, page, trace = tmp_path / "bad.json", tmp_path / "x.html", tmp_path / "x.trace.json"
    ways = {0: ("--json",), 1: ("--lang", "zh"), 2: ("--json", "--try"), 3: ()}
    codes = []
    for number, way in enumerate(list(ways_to(whole))[1:]):
        for each, value in enumerate(wrong_for(number)):
            path.write_text(json.dumps(with_value(whole, way, value)), encoding="utf-8")
            words = ways[(number + each) % len(ways)]
            codes.append(main(["profile", str(path), "--html", str(page), "--trace", str(trace), *words]))
            output = capsys.readouterr()
            assert codes[-1] in ((0, 1, 2) if "--try" in words else (0, 2)), (way, value)
            if codes[-1] == 2:
                line = output.err.splitlines()[-1]
                assert line.startswith(f"penstock: {path}"), (way, value)
            elif "--json" in words:
                json.loads(output.out, parse_constant=pytest.fail)
    assert codes.count(0) > 50 and codes.count(2) > 100


def test_the_sentence_names_the_file_and_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(with_value(small_run().to_dict(), ("steps", "wait_total_ns"), None)), encoding="utf-8")
    assert main(["profile", str(path)]) == 2
    assert f"{path}: the profile is damaged: steps.wait_total_ns: needs a whole number" in capsys.readouterr().err


def test_numbers_that_contradict_each_other_are_a_damaged_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: Any, **named: Any) -> Any:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(importlib.import_module("penstock._src.profile.verdict.verdict"), "verdict", divide)
    path = small_run().save(tmp_path / "bad.json")
    assert main(["profile", str(path)]) == 2
    assert capsys.readouterr().err == f"penstock: {path} is damaged: ZeroDivisionError: division by zero\n"
