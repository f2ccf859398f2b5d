"""The doctor of a recording: is everything there, do checksums and definitions hold, what do the clocks say?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src import recordings
from penstock._src.formats.findings import Findings, Severity
from penstock._src.recordings.file_window import recover_hint
from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.messages.protobuf import NO_PROTOBUF
from penstock._src.recordings.messages.schemas import ENCODINGS
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.system import units
from penstock._src.system.files import RemotePath
from penstock.errors import (
    MessageError,
    SchemaError,
)

# severity, kind, where, message, what to do
Tell = Callable[[Severity, str, object, str, "str | None"], None]

_DEFINITIONS = ("ros1msg", "ros2msg", "ros2idl", "protobuf", "jsonschema")
DEFAULT_SKEW_NS = 1_000_000_000
# A pause this long, and this much longer than the usual step, is reported: a clock was set, or nothing was recorded.
_JUMP_NS = 10_000_000_000
_JUMP_PERIODS = 100
_FEWEST_FOR_JUMPS = 10
_BATCH_MESSAGES = 1 << 16
_CLOCK_HINT = (
    "convert pairs messages by their time and counts what was out of order: `time: log` (default) takes the receive "
    "time, `time: header` the stamp inside the message"
)


@dataclass
class _Stamps:
    """How far the stamps inside a topic's messages lie from the times of their reception."""

    decoder: MessageDecoder
    beyond: int = 0
    zero: int = 0
    largest_ns: int = 0
    unreadable: int = 0
    first_problem: str = ""


def doctor(path: Path, findings: Findings, *, full: bool, skew_ns: int) -> None:
    """What `penstock doctor` finds of a recording; every message is read, of a remote one only with `full`."""
    reads_all = full or not isinstance(path, RemotePath)
    if not reads_all:
        message = "a remote recording: its index, definitions and receive times are checked, no message is read"
        findings.add("info", "part", path, message, "--full reads every message")
    findings.counted.update(check_recording(path, findings.add, skew_ns=skew_ns, reads_all=reads_all))


def check_recording(
    path: Path, tell: Tell, *, skew_ns: int = DEFAULT_SKEW_NS, reads_all: bool = True
) -> dict[str, int]:
    """Read a whole recording and report every fault, with counts of what was checked."""
    with recordings.open(path, on_corrupt="count") as recording:
        return _check_open(recording, tell, skew_ns, reads_all)


def _check_open(recording: Recording, tell: Tell, skew_ns: int, reads_all: bool) -> dict[str, int]:
    for topic in recording.topics:
        _check_definition(recording, topic, tell)
        _check_times(topic, recording.times_ns(topic), tell)
    stamps = _read_everything(recording, skew_ns) if reads_all else {}
    for topic in recording.topics:
        if topic.id in stamps:
            _check_stamps(topic, stamps[topic.id], skew_ns, tell)
    for loss in recording.losses:
        message = f"{loss.count:,} lost: {loss.cause}"
        tell("loss", "lost messages", loss.where, message, recover_hint(recording.path))
    for note in recording.notes:
        tell("info", "note", recording.path.name, note.removeprefix(f"{recording.path.name}: "), None)
    return {
        "topics": len(recording.topics),
        "messages": sum(topic.count for topic in recording.topics),
        "lost": sum(loss.count for loss in recording.losses),
        "bytes": recording.size_bytes,
    }


def _check_definition(recording: Recording, topic: Topic, tell: Tell) -> None:
    if topic.problem is None or not topic.count:
        return
    schema = recording.schema(topic)
    is_broken = bool(schema.text.strip()) and schema.format in _DEFINITIONS and topic.problem != NO_PROTOBUF
    severity: Severity = "loss" if is_broken and topic.encoding in ENCODINGS else "info"
    tell(severity, "definition", topic.name, f"{topic.count:,} messages cannot be decoded: {topic.problem}", None)


def _check_times(topic: Topic, times_ns: NDArray[np.int64], tell: Tell) -> None:
    if not times_ns.size:
        return
    if zero := int(np.count_nonzero(times_ns <= 0)):
        message = f"no receive time (0): {zero:,} of {times_ns.size:,} messages"
        tell("info", "time zero", topic.name, message, _CLOCK_HINT)
    steps_ns = np.diff(times_ns)
    backwards = np.flatnonzero(steps_ns < 0)
    if backwards.size:
        worst = int(backwards[np.argmin(steps_ns[backwards])])
        back = units.format_duration_ns(int(-steps_ns[worst]))
        message = f"time runs backwards {backwards.size:,}×, by up to {back} (message {worst + 1:,})"
        tell("info", "time backwards", topic.name, message, _CLOCK_HINT)
    if twice := int(np.count_nonzero(steps_ns == 0)):
        message = f"at the time of the message before: {twice:,} of {times_ns.size:,} messages"
        tell("info", "time twice", topic.name, message, _CLOCK_HINT)
    _check_jumps(topic, steps_ns, tell)


def _check_jumps(topic: Topic, steps_ns: NDArray[np.int64], tell: Tell) -> None:
    forward = steps_ns[steps_ns > 0]
    if forward.size < _FEWEST_FOR_JUMPS:
        return
    bound_ns = max(_JUMP_NS, _JUMP_PERIODS * int(np.median(forward)))
    jumps = np.flatnonzero(np.abs(steps_ns) > bound_ns)
    if jumps.size:
        worst = int(jumps[np.argmax(np.abs(steps_ns[jumps]))])
        span = units.format_duration_ns(int(abs(steps_ns[worst])))
        message = f"the clock jumps {jumps.size:,}×, by up to {span} (message {worst + 1:,})"
        tell("info", "clock jump", topic.name, message, "a clock was set, or nothing was recorded; see split: gap")


def _read_everything(recording: Recording, skew_ns: int) -> dict[int, _Stamps]:
    """Fetch every payload once: this is what finds broken chunks; compare the stamps on the way."""
    stamps: dict[int, _Stamps] = {}
    times = [recording.times_ns(topic) for topic in recording.topics]
    for topic in recording.topics:
        if topic.problem is None and topic.count:
            decoder = recording.decoder(topic)
            if decoder.has_header:
                stamps[topic.id] = _Stamps(decoder)
    if not times:
        return stamps
    ids = np.repeat(np.arange(len(times), dtype=np.int32), [column.size for column in times])
    numbers = np.concatenate([np.arange(column.size, dtype=np.int64) for column in times])
    # In order of time, which is nearly that of the file: packed chunks are then unpacked once.
    order = np.argsort(np.concatenate(times), kind="stable")
    for begin in range(0, order.size, _BATCH_MESSAGES):
        batch = order[begin : begin + _BATCH_MESSAGES]
        for block in recording.fetch(ids[batch], numbers[batch]):
            for place, payload in enumerate(block.payloads, block.first):
                topic_id = int(ids[batch[place]])
                if payload is not None and topic_id in stamps:
                    _compare(stamps[topic_id], payload, int(times[topic_id][numbers[batch[place]]]), skew_ns)
            block.release()
    return stamps


def _compare(stamps: _Stamps, payload: memoryview, received_ns: int, skew_ns: int) -> None:
    try:
        stamp_ns = stamps.decoder.header_stamp_ns(payload)
    except (MessageError, SchemaError) as error:
        stamps.unreadable += 1
        stamps.first_problem = stamps.first_problem or error.message
        return
    if stamp_ns == 0:
        stamps.zero += 1
    elif abs(stamp_ns - received_ns) > skew_ns:
        stamps.beyond += 1
        if abs(stamp_ns - received_ns) > abs(stamps.largest_ns):
            stamps.largest_ns = stamp_ns - received_ns


def _check_stamps(topic: Topic, stamps: _Stamps, skew_ns: int, note: Tell) -> None:
    if stamps.unreadable:
        message = f"{stamps.unreadable:,} messages do not match their definition: {stamps.first_problem}"
        note("loss", "broken message", topic.name, message, None)
    if stamps.zero:
        message = f"{stamps.zero:,} of {topic.count:,} messages have a header stamp of 0"
        note("info", "stamp zero", topic.name, message, "use the receive time of this topic (time: log)")
    if stamps.beyond:
        side = "after" if stamps.largest_ns > 0 else "before"
        far = units.format_duration_ns(abs(stamps.largest_ns))
        message = (
            f"{stamps.beyond:,} of {topic.count:,} header stamps lie more than {units.format_duration_ns(skew_ns)} "
            f"from the receive time, at most {far} {side} it"
        )
        note("info", "header and receive time", topic.name, message, _CLOCK_HINT)
