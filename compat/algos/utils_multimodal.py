"""`from algos.utils_multimodal import MultimodalReplayBuffer`, as the lazy-loading guide writes it (docs/replay.md)."""

from __future__ import annotations

from penstock import AsyncSampleBuffer, MultimodalReplayBuffer

__all__ = ["AsyncSampleBuffer", "MultimodalReplayBuffer"]
