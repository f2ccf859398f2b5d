"""LeRobot's language columns: entries in and out of parquet, and what is none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.lerobot import language
from penstock._src.lerobot.features import Feature, parse_feature
from penstock._src.lerobot.tables import column, data_schema, data_writer
from penstock.errors import DataSetError

FEATURE = Feature("language_persistent", "language", (1,))
CALLS = {
    "role": "user",
    "content": None,
    "style": None,
    "timestamp": 0.25,
    "camera": None,
    "tool_calls": ['{"a": 1}', ""],
}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[]],
        [[], [language.subtask("reach", 0.5)], []],
        [[language.subtask("🤖", 0.0), language.subtask(None, 1.5)]] * 3,
        [[CALLS], [], [CALLS, language.subtask("", 2.0)]],
    ],
)
def test_entries_come_back_as_they_were(tmp_path: Path, rows: list[list[dict[str, Any]]]) -> None:
    made = column(FEATURE, rows)
    made.validate(full=True)
    assert made.to_pylist() == rows
    schema = pa.schema([data_schema([FEATURE]).field(FEATURE.key)])
    with data_writer(tmp_path / "file.parquet", schema) as writer:
        writer.write_table(pa.Table.from_arrays([made], schema=schema))
    with pq.ParquetFile(tmp_path / "file.parquet") as file:
        assert file.read().column(0).to_pylist() == rows
        names = {file.metadata.schema.column(n).path for n in range(len(file.metadata.schema))}
    assert names == set(language.leaves(FEATURE.key))


def test_events_have_no_time() -> None:
    event = {"role": "user", "content": "stop", "style": "interjection", "camera": None, "tool_calls": None}
    assert language.column("language_events", [[event], None]).to_pylist() == [[event], []]
    with pytest.raises(DataSetError, match="an entry has"):
        language.column("language_events", [[language.subtask("reach", 0.0)]])


def test_only_the_columns_that_lerobot_knows_are_language() -> None:
    with pytest.raises(DataSetError, match="not a language column"):
        Feature("subtask", "language", (1,))
    with pytest.raises(DataSetError, match=r"must have shape \(1,\)"):
        Feature("language_events", "language", (2,))
    entry = {"dtype": "language", "shape": [1], "names": None}
    assert parse_feature("language_events", entry, "info.json").is_text
