"""For packages that add a store or a recording format: describe it by a `Format`, and register it.

An installed package names its `Format` by an entry point of the group `penstock.formats` instead.
"""

from penstock._src.formats import Format, register
from penstock._src.stores.store import Column, ImageArray, ImageSource, Scratch, Store

__all__ = ["Column", "Format", "ImageArray", "ImageSource", "Scratch", "Store", "register"]
