"""The formats that penstock reads itself, declared as those of other packages are."""

from __future__ import annotations

from penstock.formats.format import Format

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
BAG_MAGIC, MCAP_MAGIC, SQLITE_MAGIC = b"#ROSBAG V", b"\x89MCAP0\r\n", b"SQLite format 3\0"

_RECOVER = "penstock.recordings.recovery.recover:recover"

ROS1 = Format(
    "ros1",
    "ROS 1 bag",
    "recording",
    open="penstock.recordings.ros1.reader:Ros1Recording",
    suffixes=(".bag", ".bag.active", ".bag.zstd", ".bag.zst"),
    magics=(BAG_MAGIC, b"#ROSRECORD"),
    recover=_RECOVER,
)
DB3 = Format(
    "db3",
    "ROS 2 db3",
    "recording",
    open="penstock.recordings.db3.reader:Db3Recording",
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
    open="penstock.recordings.mcap.reader:McapRecording",
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
    open="penstock.stores.lerobot.store:LeRobotStore",
    noun="a data set",
    markers=("meta/info.json",),
    opens_whole=True,
    doctor="penstock.lerobot.check.dataset:doctor",
    inspect="penstock.cli.inspect_store:inspect_data_sets",
    convert="penstock.conversion.inputs.data_set:open_data_set",
)
HDF5 = Format(
    "hdf5",
    "HDF5",
    "store",
    open="penstock.stores.hdf5.store:open_hdf5",
    noun="an HDF5 file",
    suffixes=(".hdf5", ".h5", ".hdf", ".he5"),
    magics=(HDF5_MAGIC,),
    is_directory_of_files=True,
    options=("channels", "mask", "allow_external", "check"),
    inspect="penstock.cli.inspect_hdf5:inspect_hdf5",
    convert="penstock.conversion.inputs.store:open_hdf5_input",
)
SPIKE = Format(
    "spike",
    "spike data set",
    "store",
    open="penstock.stores.spike.store:SpikeStore",
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
    recognise="penstock.stores.spike.folders:is_spike_set",
    doctor="penstock.stores.spike.check:doctor",
    inspect="penstock.cli.inspect_spike:inspect_spike_sets",
)  # fmt: skip
VQA = Format(
    "vqa",
    "VQA data set",
    "store",
    open="penstock.stores.vqa.store:VQAStore",
    suffixes=(".jsonl", ".ndjson", ".json", ".tar"),
    markers=("*",),
    recognise="penstock.stores.vqa.contents:is_vqa_folder",
    is_searched=False,
    options=("annotations", "image_root", "fields", "on_error", "allow_external"),
)

FORMATS = (ROS1, DB3, MCAP, LEROBOT, HDF5, SPIKE, VQA)
