"""Data of known content to try things on: recordings, ALOHA episodes with a reaching task, VQA scenes."""

from penstock._src.demo.act import CAMERAS, SIDES, ReachScript, ReachTask, Scene, write_episodes
from penstock._src.demo.kuavo import KuavoScript, write_kuavo_recording
from penstock._src.demo.recording import Script, write_recording
from penstock._src.demo.spike import SpikeScript, write_spike_set
from penstock._src.demo.vqa import ShapeScript, write_vqa_set

__all__ = [
    "CAMERAS",
    "SIDES",
    "KuavoScript",
    "ReachScript",
    "ReachTask",
    "Scene",
    "Script",
    "ShapeScript",
    "SpikeScript",
    "write_episodes",
    "write_kuavo_recording",
    "write_recording",
    "write_spike_set",
    "write_vqa_set",
]
