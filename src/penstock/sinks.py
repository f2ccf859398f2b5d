"""For packages that add an output of `convert`: a class with the methods of `Sink`, registered by name.

An installed package names its class by an entry point of the group `penstock.sinks` instead.
"""

from penstock._src.conversion.sink import Sink, register
from penstock._src.lerobot.features import Description

__all__ = ["Description", "Sink", "register"]
