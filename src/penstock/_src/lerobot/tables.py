"""Arrow schemas and columns of the parquet files, as LeRobot 0.6.1 writes them.

pyarrow is imported inside the functions: a command that writes no table does not pay for it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import columns, language, layout
from penstock._src.lerobot.features import LANGUAGE_KEYS, ROW_FEATURES, Feature
from penstock._src.lerobot.stats import STATISTICS
from penstock.errors import DataSetError, LimitExceeded

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SchemaMaker = Callable[[], "pa.Schema"]

# A writer of parquet holds 2 KB for every column of every row group until the file ends.
MOST_COLUMN_CHUNKS = 8_192

# Arrow addresses the bytes of one binary array with 32 bits.
LARGEST_BINARY_BYTES = 2**31 - 1
_VALUES_AT_ONCE = 1 << 18


def data_features(features: Sequence[Feature]) -> list[Feature]:
    """The features that are columns of the data files, in order: videos have none."""
    return [feature for feature in (*features, *ROW_FEATURES) if feature.dtype != "video"]


def most_row_groups(columns: int) -> int:
    """How many row groups a file may get, so that neither its writer nor its readers need much memory for them."""
    return max(1, MOST_COLUMN_CHUNKS // max(columns, 1))


def data_schema(features: Sequence[Feature], *, lists: str = "List") -> pa.Schema:
    """The schema of data/chunk-…/file-….parquet, with the metadata by which Hugging Face `datasets` knows images.

    `lists` is the name that `datasets` has for a vector: `List` since 4.0, `Sequence` before, which 4.0 still reads.
    """
    import pyarrow as pa

    stored = data_features(features)
    described = {"info": {"features": {feature.key: _hugging_face_type(feature, lists) for feature in stored}}}
    return pa.schema([_field(feature) for feature in stored], metadata={"huggingface": json.dumps(described)})


def _field(feature: Feature) -> pa.Field:
    import pyarrow as pa

    if feature.dtype == "image":
        return pa.field(feature.key, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    if feature.dtype == "language":
        return pa.field(feature.key, language.arrow_type(feature.key))
    element = pa.string() if feature.dtype == "string" else pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.is_scalar:
        return pa.field(feature.key, element)
    if len(feature.shape) == 1:
        return pa.field(feature.key, pa.list_(element, feature.shape[0]))
    # LeRobot stores the Array2D… extension of `datasets` here and then cannot aggregate its own files; plain lists are
    # read as well, and aggregated.
    for _ in feature.shape:
        element = pa.list_(element)
    return pa.field(feature.key, element)


def _hugging_face_type(feature: Feature, lists: str) -> dict[str, Any]:
    if feature.dtype == "image":
        return {"_type": "Image"}
    if feature.dtype == "language":
        return language.hugging_face_type(feature.key)
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.is_scalar:
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": lists}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def data_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of data files.

    Snappy as LeRobot uses it, and every reader knows it: over joint values zstd files are 14 % smaller, but take half
    as long again to read. Images are compressed already. Byte for byte the same for the same rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    compression: dict[str, str] = {}
    for field in schema:
        if pa.types.is_struct(field.type):
            compression |= {f"{field.name}.bytes": "NONE", f"{field.name}.path": "NONE"}
        elif field.name in LANGUAGE_KEYS:
            compression |= dict.fromkeys(language.leaves(field.name), "SNAPPY")
        else:
            compression[_leaf(field)] = "SNAPPY"
    row_keys = [feature.key for feature in ROW_FEATURES]
    return pq.ParquetWriter(
        str(path),
        schema,
        compression=compression,
        use_dictionary=["episode_index", "task_index"],
        write_statistics=row_keys,
        # Arrow looks at the size of a page only so often; with images, 1,024 values would make pages of 100 MB that
        # a reader must hold whole.
        write_batch_size=16 if any(pa.types.is_struct(field.type) for field in schema) else 1024,
        version="2.6",
    )


def read_group(file: pq.ParquetFile, number: int, schema: pa.Schema) -> pa.Table:
    """A row group in the given schema. A part of our own has its types already, and casting loads 8 MiB of Arrow."""
    import pyarrow as pa

    group = file.metadata.row_group(number)
    values = max(group.column(leaf).num_values for leaf in range(group.num_columns))
    if values > _VALUES_AT_ONCE:  # Arrow holds 17 bytes for each number that it reads at once, and 4 for those before
        rows = max(1, group.num_rows * _VALUES_AT_ONCE // values)
        batches = file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False)
        table = pa.Table.from_batches(list(batches))
    else:
        table = file.read_row_group(number, use_threads=False)
    if table.schema.equals(schema):  # but for the names inside lists, which parquet has its own for
        return pa.Table.from_arrays(table.columns, schema=schema)
    return table.cast(schema)


def close_writer(writer: pq.ParquetWriter) -> None:
    """Write the footer; a writer that cannot, on a full disk, is not asked again when it is collected."""
    try:
        writer.close()
    except BaseException:
        writer.is_open = False
        raise


def abandon_writer(writer: pq.ParquetWriter | None) -> None:
    """Close a file without caring for its contents: on a full disk the footer fails to be written, too."""
    with contextlib.suppress(Exception):
        if writer is not None:
            close_writer(writer)


@contextlib.contextmanager
def data_file(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A data file for the length of a block."""
    writer = data_writer(path, schema)
    try:
        yield writer
    finally:
        close_writer(writer)


def _leaf(field: pa.Field) -> str:
    """The path of a column's values inside parquet's schema: every list adds two levels."""
    import pyarrow as pa

    name: str = field.name
    kind = field.type
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        name, kind = f"{name}.list.element", kind.value_type
    return name


def checked_values(feature: Feature, values: object, where: str) -> NDArray[Any] | list[Any]:
    """Rows of one feature as it stores them: an array (n, *shape) of its dtype, or a list for images and strings."""
    if feature.dtype == "image" or feature.is_text:
        if isinstance(values, (str, bytes, memoryview)) or not isinstance(values, Sequence):
            raise DataSetError(f"{where}: {feature.key!r} needs a list with one {feature.dtype} per row")
        return list(values)
    array = np.asarray(values)
    if array.ndim == 1 and feature.is_scalar:
        array = array.reshape(-1, 1)
    if array.shape[1:] != feature.shape:
        raise DataSetError(
            f"{where}: {feature.key!r} has rows of shape {array.shape[1:]}, but the feature is {feature.shape}"
        )
    if array.dtype == np.dtype(feature.dtype):
        return array
    if not np.can_cast(array.dtype, feature.dtype, "same_kind"):
        raise DataSetError(f"{where}: {feature.key!r} came as {array.dtype}, but the feature is {feature.dtype}")
    # A float64 too large for float32 becomes Inf here, and the statistics count it.
    with np.errstate(over="ignore"):
        return array.astype(feature.dtype)


def column(feature: Feature, values: NDArray[Any] | list[Any]) -> pa.Array:
    """The Arrow column of checked values; numbers are not copied and never pass through Python objects."""
    if feature.dtype == "image":
        return _image_column(feature, list(values))
    if feature.dtype == "string":
        return columns.texts([str(value) for value in values])
    if feature.dtype == "language":
        return language.column(feature.key, list(values))
    array = np.asarray(values)
    if feature.is_scalar:
        return columns.numbers(array)
    kind = _field(feature).type
    if len(feature.shape) == 1:
        return columns.fixed_lists(kind, array)
    return columns.arrays(kind, list(array))


def _image_column(feature: Feature, images: Sequence[bytes | memoryview]) -> pa.Array:
    import pyarrow as pa

    total = sum(len(image) for image in images)
    if total > LARGEST_BINARY_BYTES:
        raise LimitExceeded(
            f"{feature.key!r}: {len(images)} images of {total:,} bytes in one flush; {LARGEST_BINARY_BYTES:,} fit",
            size=total,
            limit=LARGEST_BINARY_BYTES,
            hint="flush fewer rows at a time (chunk_size)",
        )
    parts = [columns.binaries(images), pa.nulls(len(images), pa.string())]
    return pa.StructArray.from_arrays(parts, names=["bytes", "path"])


def episodes_schema(features: Sequence[Feature]) -> pa.Schema:
    """The schema of meta/episodes/chunk-…/file-….parquet: one for all files of a data set."""
    import pyarrow as pa

    fields = [
        pa.field("episode_index", pa.int64()),
        pa.field("tasks", pa.list_(pa.string())),
        pa.field("length", pa.int64()),
        pa.field("data/chunk_index", pa.int64()),
        pa.field("data/file_index", pa.int64()),
        pa.field("dataset_from_index", pa.int64()),
        pa.field("dataset_to_index", pa.int64()),
    ]
    for feature in features:
        if feature.dtype == "video":
            fields += [pa.field(f"videos/{feature.key}/{name}", pa.int64()) for name in ("chunk_index", "file_index")]
            times = ("from_timestamp", "to_timestamp")
            fields += [pa.field(f"videos/{feature.key}/{name}", pa.float64()) for name in times]
    for feature in (*features, *ROW_FEATURES):
        if feature.is_text:
            continue
        kind = pa.float64()
        for _ in range(3 if feature.is_camera else 1 if feature.is_wide else len(feature.shape)):
            kind = pa.list_(kind)
        for name in STATISTICS:
            fields.append(pa.field(f"stats/{feature.key}/{name}", pa.list_(pa.int64()) if name == "count" else kind))
    fields += [pa.field(f"meta/episodes/{name}", pa.int64()) for name in ("chunk_index", "file_index")]
    return pa.schema(fields)


def episodes_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows of the episodes table, as `closing.episode_row` gives them."""
    import pyarrow as pa

    def build(field: pa.Field) -> pa.Array:
        values = [row[field.name] for row in rows]
        if not pa.types.is_list(field.type):
            return columns.numbers(np.array(values, dtype=columns.numpy_type(field.type)))
        if pa.types.is_string(field.type.value_type):
            flat = columns.texts([text for texts in values for text in texts])
            return columns.lists(field.type, [len(texts) for texts in values], flat)
        return columns.arrays(field.type, [None if value is None else np.array(value) for value in values])

    return pa.Table.from_arrays([build(field) for field in schema], schema=schema)


def tasks_table(texts: Sequence[str], name: str = "task") -> pa.Table:
    """meta/tasks.parquet: the task text is the pandas *index*; without this metadata LeRobot reads every task as 0."""
    import pyarrow as pa

    number = f"{name}_index"
    described = [
        {"name": number, "field_name": number, "pandas_type": "int64", "numpy_type": "int64"},
        {"name": name, "field_name": name, "pandas_type": "unicode", "numpy_type": "object"},
    ]
    labels = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": [name],
        "column_indexes": [{**labels, "metadata": {"encoding": "UTF-8"}}],
        "columns": [{**entry, "metadata": None} for entry in described],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": "14.0.0"},
        "pandas_version": "2.2.0",
    }
    schema = pa.schema([(number, pa.int64()), (name, pa.string())], metadata={"pandas": json.dumps(pandas)})
    return pa.Table.from_arrays([columns.numbers(np.arange(len(texts))), columns.texts(texts)], schema=schema)


@contextlib.contextmanager
def arrow_errors(path: Path | str, doing: str, raised: type[DataSetError] = DataSetError) -> Iterator[None]:
    """Turn what Arrow and the system raise into our error, with the file's name."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        raise raised(f"{path}: {doing}: {text}") from error


@contextlib.contextmanager
def write_errors(path: Path | str, doing: str) -> Iterator[None]:
    """As `arrow_errors`, while a file is written: what the system refuses is OutputFailed."""
    with arrow_errors(path, doing), layout.writing(path, doing):
        yield


def rows_of(flush: Mapping[str, NDArray[Any] | list[Any]]) -> int:
    """How many rows a set of columns has; they must agree."""
    counts = {key: len(values) for key, values in flush.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{key!r} {count}" for key, count in counts.items())
        raise DataSetError(f"columns of different length in one flush: {shown}")
    return next(iter(counts.values()), 0)
