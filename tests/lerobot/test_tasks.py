"""Tables of tasks that are put into one another keep every text, and every number its text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.tasks import changes, is_same, place, renumbered, table_of

TABLES = st.lists(st.sampled_from(["", "lift", "pour", "wipe", "放下"]), max_size=7)


@given(table=TABLES, tasks=TABLES, data=st.data())
def test_every_number_means_its_text_in_a_merged_table(table: list[str], tasks: list[str], data: st.DataObject) -> None:
    numbers, added = place(table, tasks)
    merged = [*table, *added]
    assert [merged[number] for number in numbers] == tasks
    assert len(set(numbers)) == len(numbers), "texts that stand twice stay two tasks"
    assert place(merged, tasks) == (numbers, []), "put in again, nothing changes"
    assert is_same(place(table, table)[0])
    if tasks:
        values = np.array(data.draw(st.lists(st.integers(-1, len(tasks) - 1))), np.int32)
        new = renumbered(values, numbers, "here")
        assert new.dtype == np.int32 and new.tolist() == [-1 if n < 0 else numbers[n] for n in values.tolist()]


def test_which_columns_point_into_which_table() -> None:
    assert table_of(Feature("annotation.human.validity", "int64", (1,))) == "tasks"
    assert table_of(Feature("subtask_index", "int64", (1,))) == "subtasks"
    assert table_of(Feature("annotation.human.score", "float32", (1,))) is None
    assert table_of(Feature("annotation.human.text", "string", (1,))) is None
    assert table_of(Feature("observation.annotation.x", "int64", (1,))) is None


def test_changes_are_named_up_to_a_few() -> None:
    assert changes([0, 1]) == "" and changes([0, 2, 1]) == "1→2, 2→1"
    assert changes(range(1, 10)) == "0→1, 1→2, 2→3, 3→4, 4→5, 5→6 and 3 more"
