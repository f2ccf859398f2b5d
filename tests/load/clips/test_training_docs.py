"""docs/reference/spike-training.md: every key with its default, the YAML is valid, the Python block runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from penstock._src.load.clips.config import (
    TEMPLATES,
    ClipConfig,
    DataConfig,
    DataLoaderConfig,
    OptimConfig,
    TrainConfig,
    clip_config,
)
from penstock._src.load.clips.memory import PROCESS_BYTES, WORKER_BYTES
from penstock._src.system import config as system_config
from penstock._src.system import plain_yaml
from tests.load.clips.clip_sets import make_set

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "spike-training.md").read_text(encoding="utf-8")


def _block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_table_has_every_key_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_.]+)` \| ([^|]*?) \|", TEXT, re.MULTILINE))
    expected = {}
    sections = (("", ClipConfig), ("DATA.", DataConfig), ("DATALOADER.", DataLoaderConfig), ("TRAIN.", TrainConfig))
    for prefix, cls in sections:
        for field in dataclasses.fields(cls):
            if field.name in ("data", "dataloader", "train"):
                continue
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            text = "required" if default is dataclasses.MISSING else default
            expected[prefix + field.name.upper()] = text
    assert list(rows) != [] and set(rows) == set(expected)
    for key, default in expected.items():
        shown = rows[key].strip("`")
        value = plain_yaml.parse(shown, key)
        assert value == system_config.plain(default), key
    assert system_config.plain(OptimConfig()) == {"LR": 2e-4, "WEIGHT_DECAY": 0.0}


def test_the_templates_are_those_of_the_code() -> None:
    for name, keys in re.findall(r"^\| `([a-z-]+)` \| (`.*?) \|$", TEXT, re.MULTILINE):
        lines = "\n".join(part.strip("`") for part in keys.split(", "))
        assert plain_yaml.parse(lines, name) == TEMPLATES[name]


def test_the_measured_memory_of_workers_is_that_of_the_code() -> None:
    assert f"{PROCESS_BYTES >> 20} MiB of the training process itself" in TEXT
    assert f"{WORKER_BYTES['fork'] >> 20} MiB each when they are forked" in TEXT
    assert f"{WORKER_BYTES['spawn'] >> 20} MiB when they are spawned" in TEXT


def test_the_yaml_is_a_configuration() -> None:
    assert clip_config(plain_yaml.parse(_block("yaml"), "docs")).data.cache_bytes == 4_000_000_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning")
def test_the_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    make_set(tmp_path / "data" / "gopro_spike")
    text = _block("yaml").replace("256", "16").replace("CLIP_LEN: 5", "CLIP_LEN: 5\n  " + _LAYOUT)
    (tmp_path / "deblur.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(_block("python"), names)
    assert names["state"]["epoch"] == 1  # type: ignore[index]  # the last batch of an epoch was taken
    assert torch.is_tensor(names["batch"]["spike_vox"])  # type: ignore[index]


_LAYOUT = "SPIKE_LAYOUT: packed\n  SPIKE_HEIGHT: 24\n  SPIKE_WIDTH: 32\n  SPIKE_FRAMES: 10\n  SPIKE_FLIP: false"
