"""`from algos.utils_multimodal import MultimodalReplayBuffer`, as its guide writes it (docs/train/replay.md)."""

from __future__ import annotations

from penstock import AsyncSampleBuffer, MultimodalReplayBuffer

__all__ = ["AsyncSampleBuffer", "MultimodalReplayBuffer"]
