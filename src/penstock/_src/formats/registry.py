"""Which formats there are, and which of them a path is: asked by open, convert, inspect, doctor and recover."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock._src.formats.format import FAMILIES, HEAD_BYTES, Family, Format
from penstock._src.system.files import open_source
from penstock.errors import UsageError

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
BAG_MAGIC, MCAP_MAGIC, SQLITE_MAGIC = b"#ROSBAG V", b"\x89MCAP0\r\n", b"SQLite format 3\0"

_RECOVER = "penstock._src.recordings.recovery.recover:recover"

ROS1 = Format(
    "ros1",
    "ROS 1 bag",
    "recording",
    open="penstock._src.recordings.ros1.reader:Ros1Recording",
    suffixes=(".bag", ".bag.active", ".bag.zstd", ".bag.zst"),
    magics=(BAG_MAGIC, b"#ROSRECORD"),
    recover=_RECOVER,
)
DB3 = Format(
    "db3",
    "ROS 2 db3",
    "recording",
    open="penstock._src.recordings.db3.reader:Db3Recording",
    noun="an SQLite file (ROS 2 .db3)",
    suffixes=(".db3", ".db3.zstd", ".db3.zst"),
    magics=(SQLITE_MAGIC,),
    is_series=True,
    recover=_RECOVER,
)
MCAP = Format(
    "mcap",
    "mcap",
    "recording",
    open="penstock._src.recordings.mcap.reader:McapRecording",
    noun="an mcap recording",
    suffixes=(".mcap", ".mcap.zstd", ".mcap.zst"),
    magics=(MCAP_MAGIC,),
    is_series=True,
    recover=_RECOVER,
)
LEROBOT = Format(
    "lerobot",
    "LeRobot data set",
    "store",
    open="penstock._src.stores.lerobot.store:LeRobotStore",
    noun="a data set",
    markers=("meta/info.json",),
    opens_whole=True,
    doctor="penstock._src.lerobot.check.dataset:doctor",
    inspect="penstock._src.cli.inspect.lerobot:inspect_data_sets",
    convert="penstock._src.conversion.inputs.data_set:open_data_set",
)
HDF5 = Format(
    "hdf5",
    "HDF5",
    "store",
    open="penstock._src.stores.hdf5.store:open_hdf5",
    noun="an HDF5 file",
    suffixes=(".hdf5", ".h5", ".hdf", ".he5"),
    magics=(HDF5_MAGIC,),
    is_directory_of_files=True,
    options=("channels", "mask", "allow_external", "check"),
    inspect="penstock._src.cli.inspect.hdf5:inspect_hdf5",
    convert="penstock._src.conversion.inputs.store:open_hdf5_input",
)
SPIKE = Format(
    "spike",
    "spike data set",
    "store",
    open="penstock._src.stores.spike.store:SpikeStore",
    markers=(
        "*/spike/*.dat",
        "train/*/spike/*.dat",
        "test/*/spike/*.dat",
        "spike/*.dat",
        "train/spike_data/*/*.dat",
        "test/spike_data/*/*.dat",
        "*_spike_seq/*/*/spike/*.dat",
    ),
    options=(
        "split", "num_bins", "spike_dir", "layout", "height", "width", "frames", "flip", "voxel_dir", "on_missing",
    ),
    recognise="penstock._src.stores.spike.folders:is_spike_set",
    doctor="penstock._src.stores.spike.check:doctor",
    inspect="penstock._src.cli.inspect.spike:inspect_spike_sets",
)  # fmt: skip
VQA = Format(
    "vqa",
    "VQA data set",
    "store",
    open="penstock._src.stores.vqa.store:VQAStore",
    suffixes=(".jsonl", ".ndjson", ".json", ".tar"),
    markers=("*",),
    recognise="penstock._src.stores.vqa.contents:is_vqa_folder",
    is_searched=False,
    options=("annotations", "image_root", "fields", "on_error", "allow_external"),
    not_converted="a LeRobot data set has no place for questions and answers, and its images have one size",
)

FORMATS = (ROS1, DB3, MCAP, LEROBOT, HDF5, SPIKE, VQA)


GROUP = "penstock.formats"  # of entry points that name a `Format`, or a sequence of them

_BUILTIN = {each.kind: each for each in FORMATS}
_registered: dict[str, Format] = {}
_plugins: dict[str, Format] | None = None  # None: not looked for yet
_lock = threading.RLock()


def register(added: Format) -> None:
    """Make a format known to this process; one of the same kind that was registered before is replaced."""
    if not isinstance(added, Format):
        raise UsageError(f"{added!r} is not a penstock.formats.Format")
    if added.kind in _BUILTIN or added.kind in FAMILIES:
        raise UsageError(f"the kind {added.kind!r} is penstock's own", hint="give the format another kind")
    _registered[added.kind] = added


def unregister(kind: str) -> None:
    _registered.pop(kind, None)


def all_formats(family: Family | None = None) -> Iterator[Format]:
    """Penstock's own, those registered, and those of installed packages, which are loaded when it comes to them."""
    for each in _known():
        if family in (None, each.family):
            yield each


def _known() -> Iterator[Format]:
    yield from FORMATS
    yield from tuple(_registered.values())
    yield from (each for each in _from_packages().values() if each.kind not in _registered)


def get(kind: str) -> Format:
    match = next((each for each in all_formats() if each.kind == kind), None)
    if match is None:
        hint = "install the package that reads it; what register() adds is known to one process only"
        raise UsageError(f"no format {kind!r} is known here", hint=hint)
    return match


def by_name(name: str, family: Family | None = None) -> Format | None:
    """The format that a file name promises."""
    return next((each for each in all_formats(family) if each.is_named(name)), None)


def by_start(head: bytes, family: Family | None = None) -> Format | None:
    """The format of a file that begins so."""
    return next((each for each in all_formats(family) if each.is_started(head)), None)


def by_content(path: Path, family: Family | None = None) -> Format | None:
    """The format of a file, whatever its name is."""
    with open_source(path) as source:
        return by_start(source.read(0, HEAD_BYTES), family)


def by_directory(path: Path, family: Family | None = None) -> Format | None:
    """The format of a directory that is one piece of data."""
    return next((each for each in all_formats(family) if each.marks(path)), None) if path.is_dir() else None


def identify(path: Path, family: Family | None = None) -> Format | None:
    """What lies at a path: of a directory by its markers, of a file by its content, else by its name; None: unknown."""
    if path.is_dir():
        return by_directory(path, family)
    return by_content(path, family) or by_name(path.name, family)


def _from_packages() -> dict[str, Format]:
    """Formats of installed packages, looked for once; a package that cannot be loaded is named in a warning."""
    global _plugins
    if _plugins is None:
        with _lock:
            if _plugins is None:
                _plugins = _load_plugins()
    return _plugins


def _load_plugins() -> dict[str, Format]:
    from importlib import metadata  # not cheap, and seldom needed

    plugins: dict[str, Format] = {}
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else point.value
        try:
            loaded = point.load()
            for each in loaded if isinstance(loaded, Iterable) else [loaded]:
                if not isinstance(each, Format):
                    raise TypeError(f"{point.value} is {type(each).__name__}, no penstock.formats.Format")
                if each.kind in _BUILTIN or each.kind in FAMILIES or each.kind in plugins:
                    raise ValueError(f"the kind {each.kind!r} is taken")
                plugins[each.kind] = each
        except Exception as error:  # whatever it is: the other formats stay usable
            text = (
                f"the formats of the package {package} ({point.name}) cannot be used: {type(error).__name__}: {error}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return plugins
