"""What every recording offers, whatever file it lies in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.fetch import Block as Block
from penstock._src.recordings.fetch import decompressed
from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.messages.schemas import Schema, SchemaStore, several_types, type_name
from penstock._src.recordings.split import SplitFiles
from penstock._src.system.closing import Closing
from penstock._src.system.units import name_hint
from penstock.errors import MessageError, RecordingError, SchemaError

DEFAULT_FETCH_BYTES = 16 << 20
OnCorrupt = Literal["raise", "count"]

# Record framing and a std_msgs/Header up to its stamp lie well within this, in every container.
_HEADER_CLIP_BYTES = 512
_EXAMPLE_MESSAGES = 16  # how many are looked at for the fields of JSON


@dataclass(frozen=True)
class Topic:
    """One stream of messages of one type; `problem` says why its payloads cannot be decoded (they can be fetched).

    Where messages of several types have one name, the type with the most messages has it, and the others are topics of
    their own: NAME:TYPE, with the name that they share in `shared_name`.
    """

    id: int
    name: str
    type: str
    count: int
    encoding: str
    problem: str | None = None
    shared_name: str | None = None


@dataclass(frozen=True)
class Loss:
    """Messages that the recording should hold and that cannot be read."""

    cause: str
    count: int
    where: str


class LargestReads(NamedTuple):
    """What `fetch` may have to hold at once, whatever its `memory_bytes`."""

    message_bytes: int
    chunk_bytes: int = 0  # a chunk that is unpacked or checked as a whole; 0 where messages are read by themselves
    passing_bytes: int = 0  # held besides while one is read: the stored chunk, a database's own copies


class Recording(Closing, ABC):
    """A recording: topics, times without payloads, and payloads in any order through bounded memory.

    Message numbers of a topic count from 0 in file order.

        with penstock.recordings.open("run.bag") as recording:
            camera = recording.topic("/cam_h/color/image_raw/compressed")
            times_ns = recording.times_ns(camera)
    """

    kind: ClassVar[str]
    """Of the format, as `penstock.formats` knows it."""

    def __init__(self, path: Path, *, schemas: SchemaStore, on_corrupt: OnCorrupt) -> None:
        self.path = path
        self.compression = "none"
        self.size_bytes = 0
        self.topics: tuple[Topic, ...] = ()
        self.start_ns = 0
        self.end_ns = 0
        self.losses: list[Loss] = []
        self.notes: list[str] = []
        self._schemas = schemas
        self._topic_schemas: list[Schema] = []
        self._on_corrupt: OnCorrupt = on_corrupt
        self._packed_messages = False  # one by one, as rosbag2 can
        self._lost: dict[int, NDArray[np.bool_]] = {}
        self._json_decoders: dict[int, MessageDecoder] = {}

    def __repr__(self) -> str:
        messages = sum(topic.count for topic in self.topics)
        return (
            f"<{type(self).__name__} {self.path.name}: {len(self.topics)} topics, {messages} messages, "
            f"{self.size_bytes} bytes, {self.compression}>"
        )

    @property
    @abstractmethod
    def index_bytes(self) -> int:
        """Memory that the index holds."""

    @abstractmethod
    def largest_reads(self, topics: Sequence[Topic]) -> LargestReads:
        """The largest things that reading these topics brings into memory, from the index alone."""

    @abstractmethod
    def close(self) -> None:
        """Give back the files; fetches under way end with an error."""

    @abstractmethod
    def times_ns(self, topic: Topic) -> NDArray[np.int64]:
        """Receive times of a topic, one per message number; not necessarily ascending."""

    def fetch(
        self,
        topic_ids: NDArray[np.int32],
        numbers: NDArray[np.int64],
        *,
        memory_bytes: int = DEFAULT_FETCH_BYTES,
        clip_bytes: int | None = None,
    ) -> Iterator[Block]:
        """Payloads in exactly the order asked, block by block; release each block when done with it.

        `clip_bytes`: payloads may be cut after about so many bytes (to read headers without the rest).
        """
        self._check_request(topic_ids, numbers)
        if not self._packed_messages:
            return self._blocks(topic_ids, numbers, memory_bytes, clip_bytes)
        blocks = self._blocks(topic_ids, numbers, memory_bytes // 2, None)
        return decompressed(blocks, memory_bytes // 2, self.path, self._lose_placed(topic_ids, numbers))

    def _blocks(
        self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64], memory_bytes: int, clip_bytes: int | None
    ) -> Iterator[Block]:
        """The stored payloads of a request that was checked: what `fetch` gives, or unpacks."""
        raise NotImplementedError

    def payloads(
        self, topic: Topic, numbers: Sequence[int] | None = None, *, clip_bytes: int | None = None
    ) -> Iterator[tuple[int, memoryview | None]]:
        """(number, payload) of messages of a topic, of all without `numbers`; each payload is valid until the next."""
        wanted = np.arange(topic.count, dtype=np.int64) if numbers is None else np.array(numbers, np.int64)
        for block in self.fetch(np.full(wanted.size, topic.id, np.int32), wanted, clip_bytes=clip_bytes):
            try:
                yield from zip(wanted[block.first : block.first + len(block)].tolist(), block.payloads, strict=True)
            finally:
                block.release()

    def topic(self, name: str) -> Topic:
        """The topic of a name, or of NAME:TYPE; of a name that carries several types, the one with most messages."""
        match = next((topic for topic in self.topics if topic.name == name), None)
        if match is None and ":" in name:
            plain, _, kind = name.rpartition(":")
            kind = type_name(kind)
            match = next((topic for topic in self.topics if (topic.name, topic.type) == (plain, kind)), None)
            match = match or next((topic for topic in self.topics if topic.name == f"{plain}:{kind}"), None)
        if match is not None:
            return match
        names = sorted({topic.name for topic in self.topics})
        hint = name_hint(name, names, "it has:") if names else "; ".join(["it has no topics", *self.notes])
        raise RecordingError(f"{self.path}: no topic {name!r}", hint=hint)

    def schema(self, topic: Topic) -> Schema:
        """What the recording itself says of a topic's type."""
        return self._topic_schemas[topic.id]

    def decoder(self, topic: Topic) -> MessageDecoder:
        """The decoder of a topic's payloads; SchemaError, with the reason, where its definition is unusable."""
        schema = self._topic_schemas[topic.id]
        try:
            decoder = self._schemas.decoder(schema, topic.encoding)
        except SchemaError as error:
            raise SchemaError(f"{self.path}: topic {topic.name}: {error.message}", hint=error.hint) from None
        if topic.encoding != "json":
            return decoder
        from penstock._src.recordings.messages.json_messages import JsonDecoder

        if topic.id not in self._json_decoders:
            first = self.payloads(topic, range(min(topic.count, _EXAMPLE_MESSAGES)))
            whole = (payload for _, payload in first if payload is not None)
            self._json_decoders[topic.id] = JsonDecoder(schema.type, whole)
        return self._json_decoders[topic.id]

    def header_times_ns(self, topic: Topic) -> NDArray[np.int64]:
        """The stamps inside the messages, one per message number, reading little more than their bytes."""
        decoder = self.decoder(topic)
        if not decoder.has_header:
            try:
                decoder.header_stamp_ns(b"")  # raises the reason
            except SchemaError as error:
                raise SchemaError(f"{self.path}: topic {topic.name}: {error.message}", hint=error.hint) from None
        times_ns = np.zeros(topic.count, np.int64)
        clip_bytes = _HEADER_CLIP_BYTES if decoder.stamp_is_first else None
        received_ns, unreadable = self.times_ns(topic), 0
        for number, payload in self.payloads(topic, clip_bytes=clip_bytes):
            try:
                times_ns[number] = received_ns[number] if payload is None else decoder.header_stamp_ns(payload)
            except MessageError:
                times_ns[number] = received_ns[number]
                unreadable += 1
        note = f"{topic.name}: {unreadable:,} messages have no readable header time: their receive time is taken"
        if unreadable and note not in self.notes:
            self.notes.append(note)
        return times_ns

    def _set_topics(self, topics: Sequence[tuple[str, str, Schema, int]]) -> None:
        """(name, encoding, schema, count) per topic, in the order of their ids."""
        self._topic_schemas = [schema for _, _, schema, _ in topics]
        shared = shared_names([(name, schema.type, count) for name, _, schema, count in topics])
        self.topics = tuple(
            Topic(
                number,
                shared.get(number, name),
                schema.type,
                count,
                encoding,
                self._schemas.problem(schema, encoding),
                name if number in shared else None,
            )
            for number, (name, encoding, schema, count) in enumerate(topics)
        )
        self.notes += several_types(((name, schema.type), count) for name, _, schema, count in topics)

    def _compare(self, source: SplitFiles) -> None:
        """Note where metadata.yaml and the files differ; count what lay in files that are not there."""
        from penstock._src.recordings.metadata import disagreements

        counted: dict[tuple[str, str], int] = {}
        for topic in self.topics:
            key = topic.shared_name or topic.name, topic.type
            counted[key] = counted.get(key, 0) + topic.count
        self.notes += disagreements(source.metadata, counted)
        for name, count in source.missing:
            self._add_loss("a file of the bag is missing", max(1, count), name)

    def _lose(self, cause: str, where: str, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64]) -> None:
        """Count messages as lost, each once however often it is asked for."""
        fresh = 0
        for topic_id in np.unique(topic_ids).tolist():
            count = self.topics[topic_id].count
            lost = self._lost.setdefault(topic_id, np.zeros(count, np.bool_))
            own = np.unique(numbers[topic_ids == topic_id])
            fresh += int(np.count_nonzero(~lost[own]))
            lost[own] = True
        self._add_loss(cause, fresh, where)

    def _lose_placed(
        self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64]
    ) -> Callable[[str, int], None] | None:
        """Counts single messages of a request as lost, by their position in it; None where a loss is an error."""
        if self._on_corrupt == "raise":
            return None

        def lose(cause: str, place: int) -> None:
            topic = self.topics[int(topic_ids[place])]
            self._lose(cause, topic.name, topic_ids[place : place + 1], numbers[place : place + 1])

        return lose

    def _add_loss(self, cause: str, count: int, where: str) -> None:
        if count <= 0:
            return
        for place, loss in enumerate(self.losses):
            if loss.cause == cause and loss.where == where:
                self.losses[place] = Loss(cause, loss.count + count, where)
                return
        self.losses.append(Loss(cause, count, where))

    def _check_request(self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64]) -> None:
        if topic_ids.ndim != 1 or topic_ids.shape != numbers.shape:
            raise RecordingError(
                f"{self.path}: fetch takes two 1-D arrays of one length, not {topic_ids.shape} and {numbers.shape}"
            )
        counts = np.array([topic.count for topic in self.topics] + [0], np.int64)
        known = np.where((topic_ids >= 0) & (topic_ids < len(self.topics)), topic_ids, -1)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= counts[known]))
        if wrong.size:
            topic_id, number = int(topic_ids[wrong[0]]), int(numbers[wrong[0]])
            raise RecordingError(f"{self.path}: the topic with id {topic_id} has no message {number}")


def shared_names(topics: Sequence[tuple[str, str, int]]) -> dict[int, str]:
    """The names of topics whose own is taken by another type, by their places; `topics`: name, type, messages."""
    names: dict[int, str] = {}
    by_name: dict[str, list[int]] = {}
    for place, (name, _, _) in enumerate(topics):
        by_name.setdefault(name, []).append(place)
    for name, places in by_name.items():
        first = max(places, key=lambda place: topics[place][2])
        for place in places:
            wanted = f"{name}:{topics[place][1]}"
            if place != first:
                used = sum(other == wanted or other.startswith(f"{wanted}#") for other in names.values())
                names[place] = f"{wanted}#{used + 1}" if used or topics[place][1] == topics[first][1] else wanted
    return names


def span_of(compressions: set[str]) -> str:
    """One word for the compressions that a recording uses."""
    used = compressions or {"none"}
    return "+".join(sorted(used))


def as_readonly(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """A view that cannot be written, so that the index stays what the file says."""
    view = values.view()
    view.flags.writeable = False
    return cast("NDArray[np.int64]", view)
