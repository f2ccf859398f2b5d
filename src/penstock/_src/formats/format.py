"""One format: how its files are recognised, and what can be done with them."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from penstock._src.system.files import as_path
from penstock.errors import PenstockError, UsageError

Family = Literal["recording", "store"]
"""A recording holds messages with times. A store holds rows that can be read at random."""

Action = Literal["open", "recognise", "doctor", "recover", "inspect", "convert"]

FAMILIES: tuple[str, ...] = get_args(Family)

HEAD_BYTES = 64  # a file is recognised by no more of its beginning than that

# What converts and checks every recording, whatever its format.
RECORDING_INPUT = "penstock._src.conversion.inputs.recording:open_recording"
RECORDING_DOCTOR = "penstock._src.recordings.check:doctor"
_STORE_INPUT = "penstock._src.conversion.inputs.store:open_store_input"
_STORE_INSPECT = "penstock._src.cli.inspect.stores:inspect_stores"


@dataclass(frozen=True, eq=False)
class Format:
    """How data of one format are recognised, and who reads them.

    What can be done with them is written "package.module:name" and imported when it is needed, so that declaring a
    format costs nothing:

    - `open`, of a recording: `(source: recordings.split.Source, *, on_corrupt) -> Recording`;
      of a store: `(path, *, episodes, columns, **options) -> Store`.
    - `recover`, of a recording: `(broken, new, *, overwrite, keep_suspect) -> RecoveryReport`.
    - `doctor`, of a store: `(path, findings: formats.findings.Findings, *, full, skew_ns) -> None`.
    - `recognise`, of a directory with a marker that others may have too: `(path) -> bool`.
    - `inspect`, of a store: `(paths, args) -> exit code`; without one, it is shown as any other store.
    - `convert`, of a store: `(path, options, first_spec) -> Input`; without one, it is converted as any other store.

    Recordings are all checked, shown and converted alike, through what `Recording` offers.
    """

    kind: str
    """Short and lasting: journals keep it. "ros1", "hdf5"."""
    label: str  # for people: "ROS 1 bag"
    family: Family
    open: str
    noun: str = ""  # the label with its article, where that is not "a"
    suffixes: tuple[str, ...] = ()  # of file names, in lower case; the usual one first
    magics: tuple[bytes, ...] = ()
    """With one of these its files begin. Without any, the name decides."""
    markers: tuple[str, ...] = ()
    """With one of these files in it, a directory is one piece of data: "meta/info.json". `*` stands for any name."""
    is_searched: bool = True
    """Whether searching a directory finds it. JSON and images lie beside much that is something else."""
    is_directory_of_files: bool = False  # whether a directory of such files can be opened as one store
    is_series: bool = False
    """Whether run_0, run_1, … with its suffix are one recording, which a metadata.yaml beside them describes."""
    options: tuple[str, ...] = ()  # what `penstock.open` takes besides `episodes` and `columns`
    not_converted: str = ""  # why `convert` refuses such data, where no LeRobot data set can hold them
    opens_whole: bool = False  # whether `episodes="whole"` is understood: the episodes whose files are all there
    recognise: str = ""
    doctor: str = ""
    recover: str = ""
    inspect: str = ""
    convert: str = ""

    def __post_init__(self) -> None:
        if not self.kind or not self.label or self.family not in FAMILIES:
            raise UsageError(f"{self.kind!r}: a format has a kind, a label, and is a recording or a store")
        if not (self.suffixes or self.magics or self.markers):
            raise UsageError(
                f"the format {self.kind!r} has no suffixes, no magics and no markers: nothing would be one"
            )
        if wrong := [each for each in self.suffixes if not each.startswith(".") or each != each.lower()]:
            raise UsageError(f"the format {self.kind!r}: {wrong[0]!r} is not a suffix", hint='in lower case: ".bag"')
        if wrong_magic := [each for each in self.magics if not 0 < len(each) <= HEAD_BYTES]:
            raise UsageError(f"the format {self.kind!r}: {wrong_magic[0]!r} has not 1 to {HEAD_BYTES} bytes")
        for action in get_args(Action):
            reference = getattr(self, action)
            if (reference or action == "open") and not all(reference.partition(":")):
                hint = f'{action}="package.module:name"'
                raise UsageError(f"the format {self.kind!r}: {action}={reference!r} names no function", hint=hint)
        if not self.noun:
            object.__setattr__(self, "noun", f"a {self.label}")
        if self.family == "store":
            object.__setattr__(self, "convert", self.convert or _STORE_INPUT)
            object.__setattr__(self, "inspect", self.inspect or _STORE_INSPECT)

    def __repr__(self) -> str:
        return f"Format({self.kind!r}, {self.label!r}, {self.family!r})"

    def suffix_of(self, name: str) -> str:
        """The longest of its suffixes that a file name ends in; "" where there is none."""
        lower = name.lower()
        return max((each for each in self.suffixes if lower.endswith(each)), key=len, default="")

    def is_named(self, name: str) -> bool:
        """Whether a file name promises this format."""
        return name.lower().endswith(self.suffixes)

    def is_started(self, head: bytes) -> bool:
        """Whether a file with these first bytes is of this format."""
        return head.startswith(self.magics)

    def marks(self, directory: str | os.PathLike[str]) -> bool:
        """Whether a directory is one piece of data of this format."""
        path = as_path(directory)
        is_marked = any(_holds(path, marker) for marker in self.markers)
        return is_marked and (not self.recognise or bool(self.load("recognise")(path)))

    def files_in(self, directory: Path) -> list[Path]:
        """The files right in a directory that are named as this format, sorted."""
        return [each for each in sorted(directory.iterdir()) if self.is_named(each.name) and each.is_file()]

    def load(self, action: Action) -> Any:
        """What one of its references names."""
        reference: str = getattr(self, action)
        try:
            return load(reference)
        except (ImportError, AttributeError) as error:
            raise PenstockError(
                f"the format {self.kind!r}: {action}={reference!r} cannot be loaded: {error}"
            ) from error


def _holds(directory: Path, marker: str) -> bool:
    """Whether a file of this name, or one that matches this pattern, lies in a directory."""
    if "*" not in marker:
        return (directory / marker).is_file()
    return next(directory.glob(marker), None) is not None


def load(reference: str) -> Any:
    """What "package.module:name" names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
