"""The trace: what Perfetto and Chrome require of each event, spans that nest, threads with names, one time axis."""

from __future__ import annotations

import gzip
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock._src.profile.report.trace import export_trace, trace_events
from penstock._src.profile.stats import Snapshot, SpanEvent
from penstock.errors import OutputFailed
from tests.profile.made import MAIN, WORKER, empty_run, training_run

# The Trace Event Format: what each kind of event must have, and of which type.
_NUMBER = (int, float)
_COMMON: dict[str, Any] = {"ph": str, "name": str, "pid": int, "tid": int, "ts": _NUMBER}
_KINDS: dict[str, dict[str, Any]] = {
    "X": {**_COMMON, "cat": str, "dur": _NUMBER},
    "M": {**_COMMON, "args": dict},
    "C": {**_COMMON, "args": dict},
    "b": {**_COMMON, "cat": str, "id": (str, int)},
    "e": {**_COMMON, "cat": str, "id": (str, int)},
}
_METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def check_trace(document: Any) -> None:
    """Raises AssertionError where a document is no trace that the viewers take."""
    assert isinstance(document, dict) and isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    begun: dict[tuple[Any, ...], float] = {}
    for event in document["traceEvents"]:
        fields = _KINDS[event["ph"]]
        for name, kind in fields.items():
            assert isinstance(event[name], kind) and not isinstance(event[name], bool), (name, event)
        assert math.isfinite(event["ts"]) and event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
        elif event["ph"] == "M":
            key = event["name"].removesuffix("_sort_index").removesuffix("_name")
            assert key in ("process", "thread")
            value = event["args"]["name" if event["name"].endswith("_name") else "sort_index"]
            assert isinstance(value, _METADATA[event["name"]])
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(value, _NUMBER) for value in event["args"].values())
        else:
            key = (event["cat"], event["id"], event["pid"])
            if event["ph"] == "b":
                assert key not in begun
                begun[key] = event["ts"]
            else:
                assert begun.pop(key) <= event["ts"]
    assert not begun
    _check_nesting(document["traceEvents"])


def _check_nesting(events: list[dict[str, Any]]) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            tracks.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    for spans in tracks.values():
        assert [begin for begin, _ in spans] == sorted(begin for begin, _ in spans)
        open_ends: list[int] = []
        for begin, end in spans:
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (begin, end)
            open_ends.append(end)


def _written(snapshot: Snapshot, path: Path) -> Any:
    return json.loads(export_trace(path, snapshot).read_text(encoding="utf-8"))


def test_a_trace_has_what_the_viewers_require(tmp_path: Path) -> None:
    document = _written(training_run(60), tmp_path / "trace.json")
    check_trace(document)
    assert {event["ph"] for event in document["traceEvents"]} == {"M", "X", "C", "b", "e"}


@pytest.mark.parametrize(
    "spoil",
    [
        {"ts": "0"},
        {"ts": -1.0},
        {"ts": math.nan},
        {"dur": None},
        {"pid": "4100"},
        {"dur": 10.0**9},  # reaches out of its parent
    ],
)
def test_a_wrong_event_would_be_found(spoil: dict[str, Any]) -> None:
    events = list(trace_events(training_run(10)))
    inner = next(event for event in events if event["ph"] == "X" and event["name"] == "03b_image_decode")
    inner.update(spoil)
    with pytest.raises(AssertionError):
        check_trace({"traceEvents": events, "displayTimeUnit": "ms"})


def test_every_span_is_there_once_to_the_nanosecond(tmp_path: Path) -> None:
    run = training_run(40)
    document = _written(run, tmp_path / "trace.json")
    first_ns = min(event.start_ns for thread in run.events for event in thread.events)
    wanted = sorted((e.name, e.start_ns - first_ns, e.duration_ns) for thread in run.events for e in thread.events)
    found = sorted(
        (event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in document["traceEvents"]
        if event["ph"] == "X"
    )
    assert found == wanted


def test_processes_and_threads_have_names_and_the_gpu_a_track_of_its_own(tmp_path: Path) -> None:
    events = _written(training_run(20), tmp_path / "trace.json")["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {MAIN: f"train ({MAIN})", WORKER: f"DataLoader worker 0 ({WORKER})"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(threads.values()) == ["GPU", "MainThread", "MainThread", "loader-0", "loader-1", "loader-2"]
    tracks = {threads[e["pid"], e["tid"]] for e in events if e["ph"] == "X" and e["cat"] == "gpu"}
    assert tracks == {"GPU"}
    assert all((e["pid"], e["tid"]) in threads for e in events if e["ph"] == "X")


def test_steps_epochs_and_memory_lie_on_the_same_axis(tmp_path: Path) -> None:
    run = training_run(20)
    events = _written(run, tmp_path / "trace.json")["traceEvents"]
    steps = [e for e in events if e["ph"] == "b" and e["cat"] == "step"]
    assert [e["name"] for e in steps] == [f"step {n}" for n in range(20)]
    assert steps[3]["args"]["wait_ms"] == pytest.approx(run.steps.series[3].wait_ns / 1e6, abs=1e-3)
    waits = [e for e in events if e["ph"] == "X" and e["name"] == "data_wait"]
    assert [e["ts"] for e in waits] == [e["ts"] for e in steps]
    assert sum(e["ph"] == "C" and e["name"] == "memory (MiB)" for e in events) == len(run.memory)
    assert sum(e["ph"] == "b" and e["cat"] == "epoch" for e in events) == 2


_event = st.builds(SpanEvent, st.sampled_from(["a", "b"]), st.integers(0, 60), st.integers(0, 40), st.integers(0, 3))


def test_an_empty_run_and_strange_names_are_valid_traces(tmp_path: Path) -> None:
    check_trace(_written(empty_run(), tmp_path / "empty.json"))
    name = 'half a letter \ud800, "quotes"\n</script>'
    document = _written(training_run(3, extra_name=name), tmp_path / "odd.json")
    check_trace(document)
    assert any(event["name"] == name for event in document["traceEvents"])


def test_a_gz_name_gives_a_compressed_trace(tmp_path: Path) -> None:
    path = export_trace(tmp_path / "trace.json.gz", training_run(5))
    check_trace(json.loads(gzip.decompress(path.read_bytes())))


def test_a_directory_that_is_not_there_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputFailed, match="the trace cannot be written"):
        export_trace(tmp_path / "nowhere" / "trace.json", training_run(3))
    assert list(tmp_path.iterdir()) == []


_PROGRAM = """
import io, json, os, queue, sys, threading
from penstock import profile

out, stop = sys.argv[1], threading.Event()
wanted, ready = queue.Queue(), queue.Queue()

def decode(images):
    with profile.span("03_read_images_total"):
        for _ in range(images):
            with profile.span("03b_image_decode"):
                stop.wait(0.0005)

def load():
    while wanted.get():
        decode(2)
        ready.put(True)

shown = io.StringIO()
child = os.fork()
if child == 0:
    decode(4)
    os._exit(0)
thread = threading.Thread(target=load, name="loader-0")
thread.start()
with profile.live(line_every_s=3600, stream=shown):
    for _ in range(6):  # every step waits for its own batch: whichever is shown, the loader's thread is in it
        with profile.data_wait():
            wanted.put(True)
            ready.get()
        with profile.span("20_train_forward_pass"):
            stop.wait(0.001)
        profile.mark_step()
profile.mark_epoch()
wanted.put(False)
thread.join()
os.waitpid(child, 0)
profile.export_trace(f"{out}/trace.json")
profile.export_html(f"{out}/page.html", title="real")
profile.print_timing_stats(epoch=0, lang="zh")
print(json.dumps({"values": profile.callback(), "shown": shown.getvalue()}))
"""


def test_a_recorded_run_goes_through_every_output(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    document = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    check_trace(document)
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"] == "03b_image_decode" for event in spans) == 16
    assert len({event["pid"] for event in spans}) == 2
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "03b_image_decode" in page and "loader-0" in page and 'class="bar' in page
    *text, last = done.stdout.splitlines()
    assert re.match(r"Epoch 0 总耗时: [0-9.]+s \| 数据等待: .* \| 步数: 6$", text[0])
    assert any(re.match(r"03b_image_decode +\| 总计: +[0-9.]+s \| 调用: +16次", line) for line in text)
    told = json.loads(last)
    assert told["values"]["penstock/03b_image_decode/calls"] == 16.0
    assert 0 < told["values"]["penstock/data_wait_share"] < 1
    assert told["shown"].startswith("penstock: step 6 · ")
