"""Writing db3 files: SQLite with the tables of rosbag2 (schema 4), row by row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import RecordingError
from penstock.recordings.metadata import METADATA_VERSION, bag_information
from penstock.system import plain_yaml

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.recordings.metadata import FileFacts, TopicFacts

_TABLES = (
    "CREATE TABLE schema(schema_version INTEGER PRIMARY KEY,ros_distro TEXT NOT NULL)",
    "CREATE TABLE metadata(id INTEGER PRIMARY KEY,metadata_version INTEGER NOT NULL,metadata TEXT NOT NULL)",
    "CREATE TABLE topics(id INTEGER PRIMARY KEY,name TEXT NOT NULL,type TEXT NOT NULL,"
    "serialization_format TEXT NOT NULL,offered_qos_profiles TEXT NOT NULL,type_description_hash TEXT NOT NULL)",
    "CREATE TABLE message_definitions(id INTEGER PRIMARY KEY,topic_type TEXT NOT NULL,encoding TEXT NOT NULL,"
    "encoded_message_definition TEXT NOT NULL,type_description_hash TEXT NOT NULL)",
    "CREATE TABLE messages(id INTEGER PRIMARY KEY,topic_id INTEGER NOT NULL,timestamp INTEGER NOT NULL, "
    "data BLOB NOT NULL)",
)
_ROWS_PER_COMMIT = 1000


class Db3Writer:
    """A new db3 file; it is complete after `close()`, which a `with` block calls."""

    def __init__(self, path: Path, ros_distro: str = "") -> None:
        self.path = Path(path)
        self._pending = 0
        self._topics: dict[TopicFacts, int] = {}
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None)
        except sqlite3.Error as error:
            raise RecordingError(f"{self.path}: cannot be written: {error}") from error
        # Nothing reads the file before it is whole and brought to the disk: no journal is needed on the way.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -8192", "locking_mode = EXCLUSIVE"):
            self._run(f"PRAGMA {pragma}")
        self._run("BEGIN")
        for table in _TABLES:
            self._run(table)
        self._run("INSERT INTO schema VALUES (4, ?)", ros_distro)

    def __enter__(self) -> Db3Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _run(self, sql: str, *values: object) -> None:
        try:
            self._connection.execute(sql, values)
        except (sqlite3.Error, OverflowError) as error:
            raise RecordingError(f"{self.path}: cannot be written: {error}") from error

    def topic(self, facts: TopicFacts) -> int:
        """The id of a topic in this file."""
        number = self._topics.get(facts)
        if number is None:
            number = self._topics[facts] = len(self._topics) + 1
            values = (facts.name, facts.type, facts.encoding, facts.qos, facts.type_hash)
            self._run("INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?)", number, *values)
        return number

    def definition(self, type_name: str, encoding: str, text: str, type_hash: str) -> None:
        """Keep a message definition."""
        self._run(
            "INSERT INTO message_definitions (topic_type, encoding, encoded_message_definition, type_description_hash) "
            "VALUES (?, ?, ?, ?)",
            *(type_name, encoding, text, type_hash),
        )

    def write(self, topic: int, time_ns: int, data: bytes) -> None:
        """Append a message."""
        self._run("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", topic, time_ns, data)
        self._pending += 1
        if self._pending == _ROWS_PER_COMMIT:
            self._run("COMMIT")
            self._run("BEGIN")
            self._pending = 0

    def close(self, facts: FileFacts) -> None:
        """Write the index over time and the metadata; the file is complete afterwards."""
        text = plain_yaml.dump(bag_information([facts]))
        self._run("INSERT INTO metadata (metadata_version, metadata) VALUES (?, ?)", METADATA_VERSION, text)
        self._run("CREATE INDEX timestamp_idx ON messages (timestamp ASC)")
        self._run("COMMIT")
        self._connection.close()
