"""Formats: what a path is, who reads it, and how other packages add their own.

    from penstock._src.formats import Format, register

    register(Format("spikes", "spike file", "store", open="my_package.spikes:open_spikes", suffixes=(".spk",)))

A package that is installed does the same without a call: an entry point of the group `penstock.formats` names its
`Format`, or a sequence of them.
"""

from penstock._src.formats.format import Family, Format
from penstock._src.formats.registry import (
    all_formats,
    by_content,
    by_directory,
    by_name,
    by_start,
    get,
    identify,
    register,
    unregister,
)

__all__ = [
    "Family",
    "Format",
    "all_formats",
    "by_content",
    "by_directory",
    "by_name",
    "by_start",
    "get",
    "identify",
    "register",
    "unregister",
]
