"""The page of a plan: whole by itself, every name only text; and what a browser makes of it, light and dark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock._src.cli.plan_page import conversion_page, loading_page
from penstock._src.plan.conversion_plan import ConversionOption, ConversionPlan
from penstock._src.plan.load_plan import LoadOption, LoadPlan
from tests.profile.browser import CHROMIUM, DRIVER, Browser

MIB = 1 << 20
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&"
FIXED = {"batches": 138 * MIB, "numbers and indexes": 1 * MIB, "threads and libraries": 9 * MIB}
OFF = LoadOption("off", 0.0, FIXED, 0, 0.0, 240.0)
RAM = LoadOption("ram", 1.0, {**FIXED, "view": 517 * MIB}, 0, 8.4, 9200.0)
DISK = LoadOption("disk", 1.0, FIXED, 542 << 20, 11.0, 5100.0, "the disk has 200 MiB left, the view needs 517 MiB")
LOADING = LoadPlan(
    path="datasets/run", kind="LeRobot v3.0", rows=1200, episodes=4, samples=1200, window="Window()", batch_size=64,
    image_size=(224, 224), stored_bytes=333_000_000, decoded_bytes=517 * MIB, batch_bytes=27 * MIB,
    engine_bytes=96 * MIB,
    budget_bytes=1024 * MIB, available_bytes=20 << 30, memory_limit="physical memory", strategy="small_dataset",
    threads=2, slots=5, prefetch=3, chosen=RAM, options=(OFF, RAM, DISK),
    reasons=("view in memory gives 38.3× the samples/s of decoding every time, and takes 8.4 s to fill once",),
    opening="penstock.open('datasets/run')",
)  # fmt: skip
CONVERSION = ConversionPlan(
    path="run.bag", kind="recording", size_bytes=53_000_000, budget_bytes=2048 * MIB, fps=30,
    lines=(("rows", "300 at 30 fps"), ("video", "copied as JPEG: cam_h, cam_l, cam_r")),
    options=(
        ConversionOption("copy", {"interpreter and libraries": 100 * MIB, "read buffers": 16 * MIB}),
        ConversionOption("av1", {}, "this conversion needs 275 MiB and the budget is 200 MiB", "give --memory 280MiB"),
    ),
)  # fmt: skip


def test_a_page_says_what_it_is_what_it_costs_and_what_to_run() -> None:
    page = loading_page(LOADING, [("GPU", "a batch of about 40")])
    for words in (
        "LeRobot v3.0", "small dataset", "665 MiB", "9,200", "left of the budget", "359 MiB", "chosen",
        "the disk has 200 MiB left", "penstock.open(&#x27;datasets/run&#x27;)", "a batch of about 40",
    ):  # fmt: skip
        assert words in page
    page = conversion_page(CONVERSION, (), ["penstock convert run.bag datasets/run video=copy"])
    for words in ("run.bag", "116 MiB", "penstock convert run.bag", "give --memory 280MiB", "300 at 30 fps"):
        assert words in page


def test_every_name_is_text_and_nothing_is_asked_for() -> None:
    hostile = replace(LOADING, path=HOSTILE, kind=HOSTILE, reasons=(HOSTILE,))
    other = replace(CONVERSION, path=HOSTILE, lines=((HOSTILE, HOSTILE),))
    for page in (loading_page(hostile, [(HOSTILE, HOSTILE)]), conversion_page(other, (), [HOSTILE])):
        assert "<script" not in page and "<img" not in page and "://" not in page and "url(" not in page


@pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="there is no Chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page(tmp_path: Path, dark: bool) -> None:
    import cv2

    pages = {"loading": loading_page(LOADING), "conversion": conversion_page(CONVERSION, (), ["penstock convert x"])}
    with Browser(tmp_path, dark=dark) as browser:
        for name, page in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(page, encoding="utf-8")
            browser.visit(path)
            assert browser.console() == []
            shown = browser.text()
            assert "left of the budget" in shown and "chosen" in shown and "Run" in shown
            assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
            widths = browser.run(
                "return [...document.querySelector('.bar').children].map(e => e.getBoundingClientRect().width)"
            )
            whole = browser.run("return document.querySelector('.bar').clientWidth")
            plan_parts = LOADING.chosen.memory_bytes if name == "loading" else CONVERSION.options[0].memory_bytes
            budget = LOADING.budget_bytes if name == "loading" else CONVERSION.budget_bytes
            for width, size in zip(widths, plan_parts.values(), strict=True):
                assert width == pytest.approx(max(2, whole * size / budget), abs=2)
            browser.screenshot(tmp_path / f"{name}.png")
            pixels = cv2.imread(str(tmp_path / f"{name}.png"))
            assert pixels is not None
            assert (pixels[5, 5].mean() < 60) if dark else (pixels[5, 5].mean() > 240)
            assert len({tuple(colour) for colour in pixels.reshape(-1, 3)[::97].tolist()}) > 5
