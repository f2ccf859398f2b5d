"""The page: whole by itself, readable without scripts, every name only text; and what a browser makes of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from penstock._src.profile.report.page import export_html, render_page
from penstock._src.profile.report.page_charts import StageStyle, round_marks, step_bars, step_ticks
from penstock._src.profile.stats import (
    LoaderInfo,
    MemoryPoint,
    Snapshot,
    SpanEvent,
    StepPoint,
    StepStats,
    StoreInfo,
    ThreadEvents,
)
from penstock.errors import OutputFailed
from tests.profile.browser import CHROMIUM, DRIVER, Browser
from tests.profile.made import MAIN, MS, START_NS, empty_run, stats, steps_of, training_run

HOSTILE = "<script>document.title='owned';console.error(1)</script><img src=x onerror=\"document.title='owned'\">'\"&"

_VOID = {"meta", "input", "br", "img", "link"}


class _Reader(HTMLParser):
    """Tags, attributes and text of a page; a tag that is closed out of turn is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader._open == []
    return reader


def _count(reader: _Reader, kind: str) -> int:
    return sum(kind in (attributes.get("class") or "").split() for _, attributes in reader.tags)


# The text of the page


def test_the_page_is_readable_without_scripts() -> None:
    reader = _read(render_page(training_run(60), verdict="Input-bound: decode takes 71 %.", title="a run"))
    for words in (
        "a run", "Input-bound: decode takes 71 %.", "Data wait", "Median step", "One step", "Stages", "Table",
        "Data wait over time", "Memory over time", "03b_image_decode", "DataLoader worker 0", "loader-2", "bytes_read",
    ):  # fmt: skip
        assert words in reader.text
    assert _count(reader, "bar") > 20 and _count(reader, "fill") > 10 and _count(reader, "plot") == 2


def test_the_page_asks_nobody_for_anything() -> None:
    page = render_page(training_run(30), verdict="x")
    reader = _read(page)
    assert not {tag for tag, _ in reader.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [attributes for _, attributes in reader.tags if {"src", "href", "action"} & set(attributes)]
    assert "://" not in page and "@import" not in page and "url(" not in page


def test_every_name_is_text_wherever_it_comes_from() -> None:
    run = training_run(20, extra_name=HOSTILE)
    hostile = Snapshot(
        **{
            **vars(run),
            "counters": {HOSTILE: 1},
            "machine": {HOSTILE: HOSTILE},
            "loaders": (LoaderInfo(kind=HOSTILE),),
            "lost": {HOSTILE: 2},
            "gpu": (stats(HOSTILE, [MS]),),
            "events": (*run.events, ThreadEvents(9, HOSTILE, HOSTILE, run.events[0].events)),
        }
    )

    class Message:
        sentence = HOSTILE
        fixes = (type("F", (), {"name": HOSTILE, "why": HOSTILE, "predicted_step_ms": 1.0})(),)

    page = render_page(hostile, verdict=Message(), title=HOSTILE)
    reader = _read(page)
    assert sum(tag == "script" for tag, _ in reader.tags) == 1 and "img" not in {tag for tag, _ in reader.tags}
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert page.count("<script>") == 1
    assert reader.text.count(HOSTILE) >= 10


def test_the_page_says_in_words_what_a_loader_is() -> None:
    info = LoaderInfo(text="<Loader: 600 samples>", stores=(StoreInfo("sets/run", "LeRobot v3.0"),), engine="process",
                      threads=2, memory_bytes=1 << 30, options={"view": "off"})  # fmt: skip
    text = _read(render_page(replace(training_run(30), loaders=(info,)))).text
    assert "<Loader: 600 samples> · LeRobot v3.0 sets/run · engine process · 2 threads · memory 1 GiB" in text
    assert '"view"' not in text


def test_an_empty_run_gives_a_page_that_says_what_is_missing() -> None:
    reader = _read(render_page(empty_run()))
    for words in ("no step was marked", "No span was recorded", "No memory was sampled"):
        assert words in reader.text


def test_runs_with_only_some_of_the_data_give_pages() -> None:
    full = vars(training_run(12))
    for missing in ("spans", "events", "memory", "gpu", "epochs"):
        _read(render_page(Snapshot(**{**full, missing: ()})))
    _read(render_page(Snapshot(**{**full, "steps": StepStats()})))
    one = steps_of([StepPoint(0, START_NS, MS, MS)])
    _read(render_page(Snapshot(**{**full, "steps": one, "memory": full["memory"][:1]})))


def _wait_chart(numbers: list[int]) -> tuple[list[float], list[str], str]:
    """Of steps so numbered: where their points lie, what their tips say, and the words below the axis."""
    points = tuple(StepPoint(step, START_NS + at * MS, MS, 0) for at, step in enumerate(numbers))
    steps = steps_of(points)
    page = render_page(Snapshot(**{**vars(empty_run()), "steps": steps}))
    chart = page[page.index('aria-label="Data wait over time"') :]
    data = next(each["data-points"] for _, each in _read(page).tags if "data-points" in each)
    places = json.loads(data or "")
    ticks = re.findall(r"<span style=.left:[^>]*>([^<]*)<", chart[chart.index('class="x"') :].split("</section>")[0])
    return [x for x, _ in places], [tip.splitlines()[0] for _, tip in places], " ".join(ticks)


def test_steps_whose_numbers_begin_anew_lie_one_after_the_other() -> None:
    places, tips, axis = _wait_chart([0, 1, 2, 3, 0, 1, 2, 3, 0])
    assert places == [at / 8 for at in range(9)]
    assert tips == [f"step {step}" for step in (0, 1, 2, 3, 0, 1, 2, 3, 0)]
    assert axis == "step 0 0 0"
    places, _, axis = _wait_chart(list(range(5)) * 200)  # several steps per point
    assert places == sorted(set(places)) and (places[0], places[-1]) == (0, 1)
    assert _wait_chart([7])[2] == "step 7" and _wait_chart([7, 9])[2] == "step 7 7 9"


def test_the_page_stays_small_whatever_the_run() -> None:
    chunk = [
        SpanEvent(f"stage {n % 300} " + "x" * 500, START_NS + n * 1000, 900 if n % 2 else 40, n % 5)
        for n in range(4096)
    ]
    lanes = tuple(ThreadEvents(MAIN, "p" * 9000, f"thread {n}", tuple(chunk)) for n in range(60))
    spans = tuple(stats(f"stage {n} " + "x" * 5000, [1000] * 10) for n in range(1500))
    series = tuple(StepPoint(n, START_NS + n * 5_000_000, 5_000_000, 1_000_000) for n in range(4096))
    huge = Snapshot(
        spans=spans,
        events=lanes,
        steps=steps_of(series),
        memory=tuple(MemoryPoint(START_NS + n, n, n) for n in range(1, 50_000)),
        loaders=tuple(LoaderInfo(kind="x" * 100_000) for _ in range(100)),
        process=MAIN,
    )
    assert len(render_page(huge)) < 2_500_000


def test_a_directory_that_is_not_there_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="the page cannot be written"):
        export_html(tmp_path / "nowhere" / "page.html", training_run(3))
    assert list(tmp_path.iterdir()) == []


# The step's timeline


def _bars(events: list[SpanEvent], duration_ns: int = 1_000_000) -> Any:
    names = {event.name: StageStyle(n, False) for n, event in enumerate(events)}
    return step_bars(events, 0, duration_ns, names)


def test_bars_lie_where_the_spans_were_and_end_with_the_step() -> None:
    bars = _bars(
        [SpanEvent("a", -250_000, 500_000, 0), SpanEvent("b", 500_000, 900_000, 1), SpanEvent("c", 2_000_000, 5, 0)]
    )
    assert [(block.label, block.left, block.width, block.depth) for block in bars] == [
        ("a", 0.0, 0.25, 0),
        ("b", 0.5, 0.5, 1),
    ]


def test_short_neighbours_become_one_bar_that_says_so() -> None:
    bars = _bars(
        [SpanEvent("tiny", 1000 * n, 900, 0) for n in range(10)] + [SpanEvent("long", 500_000, 100_000, 0)], 10**7
    )
    assert [block.label for block in bars] == ["tiny", "long"]
    assert "10 short spans" in bars[0].tip and bars[0].width == pytest.approx(9900 / 10**7)


def test_ticks_are_round_and_do_not_run_into_the_end() -> None:
    assert step_ticks(53_800_000) == [
        (0.0, "0 ms"),
        (pytest.approx(10 / 53.8), "10 ms"),
        (pytest.approx(20 / 53.8), "20 ms"),
        (pytest.approx(30 / 53.8), "30 ms"),
        (pytest.approx(40 / 53.8), "40 ms"),
        (1.0, "53.8 ms"),
    ]
    assert round_marks(0.0) == [0.0] and round_marks(7) == [0.0, 2.0, 4.0, 6.0]


def test_the_median_step_is_drawn_not_the_first_slow_one() -> None:
    text = _read(render_page(training_run(41))).text
    step = re.search(r"Step (\d+): ", text)
    assert step is not None and int(step[1]) != 0
    assert "Slowest of the last" in text


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium and chromedriver are needed: apt-get install chromium chromium-driver")
        pytest.skip("chromium and chromedriver are not here")
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


_SIZES = """
const sizes = (kind) => [...document.querySelectorAll(kind)].filter((each) => each.checkVisibility())
  .map((each) => each.getBoundingClientRect()).filter((box) => box.width > 0 && box.height > 0).length;
return [".bar", ".fill.self", ".fill.total", ".chart path[style]", "tbody tr", ".figure"].map(sizes);
"""


def test_a_browser_shows_the_bars_and_its_console_is_silent(browser: Browser, tmp_path: Path) -> None:
    browser.visit(export_html(tmp_path / "page.html", training_run(60), verdict="Input-bound."))
    bars, own, total, curves, rows, figures = browser.run(_SIZES)
    stages = browser.run("return document.querySelectorAll('.stage').length")
    assert bars >= 30 and own == total == stages == rows == 11 and curves >= 5 and figures == 4
    assert browser.console() == []
    wide = browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert wide


def test_a_hostile_name_is_shown_and_not_run(browser: Browser, tmp_path: Path) -> None:
    run = training_run(20, extra_name=HOSTILE)
    browser.visit(export_html(tmp_path / "page.html", run, verdict=HOSTILE, title=HOSTILE))
    assert HOSTILE in browser.text()
    # Its own tip too: what was an attribute becomes an element's text.
    browser.run(
        "for (const each of document.querySelectorAll('.bar, .stage, .plot'))"
        " each.dispatchEvent(new PointerEvent('pointermove', {clientX: 300, clientY: 300}));"
    )
    assert browser.run("return document.title") == f"{HOSTILE} · penstock"
    assert browser.run("return document.images.length + document.scripts.length") == 1
    assert browser.console() == []


def test_the_page_answers_to_the_pointer_and_to_clicks(browser: Browser, tmp_path: Path) -> None:
    browser.visit(export_html(tmp_path / "page.html", training_run(60)))
    tip = browser.run(
        "document.querySelector('.bar').dispatchEvent(new PointerEvent('pointermove', {clientX: 9, clientY: 9}));"
        "return document.getElementById('tip').innerText"
    )
    assert "data_wait" in tip and "ms" in tip
    first = "return document.querySelector('tbody td').textContent"
    longest = browser.run(first)
    assert longest.startswith("03_read_images_total")
    browser.run("document.querySelectorAll('th')[4].click()")
    assert browser.run(first).startswith("data_wait")  # the largest mean
    browser.run("document.querySelectorAll('th')[4].click()")
    assert browser.run(first).startswith("05_to_tensor_normalize")
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colour) != before
    browser.run("document.querySelectorAll('.tabs label')[1].click()")
    shown = browser.run("return [...document.querySelectorAll('.pane')].map((each) => each.checkVisibility())")
    assert shown == [False, True]
    assert browser.console() == []
