"""The timing table and the lines of the epochs: what scripts grep for, what people read, what names cannot do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from penstock._src.profile.report.table import columns, epoch_line, epoch_lines, table
from penstock._src.profile.stats import Snapshot
from penstock.errors import UsageError
from tests.profile.made import MAIN, MS, WORKER, empty_run, stats, training_run

# As a script for the original log looks for it: name, total in seconds, calls, mean in milliseconds.
_ZH_ROW = re.compile(r"^(\S.*?) +\| 总计: +([\d.]+)s \| 调用: +(\d+)次 \| 平均: +([\d.]+)ms")


def test_the_chinese_table_has_the_look_that_scripts_know() -> None:
    spans = (
        stats("03_read_images_total", [14_390_000] * 100, self_ns=200 * MS),
        stats("03b_image_decode", [3_300_000] * 400),
    )
    lines = table(Snapshot(spans=spans), lang="zh").splitlines()
    assert lines[0] == lines[2] == lines[7] == "=" * 60
    assert lines[1] == "⏱️  性能分析统计"
    assert lines[3].startswith("环节名称") and lines[4] == "-" * 60
    rows = (
        "03_read_images_total                     | 总计:     1.44s | 调用:    100次 | 平均:  14.39ms",
        "03b_image_decode                         | 总计:     1.32s | 调用:    400次 | 平均:   3.30ms",
    )
    assert all(line.startswith(row + " | ") for line, row in zip(lines[5:7], rows, strict=True))
    assert len({columns(line.split("|")[0]) for line in (lines[3], *lines[5:7])}) == 1


def test_all_calls_of_all_threads_and_processes_are_in_one_row() -> None:
    spans = (
        stats("03b_image_decode", [2 * MS] * 30, thread="loader-0"),
        stats("03b_image_decode", [4 * MS] * 10, thread="loader-1"),
        stats("03b_image_decode", [4 * MS] * 60, process=WORKER),
    )
    lines = table(Snapshot(spans=spans, process=MAIN), lang="zh").splitlines()
    assert [row.groups() for row in map(_ZH_ROW.match, lines) if row] == [("03b_image_decode", "0.34", "100", "3.40")]


def test_the_long_table_adds_self_percentiles_and_the_share_of_the_step() -> None:
    run = training_run(100)
    text = table(run)
    row = next(line for line in text.splitlines() if line.startswith("data_wait"))
    share = 100 * run.by_name()["data_wait"].total_ns / run.steps.total_ns
    assert f"share: {share:6.1f}%" in row
    for word in ("total:", "calls:", "mean:", "self:", "p50:", "p95:", "p99:"):
        assert word in row
    assert "21_backward [GPU]" in text
    assert f"data wait: {100 * run.steps.wait_share:.1f} % of the step" in text


def test_the_largest_total_comes_first_and_what_is_left_out_is_said() -> None:
    run = training_run(50)
    totals = [float(found[1]) for found in re.finditer(r"total: +([\d.]+)s", table(run))]
    assert totals == sorted(totals, reverse=True) and len(totals) > 5
    short = table(run, limit=2)
    assert len(re.findall(r"total: ", short)) == 2
    assert f"and {len(totals) - 2} stages more" in short


def test_a_microsecond_is_not_shown_as_nothing() -> None:
    assert "mean: 0.0012ms" in table(Snapshot(spans=(stats("tiny", [1_200] * 5),)))


def test_without_spans_or_steps_the_table_says_so() -> None:
    assert "no span was recorded" in table(empty_run())
    alone = table(Snapshot(spans=(stats("a", [MS]),)))
    assert "no step was marked" in alone and "share:       –" in alone


def test_what_was_lost_is_told() -> None:
    assert "not recorded: threads 3" in table(Snapshot(spans=(stats("a", [MS]),), lost={"threads": 3, "gauges": 0}))


def test_a_name_cannot_command_the_terminal_or_break_a_line() -> None:
    text = table(Snapshot(spans=(stats("\x1b[31mred\nnext\u202e", [MS]),)))
    assert "\x1b" not in text and "\u202e" not in text
    assert r"\x1b[31mred\nnext\u202e" in text


def test_names_of_any_script_keep_the_columns() -> None:
    text = table(Snapshot(spans=(stats("读取相机", [2 * MS]), stats("plain", [MS]))), lang="zh")
    rows = [line for line in text.splitlines() if "总计:" in line]
    assert len({columns(row.split("|")[0]) for row in rows}) == 1


def test_the_lines_of_epochs_are_what_the_log_is_searched_for() -> None:
    chinese = epoch_lines(training_run(40), lang="zh")
    assert len(chinese) == 2
    assert all(re.search(r"Epoch.*总耗时", line) and "耗时:" in line for line in chinese)
    assert epoch_lines(training_run(40))[0].startswith("Epoch 0 took: ")


def test_an_epoch_line_tells_validation_and_training_where_known() -> None:
    line = epoch_line(3, 12 * 10**9, validation_ns=2 * 10**9, training_ns=10**10, wait_ns=3 * 10**9, steps=7, lang="zh")
    assert line == "Epoch 3 总耗时: 12.00s | 验证耗时: 2.00s | 训练耗时: 10.00s | 数据等待: 3.00s (25.0%) | 步数: 7"


def test_an_unknown_language_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="en and zh, not 'de'"):
        table(empty_run(), lang="de")  # type: ignore[arg-type]


def test_idle_time_of_a_loader_comes_last_and_checkpoints_have_no_share_of_the_step() -> None:
    run = training_run()
    extra = (stats("loader idle", [10**12]), stats("30_checkpoint", [10**11]))
    lines = table(replace(run, spans=(*run.spans, *extra))).splitlines()
    stages = [line for line in lines if " | total: " in line and "calls:" in line]
    assert stages[0].startswith("30_checkpoint ") and stages[0].endswith("–")
    assert stages[-1].startswith("loader idle ")
