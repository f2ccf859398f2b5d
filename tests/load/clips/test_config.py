"""The YAML of a training: the documented example as it stands, templates, and errors that say what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock._src.load.clips.config import TEMPLATES, ClipConfig, clip_config, load_clip_config
from penstock._src.system.config import dump_yaml, load_yaml
from penstock.errors import ConfigError
from tests.load.clips.clip_sets import EXAMPLE


def _config(**sections: dict[str, Any]) -> ClipConfig:
    return clip_config({"DATA": {"ROOT": "data"}, **sections})


def _error(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        clip_config(tree)
    return str(error.value)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "deblur.yaml"
    path.write_text(EXAMPLE, encoding="utf-8")
    return path


def test_the_full_example_is_read_as_it_stands(example: Path) -> None:
    config = load_clip_config(example)
    assert config.seed == 123
    assert config.data.root == Path("data/processed/gopro_spike_unified")
    assert (config.data.crop_size, config.data.clip_len, config.data.k, config.data.num_voxel_bins) == (256, 5, 32, 5)
    assert config.data.cache_bytes == 4_000_000_000
    assert (config.dataloader.total_workers, config.dataloader.train_prefetch_factor) == ("auto", 4)
    assert config.dataloader.pin_memory and config.dataloader.persistent_workers
    assert (config.train.epochs, config.train.batch_size, config.train.gradient_accumulation_steps) == (40, 1, 6)
    assert (config.train.max_grad_norm, config.train.optim.lr) == (1.0, 0.0002)


def test_a_configuration_survives_yaml(example: Path, tmp_path: Path) -> None:
    config = load_clip_config(example)
    again = tmp_path / "again.yaml"
    again.write_text(dump_yaml(config), encoding="utf-8")
    assert clip_config(load_yaml(again)) == config


def test_words_of_the_command_line_win(example: Path) -> None:
    config = load_clip_config(
        example, ["TRAIN.BATCH_SIZE=4", "DATA.CROP_SIZE=[128, 256]", "DATALOADER.TOTAL_WORKERS=cpu*0.9"]
    )
    assert config.train.batch_size == 4
    assert config.data.crop_size == (128, 256)
    assert config.dataloader.total_workers == "cpu*0.9"


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_template_stands_for_its_keys_and_written_keys_win(name: str) -> None:
    made = _config(DATALOADER={"TEMPLATE": name, "TRAIN_PREFETCH_FACTOR": 3}).dataloader
    assert made.train_prefetch_factor == 3
    assert made.total_workers == TEMPLATES[name]["TOTAL_WORKERS"]
    assert made.persistent_workers is (name != "low-memory")


def test_a_section_of_the_model_is_handed_on() -> None:
    assert _config(MODEL={"channels": 32, "Any": [1]}).model == {"channels": 32, "Any": [1]}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"DATA": {"ROOT": "d", "CROPSIZE": 3}}, ["unknown key 'CROPSIZE' in DATA", "did you mean 'CROP_SIZE'"]),
        ({"DATA": {"ROOT": "d", "crop_size": 3}}, ["unknown key 'crop_size'", "did you mean 'CROP_SIZE'"]),
        ({"DATA": {"ROOT": "d"}, "DATALOADER": {"NUM_WORKERS": 8}}, ["did you mean DATALOADER.TRAIN_WORKERS"]),
        ({"DATA": {"ROOT": "d"}, "DATALOADER": {"BATCH_SIZE": 8}}, ["did you mean TRAIN.BATCH_SIZE"]),
        ({"DATA": {"ROOT": "d"}, "TRAIN": {"LR": 8}}, ["did you mean TRAIN.OPTIM.LR"]),
        ({"DATA": {"ROOT": "d"}, "BATCH_SIZE": 8}, ["did you mean TRAIN.BATCH_SIZE"]),
        ({"DATA": {"ROOT": "d"}, "DATALODER": {}}, ["unknown key 'DATALODER'", "did you mean 'DATALOADER'"]),
        ({"data": {"ROOT": "d"}}, ["unknown key 'data'", "did you mean 'DATA'"]),
        ({"DATA": {}}, ["missing key 'ROOT' in DATA"]),
        ({}, ["missing key 'DATA'"]),
        ({"DATA": {"ROOT": "d", "CLIP_LEN": "five"}}, ["DATA.CLIP_LEN: expected a whole number"]),
        ({"DATA": {"ROOT": "d", "CLIP_LEN": 0}}, ["DATA.CLIP_LEN: 0 must be above 0"]),
        ({"DATA": {"ROOT": "d", "CROP_SIZE": -1}}, ["CROP_SIZE: -1 is not a size"]),
        ({"DATA": {"ROOT": "d", "SPIKE_LAYOUT": "pack"}}, ["DATA.SPIKE_LAYOUT", "did you mean 'packed'"]),
        ({"DATA": {"ROOT": "d"}, "DATALOADER": {"TEMPLATE": "balance"}}, ["TEMPLATE", "did you mean 'balanced'"]),
        ({"DATA": {"ROOT": "d"}, "TRAIN": {"BATCH_SIZE": 0}}, ["TRAIN.BATCH_SIZE: 0 must be above 0"]),
    ],
)
def test_what_is_wrong_is_named_with_what_is_right(tree: dict[str, Any], words: list[str]) -> None:
    text = _error(tree)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("data", "loader", "word"),
    [
        ({"USE_PRECOMPUTED_VOXELS": True, "VOXELS": "device"}, {}, "contradict each other"),
        ({"USE_PRECOMPUTED_VOXELS": True, "VOXEL_CACHE_DIRNAME": "spike"}, {}, "both 'spike'"),
        ({"USE_RAM_CACHE": True, "CACHE_SIZE_GB": 0}, {}, "USE_RAM_CACHE: false"),
        ({}, {"TRAIN_WORKERS": 0, "TRAIN_PREFETCH_FACTOR": 4}, "TRAIN_WORKERS: 1 or more"),
        ({}, {"TOTAL_WORKERS": 0, "PERSISTENT_WORKERS": True}, "without train workers"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(data: dict[str, Any], loader: dict[str, Any], word: str) -> None:
    assert word in _error({"DATA": {"ROOT": "d", **data}, "DATALOADER": loader})


def test_a_switched_off_cache_may_keep_its_size() -> None:
    config = clip_config({"DATA": {"ROOT": "d", "USE_RAM_CACHE": False, "CACHE_SIZE_GB": 4.0}})
    assert config.data.cache_bytes == 0
