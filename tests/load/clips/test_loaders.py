"""`clip_loaders`: batches for training and validation, the same for any workers, ranks in step, exact resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.load.clips.config import load_clip_config
from penstock._src.load.clips.loaders import ClipLoaders
from penstock._src.system.limits import CpuCandidate, CpuLimit, MemoryCandidate, MemoryLimit
from penstock.errors import BudgetExceeded, ConfigError
from tests.load.clips.clip_sets import EXAMPLE, OPTIONS, config_tree, make_sequence, make_set

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),  # torch's, on a single core
]

CLIPS = (7 - 2) + (9 - 2)
WORKERS = {"TOTAL_WORKERS": 2, "TRAIN_PREFETCH_FACTOR": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("clips"))


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Caches of other tests are not found."""
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path))
    yield


def _limit(n_bytes: int) -> MemoryLimit:
    return MemoryLimit(n_bytes, n_bytes, "test", "test", (MemoryCandidate("test", n_bytes, n_bytes),))


def _cpus(count: float, cores: float | None = None) -> CpuLimit:
    candidates = [CpuCandidate("cores", cores or count)]
    if cores is not None:
        candidates.append(CpuCandidate("cgroup v2 /job cpu.max", count))
    return CpuLimit(max(1, int(count)), count, candidates[-1].name, tuple(candidates))


def _loaders(root: Path, rank: int = 0, world: int = 1, **sections: dict[str, Any]) -> ClipLoaders:
    tree = config_tree(root, **sections)
    return penstock.clip_loaders(tree, rank=rank, world_size=world, log=None, cpus=_cpus(64), memory=_limit(1 << 50))


def _same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, values in a.items():
        assert values.dtype == b[name].dtype and torch.equal(values, b[name]), name


def _indices(batches: list[dict[str, Any]]) -> list[int]:
    return [int(index) for batch in batches for index in batch["index"]]


def test_train_and_validation_batches_have_the_documented_shapes(root: Path) -> None:
    with _loaders(root) as loaders:
        batch = next(iter(loaders.train))
        assert batch["blur"].shape == batch["sharp"].shape == (2, 3, 3, 16, 16)
        assert batch["spike_vox"].shape == (2, 3, 5, 8, 8)
        assert batch["blur"].dtype == batch["spike_vox"].dtype == torch.float32
        assert loaders.val is not None
        (whole, *_) = list(loaders.val)
        assert whole["blur"].shape == (1, 3, 3, 48, 64) and whole["spike_vox"].shape == (1, 3, 5, 24, 32)
        assert len(loaders.val) == 4 and len(loaders.train) == CLIPS // 2


@pytest.mark.parametrize(
    ("workers", "persistent", "cache"), [(0, True, False), (2, True, False), (3, False, False), (2, True, True)]
)
def test_any_number_of_workers_gives_the_same_batches(root: Path, workers: int, persistent: bool, cache: bool) -> None:
    with _loaders(root) as plain:
        expected = [list(plain.train) for _ in range(2)]
    assert sorted(_indices(expected[0])) == list(range(CLIPS)) and _indices(expected[0]) != _indices(expected[1])
    loader = {"TOTAL_WORKERS": workers, **({"PERSISTENT_WORKERS": persistent} if workers else {})}
    with _loaders(root, DATA={"USE_RAM_CACHE": cache, "CACHE_SIZE_GB": 0.001}, DATALOADER=loader) as loaders:
        for epoch in expected:
            for found, batch in zip(loaders.train, epoch, strict=True):
                _same(found, batch)
        assert (loaders.cache is not None and loaders.cache.n_filled > 0) == cache


def test_torchs_own_generator_is_left_alone(root: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with _loaders(root, DATALOADER=WORKERS) as loaders:
        list(loaders.train)
    assert torch.equal(torch.get_rng_state(), before)


# Ranks


@pytest.mark.parametrize(("world", "batch_size"), [(1, 2), (2, 1), (3, 2), (5, 1), (4, 4)])
def test_ranks_see_every_clip_once_and_stay_in_step(root: Path, world: int, batch_size: int) -> None:
    seen: list[int] = []
    steps = set()
    for rank in range(world):
        with _loaders(root, rank, world, TRAIN={"BATCH_SIZE": batch_size}) as loaders:
            batches = list(loaders.train)
            assert len(batches) == len(loaders.train)
        steps.add(len(batches))
        for batch in batches:
            assert len(batch["index"]) >= 1
            assert torch.equal(batch["weight"], (batch["index"] >= 0).float())
        seen += [index for index in _indices(batches) if index >= 0]
    assert sorted(seen) == list(range(CLIPS))
    assert len(steps) == 1


def test_validation_is_shared_out_as_well(root: Path) -> None:
    seen: list[int] = []
    for rank in range(3):
        with _loaders(root, rank, 3) as loaders:
            assert loaders.val is not None
            seen += [index for index in _indices(list(loaders.val)) if index >= 0]
    assert sorted(seen) == [0, 1, 2, 3]


# Resume


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 4, 6, 7, 13])
def test_a_training_goes_on_at_the_exact_batch(root: Path, workers: int, taken: int) -> None:
    loader = {"TOTAL_WORKERS": workers}
    with _loaders(root, DATALOADER=loader) as whole:
        expected = [batch for _ in range(4) for batch in whole.train]
    with _loaders(root, DATALOADER=loader) as first:
        left = taken
        while left:
            for _ in first.train:
                left -= 1
                if not left:
                    break
        state = json.loads(json.dumps(first.state_dict()))
    with _loaders(root, DATALOADER=loader) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        found = []
        while len(found) < len(expected) - taken:
            found += list(again.train)
        for batch, other in zip(found, expected[taken:], strict=False):
            _same(batch, other)


def test_a_state_of_two_ranks_goes_on_with_three(root: Path) -> None:
    with _loaders(root, 0, 2, TRAIN={"BATCH_SIZE": 1}) as first:
        going = iter(first.train)
        [next(going) for _ in range(2)]
        state = first.state_dict()
    before = [0, 2]
    assert state["position"] == 4
    seen = []
    for rank in range(3):
        with _loaders(root, rank, 3, TRAIN={"BATCH_SIZE": 1}) as loaders:
            loaders.load_state_dict(state)
            seen += [index for index in _indices(list(loaders.train)) if index >= 0]
    with _loaders(root, TRAIN={"BATCH_SIZE": 1}) as loaders:
        order = _indices(list(loaders.train))
    assert sorted(seen) == sorted(order[4:]) and len(before) == 2


def test_set_epoch_begins_that_epoch(root: Path) -> None:
    with _loaders(root) as loaders:
        epochs = [_indices(list(loaders.train)) for _ in range(3)]
        loaders.set_epoch(1)
        assert loaders.state_dict()["epoch"] == 1
        assert _indices(list(loaders.train)) == epochs[1]


# The documented example


def test_the_full_example_gives_the_documented_shapes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        make_sequence(
            tmp_path / "data" / split / "GOPR0372_11_00", 5, image=(720, 1280), plane=(360, 640), frames=88, noise=True
        )
    path = tmp_path / "deblur.yaml"
    path.write_text(EXAMPLE.replace("data/processed/gopro_spike_unified", str(tmp_path / "data")), encoding="utf-8")
    with penstock.clip_loaders(path, cpus=_cpus(2), memory=_limit(1 << 50), log=None) as loaders:
        (batch,), (whole,) = list(loaders.train), list(loaders.val)
        assert loaders.config.data.k == 32 and loaders.cache is not None
    assert batch["blur"].shape == (1, 5, 3, 256, 256) and batch["spike_vox"].shape == (1, 5, 5, 128, 128)
    assert whole["blur"].shape == whole["sharp"].shape == (1, 5, 3, 720, 1280)
    assert whole["spike_vox"].shape == (1, 5, 5, 360, 640)
    assert 0 <= float(whole["blur"].min()) < float(whole["blur"].max()) <= 1 and float(whole["spike_vox"].max()) <= 18
    # The bytes of 88×360×640 packed, declared as 10×396×640 of a byte each.
    seed_layout = ["SPIKE_LAYOUT=uint8", "SPIKE_HEIGHT=396", "SPIKE_WIDTH=640", "SPIKE_FRAMES=10", "SPIKE_FLIP=false"]
    config = load_clip_config(path, [f"DATA.{word}" for word in seed_layout] + ["DATALOADER={TOTAL_WORKERS: 0}"])
    with penstock.clip_loaders(config, memory=_limit(1 << 50), log=None) as loaders:
        assert next(iter(loaders.train))["spike_vox"].shape == (1, 5, 5, 141, 128)
        assert next(iter(loaders.val))["spike_vox"].shape == (1, 5, 5, 396, 640)


# On the device


@pytest.mark.parametrize("data", [{"DTYPE": "uint8"}, {"VOXELS": "device"}, {"DTYPE": "uint8", "VOXELS": "device"}])
def test_what_is_made_on_the_device_is_what_the_host_makes(root: Path, data: dict[str, Any]) -> None:
    with _loaders(root, DATALOADER=WORKERS) as host, _loaders(root, DATA=data) as device:
        for _ in range(3):
            for expected, batch in zip(host.train, device.train, strict=True):
                found = device.prepare(batch, "cpu")
                assert set(found) == set(expected)
                for name, values in expected.items():
                    assert torch.equal(found[name], values), name


def test_clips_of_different_frame_counts_stand_in_one_batch_on_the_device_too(tmp_path: Path) -> None:
    make_sequence(tmp_path / "train" / "a", 6, frames=56, noise=True)
    make_sequence(tmp_path / "train" / "b", 6, frames=88, noise=True, first=50)
    data = {"SPIKE_FRAMES": None, "VAL_SPLIT": None}
    with _loaders(tmp_path, DATA=data) as host, _loaders(tmp_path, DATA={**data, "VOXELS": "device"}) as device:
        frames = set()
        for _ in range(3):
            for expected, batch in zip(host.train, device.train, strict=True):
                frames.add(tuple(batch["spike_frames"].tolist()))
                assert torch.equal(device.prepare(batch, "cpu")["spike_vox"], expected["spike_vox"])
    assert frames & {(56, 88), (88, 56)} and frames & {(56, 56), (88, 88)}


# What is refused, and what is said


def test_the_configuration_is_logged_with_the_documented_lines(root: Path) -> None:
    lines: list[str] = []
    tree = config_tree(root, DATALOADER={"TOTAL_WORKERS": "auto"})
    with penstock.clip_loaders(tree, gpus=3, log=lines.append, cpus=_cpus(40), memory=_limit(1 << 50)) as loaders:
        assert tuple(lines) == loaders.log_lines()
        assert loaders.plan.train == 10
    for line in (
        "[train] ========== 数据加载配置 ==========",
        "[train] CPU核心数: 40",
        "[train] 总worker数: 32 (建议值，用于所有3个GPU)",
        "[train] 训练DataLoader:",
        "[train]   - num_workers: 10 (每GPU)",
        "[train]   - prefetch_factor: 4",
        "[train] 总计: 30 个训练workers 利用CPU资源",
    ):
        assert line in lines
    assert any(line.startswith("[train] 预计内存: ") for line in lines)


def test_the_cpus_are_those_granted(root: Path) -> None:
    tree = config_tree(root, DATALOADER={"TOTAL_WORKERS": "auto"})
    with penstock.clip_loaders(tree, log=None, cpus=_cpus(4, 64), memory=_limit(1 << 50)) as loaders:
        lines = loaders.log_lines()
    assert "[train] CPU核心数: 4 (由 cgroup v2 /job cpu.max 限定，机器有 64 个)" in lines
    assert "[train]   - num_workers: 3 (每GPU)" in lines


def test_more_workers_than_cpus_is_a_warning(root: Path) -> None:
    tree = config_tree(root, DATALOADER={"TOTAL_WORKERS": 8, "VAL_WORKERS": 1})
    with pytest.warns(UserWarning, match="8 train workers .* share 4 granted CPUs"):
        penstock.clip_loaders(tree, log=None, cpus=_cpus(4), memory=_limit(1 << 50)).close()


def test_what_cannot_fit_is_refused_with_what_can(root: Path) -> None:
    tree = config_tree(root, DATALOADER={"TOTAL_WORKERS": 4})
    lines: list[str] = []
    with pytest.raises(BudgetExceeded, match="loading would take") as error:
        penstock.clip_loaders(tree, log=lines.append, cpus=_cpus(8), memory=_limit(60 << 20))
    assert "DATALOADER.TRAIN_WORKERS: " in str(error.value) and "fits" in str(error.value)
    assert any("预计内存" in line for line in lines)  # said before it was refused


def test_geometries_that_cannot_stand_in_one_batch_are_refused_before_training(tmp_path: Path) -> None:
    make_sequence(tmp_path / "train" / "a", 5)
    make_sequence(tmp_path / "train" / "b", 5, plane=(12, 32), first=50)
    data = {"SPIKE_HEIGHT": None, "VAL_SPLIT": None}
    with pytest.raises(ConfigError, match="clips of different geometry"):
        _loaders(tmp_path, DATA=data)
    with _loaders(tmp_path, DATA=data, TRAIN={"BATCH_SIZE": 1}) as loaders:
        assert loaders.val is None
        assert {tuple(batch["spike_vox"].shape) for batch in loaders.train} == {(1, 3, 5, 8, 8), (1, 3, 5, 4, 8)}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_skip_is_counted_where_the_training_runs(tmp_path: Path, workers: int) -> None:
    make_set(tmp_path)
    bad = tmp_path / "train" / "seq_0" / "sharp" / "0003.png"
    bad.write_bytes(b"no image")
    data = {"ON_ERROR": "skip", "VAL_SPLIT": None}
    with _loaders(tmp_path, DATA=data, DATALOADER={"TOTAL_WORKERS": workers}) as loaders:
        batches = list(loaders.train)
        left_out = CLIPS - len([index for index in _indices(batches) if index >= 0])
        assert left_out == 3 and all("skipped" not in batch for batch in batches)
        assert len(loaders.skipped) >= 3 and all("0003.png" in each for each in loaders.skipped)
    strict = _loaders(tmp_path, DATA={"VAL_SPLIT": None}, DATALOADER={"TOTAL_WORKERS": workers})
    with strict as loaders, pytest.raises(penstock.PenstockError, match=r"sharp/0003\.png"):
        list(loaders.train)


def test_clips_serve_a_plain_dataloader_too(root: Path) -> None:
    clips = penstock.SpikeClips(root, 3, 16, augment=True, split="train", **OPTIONS)
    loader = torch.utils.data.DataLoader(clips, batch_size=5, num_workers=1)
    first = next(iter(loader))
    assert first["blur"].shape == (5, 3, 3, 16, 16) and first["index"].tolist() == [0, 1, 2, 3, 4]
    _same(first, torch.utils.data.default_collate([clips[number] for number in range(5)]))


def test_the_same_loaders_go_back_to_a_state(root: Path) -> None:
    with _loaders(root) as plain:
        expected = list(plain.train)
    with _loaders(root, DATALOADER=WORKERS) as loaders:  # its workers live on, with batches made ahead
        for step, _ in enumerate(loaders.train):
            if step == 1:
                state = loaders.state_dict()
            if step == 3:
                break
        loaders.load_state_dict(state)
        for batch, other in zip(loaders.train, expected[2:], strict=True):
            _same(batch, other)
        assert loaders.state_dict()["epoch"] == 1


def test_the_keys_of_workers_go_to_torch(root: Path) -> None:
    keys = {"TOTAL_WORKERS": "auto", "TRAIN_WORKERS": 3, "VAL_WORKERS": 2, "TRAIN_PREFETCH_FACTOR": 6}
    with _loaders(root, DATALOADER={**keys, "VAL_PREFETCH_FACTOR": 3, "PERSISTENT_WORKERS": False}) as loaders:
        assert (loaders.train.num_workers, loaders.train.prefetch_factor) == (3, 6)
        assert (loaders.val.num_workers, loaders.val.prefetch_factor) == (2, 3)
        assert loaders.train.persistent_workers is loaders.val.persistent_workers is False
        assert loaders.train.pin_memory is torch.cuda.is_available()
    with _loaders(root, DATALOADER={"TEMPLATE": "max", "TOTAL_WORKERS": 2}) as loaders:
        assert (loaders.train.num_workers, loaders.train.prefetch_factor) == (2, 6)
        assert loaders.train.persistent_workers is True
    with _loaders(root) as loaders:  # without workers torch takes neither
        assert (loaders.train.num_workers, loaders.train.prefetch_factor) == (0, None)
