"""Which columns have which role, by their names alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock._src.stores.roles import find_roles, next_columns

NAMES = ("actions", "action", "obs/joint_pos", "observations/qpos", "obs/robot0_eef_pos", "obs/object", "states",
         "observations", "joint_velocities", "gripper_actuations", "rewards", "dones", "terminals", "success",
         "other/x", "infos/qpos", "next_obs/object", "next_actions", "next_observations")  # fmt: skip


@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_roles_are_columns_that_are_there_and_do_not_depend_on_their_order(names: list[str]) -> None:
    found = find_roles(names)
    assert all(column in names for columns in found.values() for column in columns)
    assert found == find_roles(sorted(names))
    taken = [column for columns in found.values() for column in columns]
    assert len(taken) == len(set(taken))  # no column has two roles
    assert not any(column.startswith(("next_", "infos/")) for column in taken)


def test_old_parts_of_the_action_stand_for_it_where_it_is_not_there() -> None:
    parts = ("joint_velocities", "gripper_actuations")
    assert find_roles([*parts, "states"]) == {"action": parts, "environment_state": ("states",)}
    assert find_roles([*parts, "actions"])["action"] == ("actions",)
    assert "action" not in find_roles(parts[:1])


def test_next_columns_of_every_naming() -> None:
    assert next_columns(["obs/a", "next_obs/a", "obs/b", "obs/next_b", "qpos", "next_qpos"]) == {
        "obs/a": "next_obs/a", "obs/b": "obs/next_b", "qpos": "next_qpos",
    }  # fmt: skip
    names = ["observation.state", "next.observation.state", "reward", "next.reward", "action", "next_actions"]
    assert next_columns(names) == {"observation.state": "next.observation.state"}  # next.reward is that of the row
    assert next_columns(names, "action")["action"] == "next_actions"
