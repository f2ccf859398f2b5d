"""One YAML for a training on spike clips: `DATA`, `DATALOADER`, `TRAIN` and `SEED`, upper-case keys, checked.

config = load_clip_config("deblur.yaml", ["TRAIN.BATCH_SIZE=4"])
config.data.crop_size, config.dataloader.total_workers, config.train.optim.lr
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from penstock._src.system.config import apply_overrides, build, load_yaml
from penstock.errors import ConfigError

TEMPLATES: Mapping[str, Mapping[str, Any]] = {
    "max": {"TOTAL_WORKERS": "cpu*0.9", "TRAIN_PREFETCH_FACTOR": 6},
    "balanced": {"TOTAL_WORKERS": "auto", "TRAIN_PREFETCH_FACTOR": 4},
    "low-memory": {"TOTAL_WORKERS": "cpu*0.6", "TRAIN_PREFETCH_FACTOR": 2, "PERSISTENT_WORKERS": False},
}
"""What `DATALOADER.TEMPLATE` stands for; keys that are written beside it win."""

_ELSEWHERE = {"NUM_WORKERS": "DATALOADER.TRAIN_WORKERS", "PREFETCH_FACTOR": "DATALOADER.TRAIN_PREFETCH_FACTOR",
              "LR": "TRAIN.OPTIM.LR", "LEARNING_RATE": "TRAIN.OPTIM.LR", "NUM_BINS": "DATA.NUM_VOXEL_BINS"}  # fmt: skip


@dataclass(frozen=True)
class DataConfig:
    """What a clip is, and where it comes from."""

    upper_case_keys: ClassVar[bool] = True

    root: Path
    train_split: str | None = "train"
    val_split: str | None = "test"
    crop_size: int | tuple[int, int] | None = 256
    clip_len: int = 5
    k: int | None = None
    """Not used for loading: it is handed on to the model."""
    augment: bool | Literal["crop"] = True
    use_precomputed_voxels: bool = False
    num_voxel_bins: int = 5
    spike_dir: str = "spike"
    voxel_cache_dirname: str = "spike_vox"
    spike_layout: Literal["auto", "packed", "uint8"] = "auto"
    spike_height: int | None = None
    spike_width: int | None = None
    spike_frames: int | None = None
    spike_flip: bool | None = None
    voxels: Literal["host", "device"] = "host"
    dtype: Literal["float32", "uint8"] = "float32"
    use_ram_cache: bool = False
    cache_size_gb: float = 4.0
    on_error: Literal["raise", "skip"] = "raise"
    on_missing: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        _positive("DATA", self, "clip_len", "num_voxel_bins", "k", "spike_height", "spike_width", "spike_frames")
        sides = (self.crop_size,) if isinstance(self.crop_size, int) else self.crop_size or ()
        if any(side < 1 for side in sides):
            raise ConfigError(
                f"CROP_SIZE: {self.crop_size} is not a size", hint="256, [256, 320], or null for whole images"
            )
        if self.use_precomputed_voxels and self.voxels == "device":
            raise ConfigError(
                "USE_PRECOMPUTED_VOXELS: true and VOXELS: device contradict each other: "
                "one reads voxels from files, the other makes them on the GPU",
                hint="remove one of them",
            )
        if self.use_precomputed_voxels and self.voxel_cache_dirname == self.spike_dir:
            raise ConfigError(f"VOXEL_CACHE_DIRNAME and SPIKE_DIR are both {self.spike_dir!r}")
        if self.use_ram_cache and self.cache_size_gb <= 0:
            raise ConfigError(
                f"USE_RAM_CACHE: true with CACHE_SIZE_GB: {self.cache_size_gb:g} holds nothing",
                hint="CACHE_SIZE_GB: 4.0, or USE_RAM_CACHE: false",
            )

    def store_options(self, split: str | None, *, counts_voxels: bool = False) -> dict[str, Any]:
        """The options of `penstock.open` for a split; `counts_voxels`: voxels are counted whatever is configured."""
        return {
            "split": split, "num_bins": self.num_voxel_bins, "spike_dir": self.spike_dir, "layout": self.spike_layout,
            "height": self.spike_height, "width": self.spike_width, "frames": self.spike_frames,
            "flip": self.spike_flip, "on_missing": self.on_missing,
            "voxel_dir": self.voxel_cache_dirname if self.use_precomputed_voxels and not counts_voxels else None,
        }  # fmt: skip

    @property
    def cache_bytes(self) -> int:
        """The RAM cache of all workers and ranks together, in bytes; 0 where there is none."""
        return int(self.cache_size_gb * 1e9) if self.use_ram_cache else 0


@dataclass(frozen=True)
class DataLoaderConfig:
    """How many workers load, and how far ahead."""

    upper_case_keys: ClassVar[bool] = True

    template: Literal["max", "balanced", "low-memory"] | None = None
    total_workers: str | int = "auto"
    train_workers: str | int | None = None
    val_workers: str | int | None = None
    train_prefetch_factor: int = 4
    val_prefetch_factor: int = 2
    pin_memory: bool = True
    persistent_workers: bool = True

    def __post_init__(self) -> None:
        _positive("DATALOADER", self, "train_prefetch_factor", "val_prefetch_factor")


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser of the training."""

    upper_case_keys: ClassVar[bool] = True

    lr: float = 2e-4
    weight_decay: float = 0.0


@dataclass(frozen=True)
class TrainConfig:
    """The training loop; loading takes the batch sizes from here, which are those of one GPU."""

    upper_case_keys: ClassVar[bool] = True

    epochs: int = 40
    batch_size: int = 1
    val_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        _positive(
            "TRAIN", self, "epochs", "batch_size", "val_batch_size", "gradient_accumulation_steps", "max_grad_norm"
        )


@dataclass(frozen=True)
class ClipConfig:
    """A whole configuration. `model` is a mapping that is handed on as it is written."""

    upper_case_keys: ClassVar[bool] = True

    data: DataConfig
    dataloader: DataLoaderConfig = field(default_factory=DataLoaderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    seed: int = 0
    model: dict[str, Any] = field(default_factory=dict)


def load_clip_config(path: str | Path, overrides: Sequence[str] = ()) -> ClipConfig:
    """The configuration of a YAML file, with `TRAIN.BATCH_SIZE=4` words applied to it."""
    return clip_config(apply_overrides(load_yaml(path), overrides))


def clip_config(tree: Mapping[str, Any]) -> ClipConfig:
    """The configuration of a mapping; unknown and contradictory keys are errors that say what to write."""
    _check_places(tree)
    sections = dict(tree)
    section = sections.get("DATALOADER")
    if isinstance(section, Mapping) and section.get("TEMPLATE") in TEMPLATES:
        sections["DATALOADER"] = {**TEMPLATES[section["TEMPLATE"]], **section}
    config = build(ClipConfig, sections)
    _check_without_workers(section if isinstance(section, Mapping) else {})
    return config


def _check_places(tree: Mapping[str, Any]) -> None:
    """Keys that are known under another name or in another section."""
    sections: dict[str, type] = {"DATA": DataConfig, "DATALOADER": DataLoaderConfig, "TRAIN": TrainConfig}
    known = {name: {each.name.upper() for each in dataclasses.fields(cls)} for name, cls in sections.items()}
    known[""] = {each.name.upper() for each in dataclasses.fields(ClipConfig)}
    for section, keys in known.items():
        held = tree.get(section) if section else tree
        for key in held if isinstance(held, Mapping) else ():
            word = str(key).upper().replace("-", "_")
            if key in keys or word in keys:
                continue  # `build` says which case is right
            other = next((name for name, words in known.items() if name and word in words), None)
            right = _ELSEWHERE.get(word) or (f"{other}.{word}" if other else None)
            if right is not None:
                raise ConfigError(f"unknown key {key!r} in {section or 'the configuration'}; did you mean {right}?")


def _check_without_workers(section: Mapping[str, Any]) -> None:
    """Keys about workers where none are asked for."""
    for name, needs in (("TRAIN", ("TRAIN_PREFETCH_FACTOR", "PERSISTENT_WORKERS")), ("VAL", ("VAL_PREFETCH_FACTOR",))):
        if section.get(f"{name}_WORKERS", section.get("TOTAL_WORKERS")) not in (0, "0"):
            continue
        for key in needs:
            if section.get(key):
                raise ConfigError(
                    f"DATALOADER.{key}: {section[key]} has no meaning without {name.lower()} workers",
                    hint=f"remove it, or write {name}_WORKERS: 1 or more",
                )


def _positive(section: str, config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ConfigError(f"{section}.{name.upper()}: {value} must be above 0")
