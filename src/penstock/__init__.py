"""Penstock feeds robot-learning data of any size to a GPU through a memory budget that the user sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import penstock.profile as profile
    import penstock.torch as torch
    from penstock.conversion.job import convert
    from penstock.conversion.report import Report
    from penstock.errors import PenstockError
    from penstock.load.bench.planning import plan_loading
    from penstock.load.clips.dataset import SpikeClips
    from penstock.load.clips.loaders import clip_loaders
    from penstock.load.loader import Loader
    from penstock.load.replay.buffer import AsyncSampleBuffer, MultimodalReplayBuffer
    from penstock.load.sampling.window import Clip, Transition, Window
    from penstock.load.settings import Mix
    from penstock.load.views.build import build_view
    from penstock.load.views.view import View
    from penstock.load.vqa.dataset import LazyLoadVQADataset, VQADataset
    from penstock.load.vqa.streaming import StreamingVQADataset
    from penstock.media.spike.files import read_spikes
    from penstock.media.spike.intensity import spike_to_tfi, spike_to_tfp
    from penstock.media.spike.voxel import spike_to_voxel
    from penstock.stores.opening import open_store as open
    from penstock.stores.store import Store
    from penstock.system.budget import Budget

# Loaded at first use: importing penstock imports no other package.
_HOMES = {
    "AsyncSampleBuffer": "penstock.load.replay.buffer",
    "Budget": "penstock.system.budget",
    "Clip": "penstock.load.sampling.window",
    "LazyLoadVQADataset": "penstock.load.vqa.dataset",
    "Loader": "penstock.load.loader",
    "Mix": "penstock.load.settings",
    "MultimodalReplayBuffer": "penstock.load.replay.buffer",
    "PenstockError": "penstock.errors",
    "Report": "penstock.conversion.report",
    "SpikeClips": "penstock.load.clips.dataset",
    "Store": "penstock.stores.store",
    "StreamingVQADataset": "penstock.load.vqa.streaming",
    "Transition": "penstock.load.sampling.window",
    "VQADataset": "penstock.load.vqa.dataset",
    "View": "penstock.load.views.view",
    "Window": "penstock.load.sampling.window",
    "build_view": "penstock.load.views.build",
    "clip_loaders": "penstock.load.clips.loaders",
    "convert": "penstock.conversion.job",
    "open": "penstock.stores.opening:open_store",
    "plan_loading": "penstock.load.bench.planning",
    "profile": "penstock.profile:",
    "read_spikes": "penstock.media.spike.files",
    "spike_to_tfi": "penstock.media.spike.intensity",
    "spike_to_tfp": "penstock.media.spike.intensity",
    "spike_to_voxel": "penstock.media.spike.voxel",
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
