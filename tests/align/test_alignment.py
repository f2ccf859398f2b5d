"""What a user relies on, one behaviour per test, with numbers that can be checked in the head."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.align import AlignmentReport, FixedTimeline, RowPick, TopicStream, TopicTimeline, align
from penstock.errors import AlignError

MS = 1_000_000
SECOND = 1_000_000_000


def at_ms(*milliseconds: float) -> NDArray[np.int64]:
    return np.array([round(ms * MS) for ms in milliseconds], dtype=np.int64)


def every_ms(period: float, count: int, begin: float = 0.0) -> NDArray[np.int64]:
    return at_ms(*(begin + i * period for i in range(count)))


def picked(times: NDArray[np.int64], rows: NDArray[np.int64], **rules: object) -> RowPick:
    """The pick of a stream with `times` for camera rows at `rows`."""
    streams = [TopicStream("/cam", rows), TopicStream("/s", times, **rules)]  # type: ignore[arg-type]
    return align(streams, TopicTimeline("/cam", fps=10, stride=1)).picks["/s"]


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nearest_takes_the_closer_message_and_the_earlier_of_two_equally_close() -> None:
    assert picked(at_ms(90, 110, 204, 210), at_ms(100, 206, 208)).left.tolist() == [0, 2, 3]


def test_of_several_messages_at_one_time_nearest_takes_the_first_and_hold_the_last() -> None:
    times = at_ms(95, 95, 95, 400)
    assert picked(times, at_ms(100)).left.tolist() == [0]
    assert picked(times, at_ms(100), policy="hold").left.tolist() == [2]


def test_hold_never_takes_a_message_from_the_future() -> None:
    assert picked(at_ms(0, 101, 150), at_ms(100, 101, 149), policy="hold").left.tolist() == [0, 1, 1]


def test_linear_gives_both_neighbours_and_the_weight_of_the_later() -> None:
    pick = picked(at_ms(0, 100, 200), at_ms(25, 100, 150), policy="linear")
    assert pick.right is not None and pick.weight is not None
    assert pick.left.tolist() == [0, 1, 1]
    assert pick.right.tolist() == [1, 1, 2]
    assert pick.weight.tolist() == [0.25, 0.0, 0.5]


def test_an_offset_moves_a_stream_in_time() -> None:
    assert picked(at_ms(0, 40, 80), at_ms(40)).left.tolist() == [1]
    assert picked(at_ms(0, 40, 80), at_ms(40), offset_ns=-40 * MS).left.tolist() == [2]
    assert picked(at_ms(0, 40, 80), at_ms(40), offset_ns=40 * MS).left.tolist() == [0]


def test_numbers_count_messages_in_file_order_even_when_times_go_backwards() -> None:
    streams = [TopicStream("/cam", every_ms(100, 3)), TopicStream("/s", at_ms(200, 0, 100))]
    alignment = align(streams, TopicTimeline("/cam"))
    assert alignment.picks["/s"].left.tolist() == [1, 2, 0]
    assert alignment.report.streams["/s"].out_of_order == 1
    assert any("/s: time goes backwards 1 time;" in note for note in alignment.report.notes)


def test_every_row_of_the_timeline_takes_its_own_message_even_at_a_repeated_time() -> None:
    alignment = align([TopicStream("/cam", at_ms(0, 100, 100, 200))], TopicTimeline("/cam"))
    assert alignment.picks["/cam"].left.tolist() == [0, 1, 2, 3]
    assert alignment.report.streams["/cam"].duplicate_times == 1


# ── rows and fps ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fps_is_the_rounded_rate_of_the_camera_and_pauses_do_not_bend_it() -> None:
    times = every_ms(33.4, 60)
    times[30:] += 5 * SECOND
    alignment = align([TopicStream("/cam", times)], TopicTimeline("/cam"))
    assert alignment.fps == 30
    assert alignment.report.real_fps == pytest.approx(29.94, abs=0.01)
    assert alignment.report.timeline_gaps.count == 1
    assert alignment.report.timeline_gaps.listed[0].rows == 150


def test_the_note_on_timestamps_counts_the_holes() -> None:
    times = every_ms(33.4, 60)
    times[30:] += 5 * SECOND
    notes = align([TopicStream("/cam", times)], TopicTimeline("/cam")).report.notes
    assert notes[0] == (
        "the data set states 30 fps, the rows come at 8.46 Hz: 6.971 s become 1.967 s, its timestamps differ from "
        "the recording's by 71.8%"
    )


def test_a_rate_that_is_no_whole_number_is_reported_aloud() -> None:
    report = align([TopicStream("/cam", every_ms(80, 50))], TopicTimeline("/cam")).report
    assert report.fps == 12
    assert any("states 12 fps, the rows come at 12.50 Hz" in note and "4.2%" in note for note in report.notes)


def test_stride_takes_every_nth_message_after_sample_drop() -> None:
    alignment = align([TopicStream("/cam", every_ms(100 / 3, 20))], TopicTimeline("/cam", stride=3), sample_drop=4)
    assert alignment.picks["/cam"].left.tolist() == [4, 7, 10, 13]
    assert alignment.fps == 10
    assert alignment.report.sample_dropped == 8


@pytest.mark.parametrize(("fps", "rows"), [(30, [0, 1, 2, 3]), (10, [0, 3, 6, 9]), (15, [0, 2, 4, 6])])
def test_a_target_fps_that_divides_the_rate_becomes_a_stride(fps: int, rows: list[int]) -> None:
    alignment = align([TopicStream("/cam", every_ms(100 / 3, 60))], TopicTimeline("/cam", fps=fps))
    assert alignment.picks["/cam"].left[:4].tolist() == rows
    assert alignment.report.stride == 30 // fps


def test_a_target_fps_that_does_not_divide_the_rate_takes_the_messages_nearest_to_its_grid() -> None:
    alignment = align([TopicStream("/cam", every_ms(100 / 3, 61))], TopicTimeline("/cam", fps=20))
    assert alignment.picks["/cam"].left[:7].tolist() == [0, 1, 3, 4, 6, 7, 9]
    assert alignment.report.stride is None
    assert alignment.report.real_fps == pytest.approx(20, rel=0.01)
    assert alignment.report.timeline_gaps.count == 0


def test_the_uneven_steps_of_a_thinned_timeline_are_no_holes() -> None:
    report = align([TopicStream("/cam", every_ms(100 / 3, 61))], TopicTimeline("/cam", fps=25)).report
    assert report.timeline_gaps.count == 0
    assert report.notes == ()


def test_an_fps_above_the_cameras_rate_is_refused_and_names_the_way_out() -> None:
    with pytest.raises(AlignError, match=r"fps 60 is above the rate of the timeline /cam, 30\.00 Hz[\s\S]*fixed"):
        align([TopicStream("/cam", every_ms(100 / 3, 20))], TopicTimeline("/cam", fps=60))


def test_a_fixed_timeline_repeats_messages_and_counts_that() -> None:
    alignment = align([TopicStream("/cam", every_ms(100, 4))], FixedTimeline(20))
    assert alignment.picks["/cam"].left.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert alignment.report.streams["/cam"].repeats == 3


def test_a_fixed_timeline_does_not_drift_over_ten_hours() -> None:
    streams = [TopicStream("/s", np.arange(36_001, dtype=np.int64) * SECOND, tolerance_ns=SECOND)]
    times = align(streams, FixedTimeline(30)).row_times_ns
    assert times[30 * 36_000] == 36_000 * SECOND
    assert int(np.diff(times).max()) - int(np.diff(times).min()) <= 1


def test_a_zero_stamp_does_not_make_a_fixed_timeline_of_billions_of_rows() -> None:
    times = every_ms(100, 50) + 1_700_000_000 * SECOND
    times[0] = 0
    with pytest.raises(AlignError, match=r"would have 5[0-9,]+ rows") as caught:
        align([TopicStream("/cam", times)], FixedTimeline(30))
    assert "time: log" in str(caught.value)


def test_a_zero_stamp_does_not_trouble_a_target_fps() -> None:
    times = every_ms(100 / 3, 61) + 1_700_000_000 * SECOND
    times[0] = 0
    alignment = align([TopicStream("/cam", times), TopicStream("/s", times[1:])], TopicTimeline("/cam", fps=20))
    assert alignment.report.trimmed_head == 1
    assert alignment.report.streams["/s"].trimmed_head == 1


def test_one_frame_needs_fps_and_then_is_one_row() -> None:
    with pytest.raises(AlignError, match=r"rate is unknown[\s\S]*give fps"):
        align([TopicStream("/cam", at_ms(5))], TopicTimeline("/cam"))
    assert len(align([TopicStream("/cam", at_ms(5))], TopicTimeline("/cam", fps=30)).row_times_ns) == 1
    assert len(align([TopicStream("/cam", at_ms(5))], FixedTimeline(30)).row_times_ns) == 1


# ── missing data ─────────────────────────────────────────────────────────────────────────────────────────────────────


def late_and_early(missing: str) -> list[TopicStream]:
    joints = every_ms(100, 6, begin=200)  # 200 … 700 of 0 … 900
    return [
        TopicStream("/cam", every_ms(100, 10)),
        TopicStream("/joints", joints, tolerance_ns=50 * MS, missing=missing),
    ]  # type: ignore[arg-type]


def test_a_stream_that_starts_late_and_stops_early_trims_both_ends_without_loss() -> None:
    alignment = align(late_and_early("trim"), TopicTimeline("/cam"))
    assert alignment.picks["/cam"].left.tolist() == [2, 3, 4, 5, 6, 7]
    joints = alignment.report.streams["/joints"]
    assert (joints.trimmed_head, joints.trimmed_tail, joints.lost) == (2, 2, 0)
    assert alignment.report.lost_by_cause == {}


def test_reject_names_the_stream_the_rows_and_the_first_time() -> None:
    with pytest.raises(AlignError, match=r"/joints: 4 of 10 rows .* first at 0\.000 s"):
        align(late_and_early("reject"), TopicTimeline("/cam"))


def test_hold_repeats_the_last_message_at_the_end_and_still_trims_before_the_first() -> None:
    alignment = align(late_and_early("hold"), TopicTimeline("/cam"))
    assert alignment.picks["/joints"].left.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    joints = alignment.report.streams["/joints"]
    assert (joints.trimmed_head, joints.held, joints.repeats, joints.lost) == (2, 2, 2, 0)


def test_a_gap_in_the_middle_is_lost_and_its_time_is_named() -> None:
    joints = np.delete(every_ms(100, 10), [4, 5])
    streams = [TopicStream("/cam", every_ms(100, 10)), TopicStream("/joints", joints, tolerance_ns=50 * MS)]
    report = align(streams, TopicTimeline("/cam")).report
    assert (report.rows, report.lost, dict(report.lost_by_cause)) == (8, 2, {"gap:/joints": 2})
    assert report.to_json()["streams"]["/joints"]["gaps"] == [{"from_s": 0.4, "to_s": 0.5, "rows": 2}]
    assert any("/joints: no message within 50 ms for 2 rows, first at 0.400 … 0.500 s" in note for note in report.notes)


def test_a_row_that_two_streams_lack_is_lost_once() -> None:
    rows = every_ms(100, 10)
    streams = [TopicStream("/cam", rows)]
    streams += [TopicStream(n, np.delete(rows, gone), tolerance_ns=0) for n, gone in (("/a", [4]), ("/b", [4, 6]))]
    report = align(streams, TopicTimeline("/cam")).report
    assert (report.rows, report.lost) == (8, 2)
    assert dict(report.lost_by_cause) == {"gap:/a": 1, "gap:/b": 1}
    assert report.streams["/b"].lost == 2


def test_the_automatic_tolerance_follows_the_slower_of_rows_and_stream() -> None:
    rows = every_ms(100, 20)
    streams = [
        TopicStream("/cam", rows),
        TopicStream("/fast", every_ms(10, 200)),
        TopicStream("/slow", every_ms(250, 8)),
    ]
    report = align(streams, TopicTimeline("/cam")).report
    assert report.streams["/fast"].tolerance_ms == 150
    assert report.streams["/slow"].tolerance_ms == 375


def test_only_the_first_twenty_gaps_are_listed_and_all_are_counted() -> None:
    rows = every_ms(10, 100)
    streams = [TopicStream("/cam", rows), TopicStream("/s", rows[::2], tolerance_ns=0)]
    stream = align(streams, TopicTimeline("/cam")).report.to_json()["streams"]["/s"]
    assert (len(stream["gaps"]), stream["gap_count"], stream["lost"]) == (20, 49, 49)


def test_a_stream_that_begins_after_the_last_row_is_named_and_not_to_be_held() -> None:
    cam, late = TopicStream("/cam", every_ms(100, 5), missing="hold"), TopicStream("/late", at_ms(900), missing="hold")
    with pytest.raises(AlignError, match=r"of every stream: /late begins after the last row: rows 0\.000") as caught:
        align([cam, late], TopicTimeline("/cam"))
    hint = caught.value.hint or ""
    assert "leave it out" in hint and "timeline=fixed" in hint and "set missing: hold" not in hint
    assert len(align([cam, late], FixedTimeline(fps=10))) > 0


def test_streams_that_never_meet_are_refused_with_the_range_of_each() -> None:
    streams = [
        TopicStream("/cam", every_ms(100, 5)),
        TopicStream("/joints", every_ms(100, 5, begin=9000)),
        TopicStream("/none", at_ms()),
    ]
    with pytest.raises(
        AlignError, match=r"rows 0\.000 … 0\.400 s; /cam .*; /joints 9\.000 … 9\.400 s .*; /none has no"
    ):
        align(streams, TopicTimeline("/cam"))


@pytest.mark.parametrize("missing", ["trim", "hold", "reject"])
@pytest.mark.parametrize("policy", ["nearest", "hold", "linear", "slerp"])
def test_an_empty_stream_is_a_clear_error_whatever_its_policy(policy: str, missing: str) -> None:
    streams = [TopicStream("/cam", every_ms(100, 5)), TopicStream("/none", at_ms(), policy, missing=missing)]  # type: ignore[arg-type]
    with pytest.raises(AlignError, match=r"/none.* has no messages|/none.* find no message"):
        align(streams, TopicTimeline("/cam"))


@pytest.mark.parametrize("timeline", [TopicTimeline("/cam"), FixedTimeline(30)])
def test_a_recording_without_messages_is_a_clear_error(timeline: TopicTimeline | FixedTimeline) -> None:
    with pytest.raises(AlignError, match=r"no messages|has a message"):
        align([TopicStream("/cam", at_ms())], timeline)


# ── wrong words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_times_beyond_reason_are_refused_before_they_overflow() -> None:
    with pytest.raises(AlignError, match="/s: a message has the time 9,223,372,036,854,775,807 ns"):
        TopicStream("/s", np.array([0, 2**63 - 1]))


def test_a_sample_drop_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(AlignError, match="has 10 instants; sample_drop 5 at both ends leaves none"):
        align([TopicStream("/cam", every_ms(100, 10))], TopicTimeline("/cam"), sample_drop=5)


# ── the report and the size ──────────────────────────────────────────────────────────────────────────────────────────


def demo_report() -> AlignmentReport:
    streams = [
        TopicStream("/cam", every_ms(100, 20)),
        TopicStream("/joint_states", np.delete(every_ms(100, 17, begin=296), 8), tolerance_ns=40 * MS),
        TopicStream("/joint_cmd", every_ms(20, 60), policy="hold", missing="hold"),
    ]
    return align(streams, TopicTimeline("/cam")).report


def test_the_report_is_plain_json_with_every_promised_key() -> None:
    plain = demo_report().to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert {"rows", "fps", "real_fps", "timeline", "timeline_gaps", "notes", "lost", "lost_by_cause"} <= plain.keys()
    promised = "messages used repeats unused skew_ms trimmed_head trimmed_tail lost held gaps out_of_order"
    for stream in plain["streams"].values():
        assert {*promised.split(), "duplicate_times", "rate_hz"} <= stream.keys()
        assert stream["skew_ms"].keys() == {"p50", "p95", "p99", "max", "mean"}


def test_seventeen_minutes_of_five_streams_cost_under_two_megabytes() -> None:
    rows = every_ms(100 / 3, 30_000)
    streams = [TopicStream(f"/cam_{i}", rows + i * MS) for i in range(3)]
    streams += [TopicStream(f"/joints_{i}", np.arange(100_000, dtype=np.int64) * 10 * MS) for i in range(2)]
    tracemalloc.start()
    alignment = align(streams, TopicTimeline("/cam_0"))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(alignment.row_times_ns) == 30_000
    assert kept < 2_000_000
