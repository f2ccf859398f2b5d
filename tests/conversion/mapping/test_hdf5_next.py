"""Next observations: left out where they are proven to be the row after, else kept, and used by `Transition`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.report import NoProgress
from penstock._src.stores.hdf5.store import Hdf5Store
from penstock.errors import BudgetExceeded, Interrupted, StoreError
from tests.conversion import datasets
from tests.stores import hdf5_files as files

STATE, NEXT = "observation.state", "next.observation.state"
AUGMENTED = "is kept as next.observation.state: it is the observation of the row after in {} of {} rows ({} %)"


def steps(
    path: Path, rows: int = 40, ends: tuple[int, ...] = (19, 39), *, augmented: bool = False, **columns: Any
) -> dict[str, np.ndarray]:
    """Flat steps; `augmented`: four of five transitions were turned, each for itself, as augmentation does."""
    rng = np.random.default_rng(len(ends))
    now = rng.normal(size=(rows, 3)).astype(np.float32)
    after = np.concatenate([now[1:], rng.normal(size=(1, 3)).astype(np.float32)])
    after[list(ends)] = rng.normal(size=(len(ends), 3))
    if augmented:
        turned = np.arange(rows) % 5 != 0
        after[turned] += 1
    written = {
        "observations": now,
        "next_observations": after,
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "rewards": np.arange(rows, dtype=np.float32),
        "terminals": np.isin(np.arange(rows), ends),
        **columns,
    }
    with h5py.File(path, "w") as file:
        for name, values in written.items():
            file[name] = values
    return written


def transitions(path: Path, **columns: Any) -> dict[str, np.ndarray]:
    """All samples of `Transition()`, in order."""
    with penstock.open(path) as store:
        window = penstock.Transition(**columns)
        with penstock.Loader(store, window, batch_size=4, shuffle=False, drop_last=False, output="numpy") as loader:
            batches = [{name: np.array(values) for name, values in batch.items()} for batch in loader]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def notes(report: Any) -> str:
    return "\n".join(report.notes)


def test_next_observations_of_augmented_transitions_are_kept_and_used(tmp_path: Path) -> None:
    made = steps(tmp_path / "replay.hdf5", augmented=True)
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert AUGMENTED.format(8, 38, "21.1") in notes(report) and report.exit_code == 0
    assert datasets.problems(tmp_path / "out", full=True) == []
    assert np.array_equal(datasets.values(tmp_path / "out", NEXT), made["next_observations"])
    found = transitions(tmp_path / "out")
    assert np.array_equal(found[STATE], made["observations"])
    assert np.array_equal(found[f"next.{STATE}"], made["next_observations"])
    original = transitions(tmp_path / "replay.hdf5")
    assert np.array_equal(original["next.observations"], made["next_observations"])


def test_what_is_the_row_after_in_every_row_is_left_out(tmp_path: Path) -> None:
    made = steps(tmp_path / "replay.hdf5")
    with h5py.File(tmp_path / "replay.hdf5", "r+") as file:  # NaN is NaN
        file["observations"][7], file["next_observations"][6] = np.nan, np.nan
        made["observations"][7] = np.nan
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert "(all 38 rows that have one were compared): next_observations" in notes(report)
    assert "what was observed after the last row of 2 terminal episodes" in notes(report)
    assert NEXT not in datasets.info(tmp_path / "out")["features"]
    found = transitions(tmp_path / "out")
    inside = ~made["terminals"]
    expected = np.roll(made["observations"], -1, axis=0)
    assert np.array_equal(found[f"next.{STATE}"][inside], expected[inside], equal_nan=True)


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_open_end_needs_its_next_observation(tmp_path: Path, is_cut: bool) -> None:
    """Without the column, `Transition` has no sample where an episode ends by a time limit."""
    timeouts = np.isin(np.arange(40), [39])
    terminals = np.isin(np.arange(40), [19])
    made = steps(tmp_path / "replay.hdf5", timeouts=timeouts, terminals=terminals)
    if not is_cut:  # its last row repeats itself, as some recorders do: that tells nothing
        with h5py.File(tmp_path / "replay.hdf5", "r+") as file:
            file["next_observations"][39] = made["observations"][39]
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    found = transitions(tmp_path / "out")
    if is_cut:
        assert "the last row of 1 episode that does not end terminal" in notes(report)
        assert np.array_equal(found[f"next.{STATE}"], made["next_observations"]) and len(found[STATE]) == 40
    else:
        assert NEXT not in datasets.info(tmp_path / "out")["features"] and len(found[STATE]) == 39


def test_next_images_and_parts_of_the_state_are_compared_too(tmp_path: Path) -> None:
    made = files.robomimic(tmp_path / "demos.hdf5", (5, 7))
    differing = {"obs/agentview_image": 3, "obs/robot0_eef_quat": 2}
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        for demo, written in made.items():
            group = file[f"data/{demo}"]
            del group["next_obs"]
            for name in ("obs/agentview_image", "obs/robot0_eef_pos", "obs/robot0_eef_quat", "obs/robot0_gripper_qpos",
                         "obs/object"):  # fmt: skip
                after = np.roll(written[name], -1, axis=0)
                if demo == "demo_2" and name in differing:
                    after[differing[name]] = 0
                group[f"next_{name}"] = written[f"next_{name}"] = after
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out")
    features = datasets.info(tmp_path / "out")["features"]
    following = [key for key in features if key.startswith("next.observation")]
    assert sorted(following) == ["next.observation.environment_state", "next.observation.images.agentview", NEXT]
    assert "next_obs/agentview_image is kept as next.observation.images.agentview" in notes(report)
    assert "in 9 of 10 rows (90.0 %)" in notes(report)
    assert "next_obs/object is kept" in notes(report) and "after in all 10 rows, other numbers are not" in notes(report)
    parts = ("eef_pos", "eef_quat", "gripper_qpos")
    expected = np.concatenate(
        [np.concatenate([made[demo][f"next_obs/robot0_{part}"] for part in parts], axis=1) for demo in made]
    )
    assert np.array_equal(datasets.values(tmp_path / "out", NEXT), expected.astype(np.float32))
    found = transitions(tmp_path / "out")
    assert np.array_equal(found[f"next.{STATE}"], expected.astype(np.float32))
    with penstock.open(tmp_path / "out") as store:
        outputs = {each.name: each.column for each in penstock.Transition().bind(store).outputs}
    assert outputs["next.observation.images.agentview"] == "next.observation.images.agentview"


def test_a_next_image_that_is_kept_leaves_the_state_its_next_row(tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 255, (40, 16, 16, 3), dtype=np.uint8)
    made = steps(tmp_path / "flat.hdf5")
    with h5py.File(tmp_path / "replay.hdf5", "w") as file:
        for name, values in made.items():
            file[f"{name}/state" if name.endswith("observations") else name] = values
        file["observations/left_image"], file["next_observations/left_image"] = pixels, pixels[::-1]
    penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert NEXT not in datasets.info(tmp_path / "out")["features"]
    found = transitions(tmp_path / "out")
    inside = ~made["terminals"]
    assert np.array_equal(found[f"next.{STATE}"][inside], made["next_observations"][inside])


def test_a_next_observation_that_is_left_out_is_not_noted_as_kept(tmp_path: Path) -> None:
    steps(tmp_path / "replay.hdf5", augmented=True)
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20, leave_out=[NEXT])
    assert NEXT not in datasets.info(tmp_path / "out")["features"]
    assert f"left out, as asked for: next_observations ({NEXT})" in notes(report) and "is kept" not in notes(report)


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_encoded_images_are_compared_by_their_bytes(tmp_path: Path, ragged: bool, same: bool) -> None:
    rows = files.encoded(6)
    after = [*rows[1:], rows[-1]]
    if not same:
        after[2] = rows[0]
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for group, encoded, more in (("observations", rows, 0), ("next_observations", after, 5)):
            if ragged:
                data = file.create_dataset(f"{group}/left_image", (6,), dtype=h5py.vlen_dtype(np.uint8))
                for row, each in enumerate(encoded):
                    data[row] = each
            else:  # the padding may differ: it is no part of the image
                file[f"{group}/left_image"] = np.pad(files.padded(encoded), ((0, 0), (0, more)))
        file["actions"], file["rewards"] = np.zeros((6, 2)), np.zeros(6)
    report = penstock.convert(tmp_path / "x.hdf5", tmp_path / "out", fps=10)
    kept = "next.observation.images.left" in datasets.info(tmp_path / "out")["features"]
    assert kept is not same
    assert ("all 5 rows" if same else "in 4 of 5 rows") in notes(report)


def test_every_file_is_compared_also_by_other_processes(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    steps(place / "a.hdf5")
    steps(place / "b.hdf5", augmented=True)
    for jobs in (1, 2):
        with pytest.raises(StoreError, match=r"b\.hdf5: the data set was started with .*a\.hdf5, without next") as got:
            penstock.convert(place, tmp_path / f"out{jobs}", fps=20, jobs=jobs)
        assert got.value.hint is not None and "hdf5.next_observations=keep" in got.value.hint
    kept = penstock.convert(place, tmp_path / "kept", fps=20, overrides=["hdf5.next_observations=keep"])
    assert kept.episodes == 4 and NEXT in datasets.info(tmp_path / "kept")["features"]
    steps(place / "a.hdf5", augmented=True)
    steps(place / "b.hdf5")
    first = penstock.convert(place, tmp_path / "first", fps=20)
    assert first.episodes == 4 and NEXT in datasets.info(tmp_path / "first")["features"]
    dropped = penstock.convert(place, tmp_path / "dropped", fps=20, overrides=["hdf5.next_observations=drop"])
    assert "left out, as asked for: next_observations" in notes(dropped)
    assert NEXT not in datasets.info(tmp_path / "dropped")["features"]


def test_what_no_observation_can_be_compared_with_is_kept(tmp_path: Path) -> None:
    made = steps(tmp_path / "replay.hdf5", observations=np.zeros((40, 4), np.float32))
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert "there is no observations of its kind and shape to compare it with" in notes(report)
    assert np.array_equal(datasets.values(tmp_path / "out", NEXT), made["next_observations"])


def test_precision_and_storage_do_not_matter(tmp_path: Path) -> None:
    made = steps(tmp_path / "replay.hdf5", observations=np.random.default_rng(0).normal(size=(40, 3)))
    after = np.roll(made["observations"], -1, axis=0).astype(np.float32)
    with h5py.File(tmp_path / "replay.hdf5", "r+") as file:
        del file["next_observations"]
        file.create_dataset("next_observations", data=after, chunks=(7, 2), compression="gzip")
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert "all 38 rows" in notes(report)


def test_next_actions_are_used_beside_the_state(tmp_path: Path) -> None:
    made = steps(tmp_path / "replay.hdf5")
    with h5py.File(tmp_path / "replay.hdf5", "r+") as file:
        del file["next_observations"]
        file["next_actions"] = made["actions"] + 1
    penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    for name, state, action in (("replay.hdf5", "observations", "actions"), ("out", STATE, "action")):
        found = transitions(tmp_path / name)
        assert np.array_equal(found[f"next.{action}"], made["actions"] + 1) and f"next.{state}" in found


def test_comparing_keeps_to_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock._src.conversion.mapping import next_columns

    monkeypatch.setattr(next_columns, "BLOCK_BYTES", 100)  # eight rows
    steps(tmp_path / "replay.hdf5", augmented=True)
    read: list[int] = []
    numbers = Hdf5Store.numbers

    def counted(self: Hdf5Store, name: str, rows: Any) -> Any:
        if name == "next_observations":
            read.append(len(rows))
        return numbers(self, name, rows)

    monkeypatch.setattr(Hdf5Store, "numbers", counted)
    report = penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", fps=20)
    assert AUGMENTED.format(8, 38, "21.1") in notes(report) and read[:5] == [8, 8, 8, 8, 8]
    with h5py.File(tmp_path / "large.hdf5", "w") as file:  # one chunk that is larger than the budget
        shape = (1 << 20, 64)
        file.create_dataset("observations", shape, np.float32, chunks=shape, compression="gzip")
        file.create_dataset("next_observations", shape, np.float32, chunks=shape, compression="gzip")
        file.create_dataset("actions", (shape[0], 1), np.float32)
        file.create_dataset("rewards", (shape[0],), np.float32)
    with pytest.raises(BudgetExceeded, match="comparing next_observations with the rows after") as refused:
        penstock.convert(tmp_path / "large.hdf5", tmp_path / "never", fps=20, memory="400MiB")
    assert "hdf5.next_observations=keep compares nothing" in str(refused.value.hint)


def test_inspect_compares_the_first_rows_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock._src.cli.inspect import stores as inspect_store
    from penstock._src.conversion.mapping import next_columns

    steps(tmp_path / "replay.hdf5")
    monkeypatch.setattr(inspect_store, "COMPARED_BYTES", 200)
    monkeypatch.setattr(next_columns, "BLOCK_BYTES", 100)
    assert main(["inspect", str(tmp_path / "replay.hdf5"), "fps=20"]) == 0
    assert "(the first 16 rows were compared, converting compares all)" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "replay.hdf5"), "fps=20", "--suggest-config"]) == 0


def test_comparing_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    from penstock._src.conversion.inputs.input import InputRef, OpenOptions, open_input
    from penstock._src.conversion.settings import read_settings
    from penstock._src.conversion.stop import StopSignals

    steps(tmp_path / "replay.hdf5")
    stop = StopSignals()
    stop.is_requested = True
    options = OpenOptions(read_settings(None, ["fps=20"]), 1 << 30, 1, check_stop=stop.check)
    with pytest.raises(Interrupted):
        open_input(InputRef("hdf5", tmp_path / "replay.hdf5"), options)


def test_a_suggested_configuration_keeps_next_observations_and_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = files.robomimic(tmp_path / "demos.hdf5", (5, 7))
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        for demo in made:
            file[f"data/{demo}"].attrs["success"] = demo == "demo_2"
    assert main(["inspect", str(tmp_path / "demos.hdf5"), "--suggest-config"]) == 0
    (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
    penstock.convert(tmp_path / "demos.hdf5", tmp_path / "plain")
    penstock.convert(tmp_path / "demos.hdf5", tmp_path / "asked", config=tmp_path / "config.yaml")
    features = [datasets.info(tmp_path / name)["features"] for name in ("plain", "asked")]
    assert features[0] == features[1] and {"next.observation.environment_state", "next.success"} <= set(features[0])
    assert np.flatnonzero(datasets.values(tmp_path / "asked", "next.success")).tolist() == [11]


class StopAfter(NoProgress):
    """A user who stops the conversion at the n-th report of how far it is."""

    def __init__(self, count: int) -> None:
        self.left = count

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted("stopped")


def test_a_stopped_conversion_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name in "ab":
        made = files.robomimic(place / f"{name}.hdf5", (5, 7))
        with h5py.File(place / f"{name}.hdf5", "r+") as file:
            for demo in made:
                file[f"data/{demo}"].attrs["success"] = demo == "demo_2"
    penstock.convert(place, tmp_path / "whole")
    penstock.convert(place, tmp_path / "shared", jobs=2)
    with pytest.raises(Interrupted):
        penstock.convert(place, tmp_path / "halves", progress=StopAfter(3))
    penstock.convert(place, tmp_path / "halves", resume=True)
    whole, *others = ({name: digest for name, digest in datasets.digests(tmp_path / out).items()
                       if not name.startswith("penstock/")} for out in ("whole", "shared", "halves"))  # fmt: skip
    assert all(other == whole for other in others)
    assert np.flatnonzero(datasets.values(tmp_path / "whole", "next.success")).tolist() == [11, 23]
