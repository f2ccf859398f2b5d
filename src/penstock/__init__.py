"""Penstock feeds robot-learning data of any size to a GPU through a memory budget that the user sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import penstock.profile as profile
    import penstock.torch as torch
    from penstock._src.conversion.job import convert
    from penstock._src.conversion.report import Report
    from penstock._src.load.bench.planning import plan_loading
    from penstock._src.load.clips.config import load_clip_config
    from penstock._src.load.clips.dataset import SpikeClips
    from penstock._src.load.clips.loaders import clip_loaders
    from penstock._src.load.engine.images import fit_image
    from penstock._src.load.loader import Loader
    from penstock._src.load.replay.buffer import AsyncSampleBuffer, MultimodalReplayBuffer
    from penstock._src.load.sampling.window import Clip, Transition, Window
    from penstock._src.load.settings import Mix
    from penstock._src.load.views.build import build_view
    from penstock._src.load.views.view import View
    from penstock._src.load.vqa.dataset import LazyLoadVQADataset, VQADataset
    from penstock._src.load.vqa.streaming import StreamingVQADataset
    from penstock._src.media.spike.files import read_spikes
    from penstock._src.media.spike.intensity import spike_to_tfi, spike_to_tfp
    from penstock._src.media.spike.voxel import spike_to_voxel
    from penstock._src.stores.opening import open_store as open
    from penstock._src.stores.store import Store
    from penstock._src.system.budget import Budget
    from penstock.errors import PenstockError

# Loaded at first use: importing penstock imports no other package.
_HOMES = {
    "AsyncSampleBuffer": "penstock._src.load.replay.buffer",
    "Budget": "penstock._src.system.budget",
    "Clip": "penstock._src.load.sampling.window",
    "LazyLoadVQADataset": "penstock._src.load.vqa.dataset",
    "Loader": "penstock._src.load.loader",
    "Mix": "penstock._src.load.settings",
    "MultimodalReplayBuffer": "penstock._src.load.replay.buffer",
    "PenstockError": "penstock.errors",
    "Report": "penstock._src.conversion.report",
    "SpikeClips": "penstock._src.load.clips.dataset",
    "Store": "penstock._src.stores.store",
    "StreamingVQADataset": "penstock._src.load.vqa.streaming",
    "Transition": "penstock._src.load.sampling.window",
    "VQADataset": "penstock._src.load.vqa.dataset",
    "View": "penstock._src.load.views.view",
    "Window": "penstock._src.load.sampling.window",
    "build_view": "penstock._src.load.views.build",
    "clip_loaders": "penstock._src.load.clips.loaders",
    "convert": "penstock._src.conversion.job",
    "fit_image": "penstock._src.load.engine.images",
    "load_clip_config": "penstock._src.load.clips.config",
    "open": "penstock._src.stores.opening:open_store",
    "plan_loading": "penstock._src.load.bench.planning",
    "profile": "penstock.profile:",
    "read_spikes": "penstock._src.media.spike.files",
    "spike_to_tfi": "penstock._src.media.spike.intensity",
    "spike_to_tfp": "penstock._src.media.spike.intensity",
    "spike_to_voxel": "penstock._src.media.spike.voxel",
    "torch": "penstock.torch:",
}

__all__ = [
    "AsyncSampleBuffer",
    "Budget",
    "Clip",
    "LazyLoadVQADataset",
    "Loader",
    "Mix",
    "MultimodalReplayBuffer",
    "PenstockError",
    "Report",
    "SpikeClips",
    "Store",
    "StreamingVQADataset",
    "Transition",
    "VQADataset",
    "View",
    "Window",
    "__version__",
    "build_view",
    "clip_loaders",
    "convert",
    "fit_image",
    "load_clip_config",
    "open",
    "plan_loading",
    "profile",
    "read_spikes",
    "spike_to_tfi",
    "spike_to_tfp",
    "spike_to_voxel",
    "torch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    home, named, inner = _HOMES[name].partition(":")
    module = importlib.import_module(home)
    value = module if named and not inner else getattr(module, inner or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
